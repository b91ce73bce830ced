"""The asyncio client."""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from typing_extensions import override

from penstock.base.clock import monotonic_ns
from penstock.logd.api.operations import Fetch
from penstock.logd.client import calls
from penstock.logd.client.access import ANYBODY, Access
from penstock.logd.client.calls import Call
from penstock.logd.client.following import (
    FETCH_BYTES,
    CommitPolicy,
    Committing,
    Explode,
    Following,
    FollowOptions,
    Item,
    Patience,
    Position,
    Rows,
    begin,
    single,
    whole,
)
from penstock.logd.client.group_consumer import (
    BEATS_S_MIN,
    AsyncGroupConsumer,
    AsyncPositions,
    GroupOptions,
)
from penstock.logd.client.models import (
    ClusterInfo,
    Cursor,
    Described,
    Elected,
    Fetched,
    GroupInfo,
    OffsetRange,
    StreamInfo,
    leaders_elsewhere,
    merge,
)
from penstock.logd.client.routing import MetadataCache, Prefer
from penstock.logd.client.transport import ConnectionPool
from penstock.logd.controller.group_messages import BEATS_PER_SESSION
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.format.batch import Record
from penstock.logd.format.rows import batch_records

_DEFAULT: Final = FollowOptions()
_AT_CLOSE: Final = CommitPolicy()


class AsyncCursorHandle:
    """Made by `AsyncLogClient.cursor`; the methods are those of `CursorHandle`."""

    def __init__(
        self, client: "AsyncLogClient", consumer: str, stream: str, partition: int
    ) -> None:
        self._client = client
        self._at = Cursor(
            consumer=consumer, stream=stream, partition=partition, offset=0, incarnation=""
        )

    async def get(self) -> Cursor | None:
        """The committed cursor; None when there is none."""
        at = self._at
        return await self._client.get_cursor(at.consumer, at.stream, at.partition)

    async def commit(self, offset: int, *, incarnation: str = "", rewind: bool = False) -> Cursor:
        """Commit the offset of the next record wanted; durable on return."""
        wanted = replace(self._at, offset=offset, incarnation=incarnation)
        return (await self._client.set_cursors([wanted], rewind=rewind))[0]

    async def delete(self) -> bool:
        """Delete the cursor; whether there was one."""
        at = self._at
        return await self._client.delete_cursor(at.consumer, at.stream, at.partition)

    def follow_batches(
        self,
        start: Position = "earliest",
        *,
        commit: CommitPolicy = _AT_CLOSE,
        options: FollowOptions = _DEFAULT,
    ) -> AsyncGenerator[Rows, None]:
        """As `CursorHandle.follow_batches`; close it (`contextlib.aclosing`) to commit the rest."""
        return self._follow(start, commit, options, whole)

    def follow(
        self,
        start: Position = "earliest",
        *,
        commit: CommitPolicy = _AT_CLOSE,
        options: FollowOptions = _DEFAULT,
    ) -> AsyncGenerator[tuple[int, Record], None]:
        """`follow_batches` one by one, as (offset, record)."""
        return self._follow(start, commit, options, single)

    async def _follow(
        self, start: Position, policy: CommitPolicy, options: FollowOptions, explode: Explode[Item]
    ) -> AsyncGenerator[Item, None]:
        found, info = await self.get(), await self._client.stream(self._at.stream)
        position, options, cursor = begin(self._at, found, info, start, options)
        committing = Committing(cursor, policy)
        try:
            following = self._client.following(self._at.stream, position, options)
            async with aclosing(following):
                async for rows in following:
                    if isinstance(rows, int):
                        committing.passed(rows, monotonic_ns())
                    else:
                        for item, next_offset, count in explode(rows):
                            yield item
                            committing.done(next_offset, count, monotonic_ns())
                            await self._commit(committing, committing.due(monotonic_ns()))
                    await self._commit(committing, committing.due(monotonic_ns()))
        except GeneratorExit:
            await self._commit(committing, committing.pending(), closing=True)
            raise

    async def _commit(
        self, committing: Committing, cursor: Cursor | None, *, closing: bool = False
    ) -> None:
        if cursor is None:
            return
        try:
            await self._client.set_cursors([cursor])
        except UnavailableError:
            if closing:
                raise
            committing.postponed(monotonic_ns())
        else:
            committing.committed()


Answer = TypeVar("Answer")


class AsyncManaging(ABC):
    """A part of `AsyncLogClient`; the methods are those of `Managing`."""

    @abstractmethod
    async def _call(self, call: Call[Answer]) -> Answer: ...

    # Streams.

    async def streams(self, *, internal: bool = False) -> list[StreamInfo]:
        """Every stream, by name; `internal` adds logd's own."""
        return await self._described(None, internal=internal)

    async def stream(self, name: str) -> StreamInfo:
        """One stream.

        Raises:
            RefusedError: `UNKNOWN_STREAM`.
        """
        return (await self._described(name))[0]

    async def match(self, subject: str) -> list[str]:
        """Names of the streams that store what is published on a subject."""
        return await self._call(calls.match(subject))

    async def create_stream(self, name: str, subject: str, **options: Any) -> StreamInfo:
        """Create a stream, or find it as asked for.

        Raises:
            RefusedError: `STREAM_DIFFERS`, `BAD_SUBJECT`, `BAD_REQUEST`;
                `NOT_ENOUGH_NODES`;
                `STREAM_DELETING`: nodes still have data of one of that name that was deleted;
                `UNAVAILABLE`: it is made, or not, and publishers do not reach all of it yet.
        """
        return await self._call(calls.create_stream(name, subject, options))

    async def alter_stream(self, name: str, **options: Any) -> StreamInfo:
        """Change options of a cluster's stream; those not named stay as they are.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `BAD_REQUEST`.
        """
        return await self._call(calls.alter_stream(name, options))

    async def set_stream_mode(
        self,
        name: str,
        *,
        paused: bool | None = None,
        read_only: bool | None = None,
        held: bool = False,
    ) -> StreamInfo:
        """Pause or resume a cluster's stream, make it read-only or writable; None: as it is.

        A message ends a pause; with `held` the stream is off its subject until it is resumed.

        Raises:
            RefusedError: `UNKNOWN_STREAM`.
        """
        call = calls.set_mode(name, paused=paused, read_only=read_only, held=held)
        return await self._call(call)

    async def open_stream(self, name: str, *, node: str | None = None) -> StreamInfo:
        """Open a stream that failed, or could not be opened, as a restart would.

        In a cluster: what a node has of it; without a name, the one that is asked.

        Raises:
            RefusedError: `UNKNOWN_STREAM`; `UNAVAILABLE` while it still cannot be opened.
        """
        return await self._call(calls.open_stream(name, node))

    async def purge(self, stream: str, before: int, partition: int = 0) -> int:
        """Take what is below an offset from readers, and delete it; the first that is left then.

        Whole segment files below it are deleted; what the one that holds the offset has below it
        goes with that file. Cursors stay: readers below are refused as `OUT_OF_RANGE`.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`, `RESERVED_NAME`, `READ_ONLY`;
                `OUT_OF_RANGE`: not all of it is committed.
        """
        return await self._call(calls.purge(stream, partition, before))

    async def delete_stream(self, name: str) -> None:
        """Delete a stream with its data.

        Raises:
            RefusedError: `UNKNOWN_STREAM`.
        """
        await self._call(calls.delete_stream(name))

    # Nodes.

    async def cluster(self) -> ClusterInfo:
        """Which nodes there are; a single node names only itself."""
        return await self._call(calls.cluster())

    async def drain_node(self, node: str, *, undo: bool = False) -> None:
        """Begin to move every replica and leadership off a node, or end that.

        Raises:
            RefusedError: `UNKNOWN_NODE`.
        """
        await self._call(calls.drain(node, undo=undo))

    async def remove_node(self, node: str) -> None:
        """End a node's membership; drain it first.

        Raises:
            RefusedError: `UNKNOWN_NODE`, and why it cannot go yet.
        """
        await self._call(calls.remove_node(node))

    async def move_partition(
        self, stream: str, partition: int, replicas: Sequence[str] | None
    ) -> None:
        """Begin to move a partition to these nodes, preferred leader first; None gives it up.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`, `UNKNOWN_NODE`.
        """
        await self._call(calls.move(stream, partition, replicas))

    async def set_observers(self, stream: str, partition: int, observers: Sequence[str]) -> None:
        """Have just these nodes hold a copy of a partition that never counts, for readers.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`, `UNKNOWN_NODE`;
                `BAD_REPLICAS`: one is a replica.
        """
        await self._call(calls.observe(stream, partition, observers))

    async def elect_and_lose_records(self, stream: str, partition: int = 0) -> Elected:
        """Have the best replica lead that is there, though it lacks acked records.

        Raises:
            RefusedError: `HAS_LEADER`, `IN_SYNC_ALIVE`: nothing need be lost; `NO_REPLICA`: none is
                there; `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`.
        """
        return await self._call(calls.elect(stream, partition))

    async def step_down(self, heir: str | None = None) -> str:
        """Have another node be the controller, that one or any; which one is then.

        Raises:
            RefusedError: `NO_HEIR`: it is not there, or none is.
        """
        return await self._call(calls.step_down(heir))

    async def gaps(self, node: str | None = None) -> dict[str, Any]:
        """What a node has missed of its subjects, and what of its logs it cannot read.

        `lasting` and `ended` are lists of gaps, `damaged` one of ranges of offsets, as
        `penstock.logd.api.protocol` has them.
        """
        return await self._call(calls.gaps(node))

    async def rebalance(self) -> int:
        """Spread replicas and leaderships evenly; how many moves begin."""
        return await self._call(calls.rebalance())

    # Groups.

    async def groups(self) -> list[GroupInfo]:
        """The consumer groups with members, by name."""
        return await self._call(calls.groups())

    async def group(self, name: str) -> GroupInfo:
        """One consumer group.

        Raises:
            RefusedError: `UNKNOWN_GROUP`: it has no members.
        """
        return (await self._call(calls.groups(name)))[0]

    async def _described(self, name: str | None, *, internal: bool = False) -> list[StreamInfo]:
        """Streams, with where each partition stands at its leader."""
        described = await self._call(calls.describe(name, internal=internal))
        others: list[Described] = []
        for node in leaders_elsewhere(described):
            try:
                call = calls.describe(name, internal=internal, node=node)
                others.append(await self._call(call))
            except (UnavailableError, RefusedError):
                continue  # what only that node knows stays unknown
        return merge(described, others)


OUTSTANDING_MAX: Final = 32
"""Calls of one client under way at a time; half of what a logd takes of a connection by default."""


_GROUP: Final = GroupOptions()


class AsyncLogClient(AsyncManaging):
    """`LogClient` for an event loop.

    Any number of tasks may call at once: their requests share the connection to a node and wait for
    nobody else's answer. Methods are those of `LogClient` and raise what those raise.

    Args:
        server: As for `LogClient`; so `prefer` and `rack`.
        timeout_s: Seconds to wait for a connection, and without a byte for an answer that is due.
        outstanding_max: Calls under way at a time; further ones wait their turn.
        access: How it is let in: TLS, certificate, token.
        rng: For the jitter of pauses between tries, and the choice of a replica.
    """

    def __init__(  # noqa: PLR0913 - independent of each other, all but one with a default
        self,
        server: str,
        *,
        timeout_s: float = 10.0,
        outstanding_max: int = OUTSTANDING_MAX,
        prefer: Prefer = "leader",
        rack: str = "",
        access: Access = ANYBODY,
        rng: random.Random | None = None,
    ) -> None:
        self.server = server
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        router = MetadataCache(server, prefer=prefer, rack=rack, timeout_s=timeout_s, rng=self._rng)
        self._access = access
        self._connections = ConnectionPool(router, timeout_s, access)
        self._outstanding = asyncio.Semaphore(outstanding_max)

    async def __aenter__(self) -> Self:
        """Nothing is connected yet."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connections."""
        for connection in self._connections.close():
            await connection.wait_closed()

    def close(self) -> None:
        """Close the connections; calls under way fail, the next one opens another."""
        self._connections.close()

    # Reading.

    async def offsets(self, stream: str, partition: int = 0) -> OffsetRange:
        """What can be read of a partition now."""
        return await self._call(calls.offsets(stream, partition))

    async def offset_for_timestamp(self, stream: str, timestamp_ns: int, partition: int = 0) -> int:
        """The first record at or after a time; the end of what can be read when there is none."""
        return await self._call(calls.offset_at(stream, partition, timestamp_ns))

    async def fetch(  # noqa: PLR0913 - a request of many optional parts
        self,
        stream: str,
        offset: int,
        *,
        partition: int = 0,
        bytes_max: int = FETCH_BYTES,
        bytes_min: int = 1,
        wait_ms: int = 0,
        subject: str | None = None,
        incarnation: str | None = None,
    ) -> Fetched:
        """Read whole frames from an offset on; see `LogClient.fetch`."""
        call = calls.fetch(
            Fetch(
                stream=stream,
                offset=offset,
                partition=partition,
                bytes_max=bytes_max,
                bytes_min=bytes_min,
                wait_ms_max=wait_ms,
                subject=subject,
                incarnation=incarnation,
            ),
            where=self.server,
        )
        return await self._call(call)

    async def follow_batches(
        self, stream: str, start: Position, options: FollowOptions = _DEFAULT
    ) -> AsyncGenerator[Rows, None]:
        """Read a partition for ever, as Arrow batches; see `LogClient.follow_batches`."""
        async with aclosing(self.following(stream, start, options)) as following:
            async for rows in following:
                if not isinstance(rows, int):
                    yield rows

    async def follow(
        self, stream: str, start: Position, options: FollowOptions = _DEFAULT
    ) -> AsyncGenerator[tuple[int, Record], None]:
        """`follow_batches` one by one, as (offset, record)."""
        async with aclosing(self.following(stream, start, options)) as following:
            async for rows in following:
                for item in () if isinstance(rows, int) else batch_records(*rows):
                    yield item

    async def following(
        self, stream: str, start: Position, options: FollowOptions = _DEFAULT
    ) -> AsyncGenerator[Rows | int, None]:
        """`follow_batches` that also yields, after each answer, how far it has looked (offset)."""
        reading = Following(self.server, stream, start, options)
        patience = Patience(options.retry_s, self._rng)
        while True:
            try:
                try:
                    answer = await self._call(reading.next_call())
                except RefusedError as refusal:
                    reading.refused(refusal)
                    continue
            except UnavailableError as error:
                await asyncio.sleep(patience.pause(error, monotonic_ns()))
                continue
            patience.succeeded()
            for rows in reading.take(answer):
                yield rows
            yield reading.offset

    # Cursors.

    def cursor(self, consumer: str, stream: str, partition: int = 0) -> AsyncCursorHandle:
        """A consumer's position in a partition."""
        return AsyncCursorHandle(self, consumer, stream, partition)

    async def cursors(
        self, *, consumer: str | None = None, stream: str | None = None
    ) -> list[Cursor]:
        """The committed cursors, of one consumer or stream if named."""
        found: list[Cursor] = []
        more = True
        while more:
            after = found[-1] if found else None
            call = calls.cursors(consumer=consumer, stream=stream, after=after)
            part, more = await self._call(call)
            found += part
        return found

    async def get_cursor(self, consumer: str, stream: str, partition: int = 0) -> Cursor | None:
        """A committed cursor; None where there is none."""
        return await self._call(calls.get_cursor(consumer, stream, partition))

    async def set_cursors(self, wanted: Iterable[Cursor], *, rewind: bool = False) -> list[Cursor]:
        """Commit cursors, all of them or none; see `LogClient.set_cursors`."""
        items: Sequence[Cursor] = list(wanted)
        return await self._call(calls.set_cursors(items, rewind=rewind))

    async def delete_cursor(self, consumer: str, stream: str, partition: int = 0) -> bool:
        """Delete a cursor, durably; whether there was one."""
        return await self._call(calls.delete_cursor(consumer, stream, partition))

    # Groups.

    def join_group(
        self,
        group: str,
        streams: str | Sequence[str],
        options: GroupOptions = _GROUP,
        *,
        positions: AsyncPositions | None = None,
    ) -> AsyncGroupConsumer:
        """Be a member of a consumer group while an `async with` lasts; see `LogClient`."""
        names = (streams,) if isinstance(streams, str) else tuple(streams)
        beats = self.for_beats(options)
        return AsyncGroupConsumer((self, beats), group, names, options, positions)

    def for_beats(self, options: GroupOptions) -> "AsyncLogClient":
        """A client that soon goes to another node: a session is short."""
        timeout_s = max(BEATS_S_MIN, options.session_s / BEATS_PER_SESSION)
        return AsyncLogClient(self.server, timeout_s=timeout_s, access=self._access, rng=self._rng)

    async def ask(self, call: Call[Answer]) -> Answer:
        """Make a call of `penstock.logd.client.calls`."""
        return await self._call(call)

    @override
    async def _call(self, call: Call[Answer]) -> Answer:
        async with self._outstanding:
            return await self._connections.call(call)
