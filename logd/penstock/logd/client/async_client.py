"""The client for an event loop; the blocking one is generated from it.

`make reference` writes `penstock.logd.client.client` by the rules of `tests/blocking_client.py`. It
leaves out what stands between the comments `async only` and `end`.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from msgspec.structs import replace

from penstock.base.clock import monotonic_ns
from penstock.logd.api.models import (
    ClusterInfo,
    Cursor,
    Elected,
    GapList,
    GroupInfo,
    StreamInfo,
    StreamList,
)
from penstock.logd.api.operations import Fetch, FindIds
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
    GroupOptions,
    Item,
    Position,
    RetryBackoff,
    Rows,
    begin,
    single,
    whole,
)
from penstock.logd.client.results import Fetched, OffsetRange, leaders_elsewhere, merge
from penstock.logd.client.routing import MetadataCache, Prefer
from penstock.logd.client.transport import OUTSTANDING_MAX, ConnectionPool
from penstock.logd.errors import CorruptError, RefusedError, UnavailableError

if TYPE_CHECKING:  # what reads records is imported when some are read: a client may read none
    from penstock.logd.client.group_consumer import AsyncGroupConsumer, AsyncPositions
    from penstock.logd.format.batch import Record

_DEFAULT: Final = FollowOptions()
_AT_CLOSE: Final = CommitPolicy()


class AsyncCursorHandle:
    """Made by `AsyncLogClient.cursor`."""

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
        return await self._client.ask(calls.get_cursor(at.consumer, at.stream, at.partition))

    async def commit(self, offset: int, *, incarnation: str = "", rewind: bool = False) -> Cursor:
        """Commit the offset of the next record wanted; durable on return.

        Raises:
            RefusedError: As `AsyncLogClient.set_cursors`.
        """
        wanted = replace(self._at, offset=offset, incarnation=incarnation)
        return (await self._client.set_cursors([wanted], rewind=rewind))[0]

    async def delete(self) -> bool:
        """Delete the cursor; whether there was one."""
        at = self._at
        return await self._client.ask(calls.delete_cursor(at.consumer, at.stream, at.partition))

    def follow_batches(
        self,
        start: Position = "earliest",
        *,
        commit: CommitPolicy = _AT_CLOSE,
        options: FollowOptions = _DEFAULT,
    ) -> AsyncGenerator[Rows, None]:
        """`AsyncLogClient.follow_batches` from the committed cursor on, committing on the way.

        What was yielded counts as done with when the next is asked for; what is done with is
        committed when `commit` says so, and when the iterator is closed: use it with
        `contextlib.aclosing`.

        Args:
            start: Position to begin at when nothing is committed yet.
            commit: Policy of commits.
            options: Its partition is the cursor's.

        Raises:
            RefusedError: As `AsyncLogClient.follow_batches`; `STREAM_RECREATED` also when the
                cursor is of an earlier stream; `CURSOR_BEHIND` when another has moved it further.
        """
        return self._follow(start, commit, options, whole)

    def follow(
        self,
        start: Position = "earliest",
        *,
        commit: CommitPolicy = _AT_CLOSE,
        options: FollowOptions = _DEFAULT,
    ) -> "AsyncGenerator[tuple[int, Record], None]":
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


_GROUP: Final = GroupOptions()


class AsyncLogClient:
    """A client of a logd, or of the nodes of a cluster; each is connected to when it is needed.

    A call that finds the connection it used before broken is tried once more on a new one. In a
    cluster a call is tried again, at other nodes, until its time is over: it goes on across the
    loss of a leader. A client is for one thread. On an event loop any number of tasks may call at a
    time: their requests share the connection to a node and do not wait for each other's answers.

    Args:
        server: The address of logd's fetch endpoint, ``HOST:PORT``; or several joined by commas, of
            nodes of a cluster. The first that answers is taken; the others' are learned.
        timeout_s: Seconds to wait for a connection, and without a byte for an answer that is due.
        outstanding_max: Calls under way at a time; further ones wait their turn.
        prefer: `replica`: fetches go to a replica in sync that does not lead, if there is one. It
            is a little behind the leader.
        rack: Preferred rack of replicas.
        access: TLS, and how it authenticates.
        rng: Source of the jitter of pauses between attempts, and of the choice of a replica.

    Attributes:
        server, timeout_s, prefer, rack, access: The arguments.
    """

    def __init__(  # noqa: PLR0913 - independent of each other, all but one with a default
        self,
        server: str,
        *,
        timeout_s: float = 10.0,
        # async only
        outstanding_max: int = OUTSTANDING_MAX,
        # end
        prefer: Prefer = "leader",
        rack: str = "",
        access: Access = ANYBODY,
        rng: random.Random | None = None,
    ) -> None:
        self.server = server
        self.timeout_s = timeout_s
        self.prefer = prefer
        self.rack = rack
        self.access = access
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        router = MetadataCache(server, prefer=prefer, rack=rack, timeout_s=timeout_s, rng=self._rng)
        self._connections = ConnectionPool(router, timeout_s, access)
        # async only
        self._connections.limit(outstanding_max)
        # end

    async def __aenter__(self) -> Self:
        """Enter without a connection: the first call connects."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connections."""
        await self._connections.finish()

    def close(self) -> None:
        """Close the connections; calls under way fail, the next one opens another."""
        self._connections.close()

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
        return await self.ask(calls.match(subject))

    async def create_stream(self, name: str, subject: str, **options: Any) -> StreamInfo:
        """Create a stream, or find it as asked for.

        Raises:
            RefusedError: `STREAM_DIFFERS`, `BAD_SUBJECT`, `BAD_REQUEST`;
                `NOT_ENOUGH_NODES`;
                `STREAM_DELETING`: nodes still have data of one of that name that was deleted;
                `UNAVAILABLE`: it is made, or not, and publishers do not reach all of it yet.
        """
        return await self.ask(calls.create_stream(name, subject, options))

    async def alter_stream(self, name: str, **options: Any) -> StreamInfo:
        """Change options of a cluster's stream; those not named stay as they are.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `BAD_REQUEST`.
        """
        return await self.ask(calls.alter_stream(name, options))

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
        return await self.ask(call)

    async def open_stream(self, name: str, *, node: str | None = None) -> StreamInfo:
        """Open a stream that failed, or could not be opened, as a restart would.

        In a cluster: what a node has of it; without a name, the one that is asked.

        Raises:
            RefusedError: `UNKNOWN_STREAM`; `UNAVAILABLE` while it still cannot be opened.
        """
        return await self.ask(calls.open_stream(name, node))

    async def purge(self, stream: str, before: int, partition: int = 0) -> int:
        """Take what is below an offset from readers, and delete it; the first that is left then.

        Whole segment files below it are deleted; what the one that holds the offset has below it
        goes with that file. Cursors stay: readers below are refused as `OUT_OF_RANGE`.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`, `RESERVED_NAME`, `READ_ONLY`;
                `OUT_OF_RANGE`: not all of it is committed.
        """
        return await self.ask(calls.purge(stream, partition, before))

    async def delete_stream(self, name: str) -> None:
        """Delete a stream with its data.

        Raises:
            RefusedError: `UNKNOWN_STREAM`.
        """
        await self.ask(calls.delete_stream(name))

    # Nodes.

    async def cluster(self) -> ClusterInfo:
        """Return the nodes; a single node names only itself."""
        return await self.ask(calls.cluster())

    async def drain_node(self, node: str, *, undo: bool = False) -> None:
        """Begin to move every replica and leadership off a node, or end that.

        Raises:
            RefusedError: `UNKNOWN_NODE`.
        """
        await self.ask(calls.drain(node, undo=undo))

    async def remove_node(self, node: str) -> None:
        """End a node's membership; drain it first.

        Raises:
            RefusedError: `UNKNOWN_NODE`, and why it cannot go yet.
        """
        await self.ask(calls.remove_node(node))

    async def move_partition(
        self, stream: str, partition: int, replicas: Sequence[str] | None
    ) -> None:
        """Begin to move a partition to these nodes, preferred leader first; None gives it up.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`, `UNKNOWN_NODE`.
        """
        await self.ask(calls.move(stream, partition, replicas))

    async def set_observers(self, stream: str, partition: int, observers: Sequence[str]) -> None:
        """Have just these nodes hold a copy of a partition that never counts, for readers.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`, `UNKNOWN_NODE`;
                `BAD_REPLICAS`: one is a replica.
        """
        await self.ask(calls.observe(stream, partition, observers))

    async def elect_and_lose_records(self, stream: str, partition: int = 0) -> Elected:
        """Have the best replica lead that is there, though it lacks acked records.

        Raises:
            RefusedError: `HAS_LEADER`, `IN_SYNC_ALIVE`: nothing need be lost; `NO_REPLICA`: none is
                there; `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`.
        """
        return await self.ask(calls.elect(stream, partition))

    async def step_down(self, target: str | None = None) -> str:
        """Have another node be the controller, that one or any; which one is then.

        Raises:
            RefusedError: `NO_CANDIDATE`: it is not there, or none is.
        """
        return await self.ask(calls.step_down(target))

    async def gaps(self, node: str | None = None) -> GapList:
        """Return a node's ingest gaps and the damaged ranges of its logs."""
        return await self.ask(calls.gaps(node))

    async def rebalance(self) -> int:
        """Spread replicas and leaderships evenly; how many moves begin."""
        return await self.ask(calls.rebalance())

    # Groups.

    async def groups(self) -> list[GroupInfo]:
        """The consumer groups with members, by name."""
        return await self.ask(calls.groups())

    async def group(self, name: str) -> GroupInfo:
        """One consumer group.

        Raises:
            RefusedError: `UNKNOWN_GROUP`: it has no members.
        """
        return (await self.ask(calls.groups(name)))[0]

    async def _described(self, name: str | None, *, internal: bool = False) -> list[StreamInfo]:
        """Streams, with where each partition stands at its leader."""
        described = await self.ask(calls.describe(name, internal=internal))
        others: list[StreamList] = []
        for node in leaders_elsewhere(described):
            try:
                call = calls.describe(name, internal=internal, node=node)
                others.append(await self.ask(call))
            except (UnavailableError, RefusedError):
                continue  # what only that node knows stays unknown
        return merge(described, others)

    # Reading.

    async def offsets(self, stream: str, partition: int = 0) -> OffsetRange:
        """Return the readable offsets of a partition."""
        return await self.ask(calls.offsets(stream, partition))

    async def offset_for_timestamp(self, stream: str, timestamp_ns: int, partition: int = 0) -> int:
        """The first record at or after a time; the end of what can be read when there is none."""
        return await self.ask(calls.offset_at(stream, partition, timestamp_ns))

    async def find_ids(
        self, stream: str, ids: Sequence[str], start: int, end: int, partition: int = 0
    ) -> list[tuple[int, int]]:
        """Find the ranges in [start, end) that may hold a record with a trace id or record id.

        logd answers by its index of ids. What is not indexed yet is in the ranges, and logd indexes
        it after the answer, so that later searches are faster.

        Args:
            stream: The stream's name.
            ids: Values of `trace_id` or `record_id`, 16 at most.
            start: The first offset, inclusive.
            end: Exclusive.
            partition: Partition of the stream.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`; `UNKNOWN_API`: an older logd.
        """
        request = FindIds(stream=stream, partition=partition, ids=list(ids), offset=start, upto=end)
        return await self.ask(calls.find_ids(request))

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
        """Read whole frames from an offset on.

        Args:
            stream: The stream's name.
            offset: Offset of the first wanted record; at the end of the range the fetch waits for
                records.
            partition: Partition of the stream.
            bytes_max: Bytes of frames wanted at most; one frame is sent even if larger.
            bytes_min: Bytes below which the server waits for more, up to `wait_ms`.
            wait_ms: Milliseconds the server may wait; 0 answers at once.
            subject: A filter; records on other subjects are left out.
            incarnation: Incarnation of the stream; any other is refused.

        Raises:
            RefusedError: `OUT_OF_RANGE` with `earliest` and `latest` (exclusive), `UNKNOWN_STREAM`,
                `STREAM_RECREATED` with the `incarnation` there is.
            CorruptError: The first frame's CRC does not match; another one ends what is given.
            UnavailableError: The server cannot be reached or does not answer in time.
        """
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
        return await self.ask(call)

    async def batches(
        self,
        stream: str,
        start: int,
        end: int | None = None,
        *,
        partition: int = 0,
        bytes_max: int = FETCH_BYTES,
    ) -> AsyncGenerator[Rows, None]:
        """Read the frames that hold offsets from `start` to `end`, as Arrow batches.

        The first and the last batch may hold rows outside the range: see `slice_rows`. Records
        below `end` that are not there yet are waited for. No row comes twice, though compaction may
        move rows between frames meanwhile; offsets may be missing within frames that it rewrote.

        Args:
            stream: The stream's name.
            start: The first offset, inclusive.
            end: Exclusive; by default the end of what can be read at the time of the call.
            partition: Partition of the stream.
            bytes_max: Bytes of frames to fetch at a time.

        Raises:
            RefusedError: As `fetch`; `STREAM_RECREATED` when that happens meanwhile.
            CorruptError: Damaged or missing frames.
        """
        from penstock.logd.format.batch import decode_body
        from penstock.logd.format.rows import slice_rows

        upto = (await self.offsets(stream, partition)).end if end is None else end
        offset, incarnation = start, None
        while offset < upto:
            fetched = await self.fetch(
                stream,
                offset,
                partition=partition,
                bytes_max=bytes_max,
                wait_ms=1000,
                incarnation=incarnation,
            )
            reached, incarnation = offset, fetched.incarnation
            for header, body in fetched.frames:
                if reached >= upto:
                    return
                if header.base_offset > reached:
                    missing = f"offsets {reached} to {header.base_offset - 1} are missing"
                    raise CorruptError(missing, where=f"{self.server} {stream}/{partition}")
                reached = header.next_offset
                batch = decode_body(body, where=f"{stream}/{header.base_offset}")
                if start < offset and header.base_offset < offset:  # rewritten since the last fetch
                    batch = slice_rows(header, batch, offset)
                yield header, batch
            offset = fetched.next_offset

    async def records(
        self, stream: str, start: int, end: int | None = None, *, partition: int = 0
    ) -> "AsyncGenerator[tuple[int, Record], None]":
        """Read records one by one as (offset, record); for people and tests, not for bulk."""
        from penstock.logd.format.rows import batch_records, slice_rows

        async with aclosing(self.batches(stream, start, end, partition=partition)) as batches:
            async for header, batch in batches:
                for item in batch_records(header, slice_rows(header, batch, start, end)):
                    yield item

    async def follow_batches(
        self, stream: str, start: Position, options: FollowOptions = _DEFAULT
    ) -> AsyncGenerator[Rows, None]:
        """Read a partition for ever, as Arrow batches; goes on after logd was away.

        Yields:
            A frame's header, and those of its rows that are at `start` or above; at least one.

        Raises:
            RefusedError: `OUT_OF_RANGE`, unless the options say where to go on; `UNKNOWN_STREAM`;
                `STREAM_RECREATED`: the stream was deleted and made again meanwhile; `RECORDS_LOST`:
                an unclean election has cost records that were read (with `out_of_range` it goes on
                with those in their place).
            CorruptError: Damaged or missing frames.
            UnavailableError: logd was away for longer than the options allow.
        """
        async with aclosing(self.following(stream, start, options)) as following:
            async for rows in following:
                if not isinstance(rows, int):
                    yield rows

    async def follow(
        self, stream: str, start: Position, options: FollowOptions = _DEFAULT
    ) -> "AsyncGenerator[tuple[int, Record], None]":
        """`follow_batches` one by one, as (offset, record)."""
        from penstock.logd.format.rows import batch_records

        async with aclosing(self.following(stream, start, options)) as following:
            async for rows in following:
                for item in () if isinstance(rows, int) else batch_records(*rows):
                    yield item

    async def following(
        self, stream: str, start: Position, options: FollowOptions = _DEFAULT
    ) -> AsyncGenerator[Rows | int, None]:
        """`follow_batches` that also yields, after each answer, how far it has looked (offset)."""
        reading = Following(self.server, stream, start, options)
        backoff = RetryBackoff(options.retry_s, self._rng)
        while True:
            try:
                try:
                    answer = await self.ask(reading.next_call())
                except RefusedError as refusal:
                    reading.refused(refusal)
                    continue
            except UnavailableError as error:
                await asyncio.sleep(backoff.pause(error, monotonic_ns()))
                continue
            backoff.succeeded()
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
            part, more = await self.ask(call)
            found += part
        return found

    async def set_cursors(self, wanted: Iterable[Cursor], *, rewind: bool = False) -> list[Cursor]:
        """Commit cursors, all of them or none; durable on return.

        Args:
            wanted: One per consumer and partition. One without an incarnation is taken for the
                stream as it is now.
            rewind: Allows an offset below the committed one.

        Raises:
            RefusedError: `CURSOR_BEHIND`, `STREAM_RECREATED`, `UNKNOWN_STREAM`, `OUT_OF_RANGE`
                (beyond the end of the log), `TOO_MANY_CURSORS`, `BAD_CONSUMER`.
        """
        items: Sequence[Cursor] = list(wanted)
        return await self.ask(calls.set_cursors(items, rewind=rewind))

    # Groups.

    def join_group(
        self,
        group: str,
        streams: str | Sequence[str],
        options: GroupOptions = _GROUP,
        *,
        positions: "AsyncPositions | None" = None,
    ) -> "AsyncGroupConsumer":
        """Be a member of a consumer group while `async with` lasts.

        The members share the partitions of the streams. Each reads on from what the group has
        committed, and a partition goes to another once it was let go of, or its reader was not
        seen for its session.

        Args:
            group: Its name; its positions are the cursors of the consumer of that name.
            streams: Streams that this member reads.
            options: Options of the member.
            positions: Function from a partition to the next offset, for a consumer that stores its
                position with its results, and so has every record's result exactly once. It is
                called when a partition is granted; None: the group's cursor counts.
        """
        from penstock.logd.client.group_consumer import AsyncGroupConsumer

        names = (streams,) if isinstance(streams, str) else tuple(streams)
        return AsyncGroupConsumer(self, group, names, options, positions)

    # async only
    def beside(self, timeout_s: float) -> Self:
        """Another client of the same logd, with its own connections and timeout."""
        return type(self)(self.server, timeout_s=timeout_s, access=self.access)

    # end
    async def ask(self, call: Call[Answer]) -> Answer:
        """Make a call of `penstock.logd.client.calls`."""
        return await self._connections.call(call)
