"""A consumer in a group, on an event loop: heartbeats, readings, commits.

`penstock.logd.controller.group_messages.Member` decides what may be read; this sends its
heartbeats, reads what it was granted, and lets go of what is revoked once that is done with and
committed. A partition is read from the position that its group has committed. Committing that
position again, in the epoch of the grant, comes first: from then on no member commits that was
granted the partition before.
"""

import asyncio
import random
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar, assert_never

import pyarrow as pa

from penstock.base.clock import boot_ns, monotonic_ns
from penstock.logd.api.models import Cursor
from penstock.logd.api.operations import End
from penstock.logd.client import calls
from penstock.logd.client.following import (
    CommitPolicy,
    Committing,
    FollowOptions,
    GroupOptions,
    Position,
    RetryBackoff,
    Rows,
    passes,
    position_request,
)
from penstock.logd.controller.group_messages import (
    BEATS_PER_SESSION,
    Answered,
    Ended,
    Grant,
    LetGo,
    Lost,
    Member,
    MemberBeat,
    MemberEvent,
    Revoke,
    SendBeat,
    Tick,
)
from penstock.logd.errors import LogdError, RefusedError, UnavailableError
from penstock.logd.format.batch import Record
from penstock.logd.format.frame import FrameHeader
from penstock.logd.format.rows import batch_records, slice_rows
from penstock.logd.metadata.records import GroupPartition


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A record, with what a consumer stores that keeps its position together with its results.

    Attributes:
        partition: Stream, incarnation and number.
        epoch: Epoch of the grant. A store accepts no position of a lower epoch than it has.
        offset: Offset of the record.
        record: Itself.
    """

    partition: GroupPartition
    epoch: int
    offset: int
    record: Record

    @property
    def next_offset(self) -> int:
        """The position after it."""
        return self.offset + 1


@dataclass(frozen=True, slots=True)
class GroupRows:
    """Rows of a frame; otherwise as `GroupRecord`.

    Attributes:
        header: Header of the frame.
        rows: Those that were not given before.
    """

    partition: GroupPartition
    epoch: int
    header: FrameHeader
    rows: pa.RecordBatch

    @property
    def next_offset(self) -> int:
        """The position after them."""
        return self.header.next_offset


@dataclass(slots=True, eq=False)
class PartitionConsumer:
    """One partition, from its grant until it is let go of or lost.

    Attributes:
        committing: Uncommitted progress; None until the first offset is known.
        task: Task that reads it.
        room: Room for records that were read and not taken.
        revoked: It is to be let go of.
        busy: The consumer has rows of it in hand.
    """

    partition: GroupPartition
    epoch: int
    committing: Committing | None = None
    task: asyncio.Task[None] | None = None
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    revoked: bool = False
    busy: bool = False

    def stop(self) -> None:
        """Read nothing more."""
        if self.task is not None:
            self.task.cancel()

    @property
    def has_pending(self) -> bool:
        """True if records are processed and not committed."""
        return self.committing is not None and self.committing.pending() is not None


class RecordBuffer:
    """Buffered rows of one partition, which are returned one after another.

    Attributes:
        reading: The partition's reader; None: the buffer is empty.
    """

    def __init__(self) -> None:
        self.reading: PartitionConsumer | None = None
        self._rows: Rows | None = None
        self._records: Iterator[tuple[int, Record]] | None = None
        self._next: int | None = None
        self._given: tuple[int, int] | None = None
        self._done: tuple[int, int] | None = None

    def put(self, reading: PartitionConsumer, rows: Rows) -> None:
        """Rows to be given; the hand was empty."""
        self.reading, self._rows = reading, rows

    def drop(self) -> None:
        """The rest is not given."""
        self.reading = self._rows = self._records = None
        self._next = self._given = self._done = None

    def record(self) -> GroupRecord | None:
        """The next record; None: there is none left."""
        if self.reading is None or self._rows is None:
            return None
        if self._records is None:
            self._records = batch_records(*self._rows)
        found = next(self._records, None)
        if found is None:
            return None
        self._next = found[0] + 1
        self._given = self._next, 1
        return GroupRecord(self.reading.partition, self.reading.epoch, *found)

    def rows(self) -> GroupRows | None:
        """Return the remaining rows; None: there are none."""
        if self.reading is None or self._rows is None:
            return None
        (header, rows), self._rows = self._rows, None
        if self._next is not None:  # some of them were given one by one
            rows = slice_rows(header, rows, self._next)
        if not rows.num_rows:
            return None
        self._given = header.next_offset, rows.num_rows
        return GroupRows(self.reading.partition, self.reading.epoch, header, rows)

    def account(self) -> None:
        """The consumer is done with what it was given last."""
        if self._given is not None:
            count = self._given[1] + (self._done[1] if self._done else 0)
            self._done, self._given = (self._given[0], count), None

    def progress(self) -> tuple[PartitionConsumer, int, int] | None:
        """Return what was processed since the last call: reader, offset after it, count."""
        if self.reading is None or self._done is None:
            return None
        done, self._done = self._done, None
        return self.reading, *done


Answer = TypeVar("Answer")

BEATS_S_MIN: Final = 0.5
"""Seconds that a heartbeat may take at least; it is a fifth of the session where that is more."""

_NEVER: Final = CommitPolicy()
_GONE: Final = frozenset({"FENCED", "STREAM_RECREATED", "UNKNOWN_STREAM", "UNKNOWN_PARTITION"})
"""Refusals of a partition that is no more, or another's: the coordinator tells the same soon."""


class GroupCalls(Protocol):
    """Calls of a member to logd: by a client for an event loop, or a test's fake."""

    async def ask(self, call: calls.Call[Answer]) -> Answer:
        """Make a call of `penstock.logd.client.calls`."""

    def following(
        self, stream: str, start: Position, options: FollowOptions
    ) -> AsyncGenerator[Rows | int, None]:
        """Rows without end, and after each answer how far it has looked."""

    def beside(self, timeout_s: float) -> Self:
        """Another client of the same logd, with its own connections."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Membership:
    """Used on one event loop. `start` it; `take` what there is; `close` it.

    Args:
        client: Reads and commits.
        beats: Sends heartbeats; it has a short timeout, so that it is soon at another node.
        group: Name of the group.
        streams: Streams to be read.
        options: Options of the member.
        asks: Whether `take` asks where to begin in a partition, for `begin` to be called.
    """

    def __init__(
        self,
        client: GroupCalls,
        beats: GroupCalls,
        group: str,
        streams: tuple[str, ...],
        options: GroupOptions,
        *,
        asks: bool,
    ) -> None:
        self.id = f"{options.name}-{secrets.token_hex(8)}"
        self.group = group
        self._client, self._beats = client, beats
        self._options = options
        self._asks = asks
        session_ms = int(options.session_s * 1000)
        self._member = Member(group, self.id, streams, session_ms=session_ms)
        self._readings: dict[GroupPartition, PartitionConsumer] = {}
        self._arrived: asyncio.Queue[tuple[PartitionConsumer, Rows | int | LogdError | None] | None]
        self._arrived = asyncio.Queue()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._rng = random.Random()  # noqa: S311 - jitter
        self._failure: BaseException | None = None
        self._lost: list[GroupPartition] = []

    def start(self) -> None:
        """Begin to send heartbeats."""
        self._spawn(self._run())

    def may_read(self, reading: PartitionConsumer) -> bool:
        """Return whether buffered records of a partition may still be returned."""
        partition = reading.partition
        current = self._readings.get(partition) is reading
        return current and not reading.revoked and partition in self._member.reading(boot_ns())

    def held(self) -> list[GroupPartition]:
        """Return the partitions that may be read now, sorted."""
        return sorted(self._member.reading(boot_ns()))

    async def take(self) -> tuple[PartitionConsumer, Rows | None]:
        """Rows of a partition, to be handed out; with None it is asked where to begin in it.

        Raises:
            RefusedError: `FENCED`: others have the partitions; and what reading is refused with.
            CorruptError: Damaged or missing frames.
        """
        while True:
            if self._failure is not None:
                raise self._failure
            arrived = await self._arrived.get()
            if arrived is None:
                continue
            reading, what = arrived
            if what is not None:
                reading.room.release()
            if not self.may_read(reading):
                continue
            if isinstance(what, LogdError):
                raise what
            if isinstance(what, int):
                self._committing(reading).passed(what, monotonic_ns())
                await self._commit_due(reading)
                continue
            reading.busy = what is not None
            return reading, what

    def begin(self, reading: PartitionConsumer, offset: int | None) -> None:
        """Begin to read where a consumer's own store says; None: it has nothing of that."""
        if self._readings.get(reading.partition) is reading and not reading.revoked:
            reading.task = self._spawn(self._read(reading, offset))

    def ask_again(self, reading: PartitionConsumer) -> None:
        """It could not be told where to begin."""
        self._arrived.put_nowait((reading, None))

    async def done(self, reading: PartitionConsumer, next_offset: int, count: int) -> None:
        """The consumer is done with so many more records of what it has in hand."""
        if self._readings.get(reading.partition) is reading:
            self._committing(reading).done(next_offset, count, monotonic_ns())
            await self._commit_due(reading)

    def release(self, reading: PartitionConsumer) -> None:
        """The consumer has nothing of it in hand any more."""
        reading.busy = False
        if reading.revoked and self._readings.get(reading.partition) is reading:
            self._spawn(self._let_go(reading))

    async def commit(self) -> None:
        """Commit everything that is done with.

        Raises:
            RefusedError: `FENCED`: some of it was another's to do by then.
            UnavailableError: It may not be committed.
        """
        lost, self._lost = self._lost, []
        for reading in [one for one in self._readings.values() if one.has_pending]:
            await self._commit(reading)
        if lost:
            names = ", ".join(f"{one.stream}/{one.partition}" for one in sorted(set(lost)))
            raise RefusedError("FENCED", f"the session ended before all of {names} was committed")

    async def close(self) -> None:
        """Commit what is done with, if that is wanted, and tell the others to go on.

        Raises:
            UnavailableError: It may not be committed.
        """
        for reading in self._readings.values():
            reading.stop()
        try:
            if self._options.commit is not None and self._failure is None:
                for reading in [one for one in self._readings.values() if one.has_pending]:
                    with suppress(RefusedError):  # it is another's now
                        await self._commit(reading)
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(LogdError):  # else the session ends by itself
                await self._beats.ask(calls.leave(self.group, self.id))

    # The member.

    async def _run(self) -> None:
        while (due_ns := self._member.next_deadline_ns()) is not None:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0, due_ns - boot_ns()) / 1e9):
                    await self._changed.wait()
            self._handle(Tick())

    def _handle(self, event: MemberEvent) -> None:
        for effect in self._member.handle(event, boot_ns()):
            match effect:
                case SendBeat(beat):
                    self._spawn(self._send(beat))
                case Grant(partition, epoch):
                    self._grant(PartitionConsumer(partition, epoch))
                case Revoke(partition):
                    self._revoke(partition)
                case Lost(partitions):
                    for partition in partitions:
                        self._lose(partition)
                case Ended(message):
                    self._end(message)
                case _:
                    assert_never(effect)
        self._changed.set()

    def _grant(self, reading: PartitionConsumer) -> None:
        self._readings[reading.partition] = reading
        if self._asks:
            self._arrived.put_nowait((reading, None))
        else:
            self.begin(reading, None)

    def _revoke(self, partition: GroupPartition) -> None:
        reading = self._readings.get(partition)
        if reading is None:  # a commit has told so before
            self._handle(LetGo(partition))
            return
        reading.revoked = True
        reading.stop()
        if not reading.busy:
            self._spawn(self._let_go(reading))

    def _lose(self, partition: GroupPartition) -> None:
        reading = self._readings.pop(partition, None)
        if reading is not None:
            reading.stop()
            if reading.has_pending or reading.busy:
                self._lost.append(partition)

    def _end(self, message: str) -> None:
        if message:
            error = RefusedError("GROUP_REFUSED", f"group {self.group!r}: {message}")
        else:
            text = f"{self.id} sent no heartbeat for its session: others have its partitions"
            error = RefusedError("FENCED", text)
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._arrived.put_nowait(None)

    async def _send(self, beat: MemberBeat) -> None:
        try:
            answer = await self._beats.ask(calls.beat(beat))
        except UnavailableError:
            return  # another one follows
        except LogdError as error:
            if not isinstance(error, RefusedError) or not passes(error):
                self._fail(error)
            return
        self._handle(Answered(answer))

    # What it reads.

    async def _read(self, reading: PartitionConsumer, offset: int | None) -> None:
        partition, options = reading.partition, self._options
        try:
            if offset is None:
                offset = await self._claim(reading)
            at = self._cursor(reading, offset)
            reading.committing = Committing(at, options.commit or _NEVER)
            follow = FollowOptions(
                partition=partition.partition,
                subject=options.subject,
                out_of_range=options.out_of_range,
                incarnation=partition.incarnation,
                bytes_max=options.bytes_max,
            )
            async with aclosing(
                self._client.following(partition.stream, offset, follow)
            ) as following:
                async for rows in following:
                    await reading.room.acquire()
                    self._arrived.put_nowait((reading, rows))
        except RefusedError as error:
            if error.code not in _GONE:
                self._arrived.put_nowait((reading, error))
        except LogdError as error:
            self._arrived.put_nowait((reading, error))

    async def _claim(self, reading: PartitionConsumer) -> int:
        """Return the group's position; commits of earlier owners are refused from now on."""
        partition = reading.partition
        found = await self._insist(
            lambda: self._client.ask(
                calls.get_cursor(self.group, partition.stream, partition.partition)
            )
        )
        if found is None:
            offset = await self._insist(lambda: self._first(partition))
        elif found.incarnation == partition.incarnation:
            offset = found.offset
        else:  # of an earlier stream of the name: this one is new, and all of it
            offset = await self._insist(lambda: self._at(partition, "earliest"))
        wanted = self._cursor(reading, offset)
        try:
            return (await self._insist(lambda: self._store(wanted))).offset
        except RefusedError as error:
            if error.code != "CURSOR_BEHIND":
                raise
            # Its own, under the same grant; it was on its way when the cursor was asked for.
            return int(error.detail["offset"])

    async def _first(self, partition: GroupPartition) -> int:
        at = self._options.start
        return at if isinstance(at, int) else await self._at(partition, position_request(at))

    async def _at(self, partition: GroupPartition, at: End | int) -> int:
        return await self._client.ask(calls.offset_at(partition.stream, partition.partition, at))

    async def _let_go(self, reading: PartitionConsumer) -> None:
        """Commit what is done with, and let another read on."""
        if self._options.commit is not None and reading.has_pending:
            with suppress(RefusedError):  # the stream is no more, or it is another's already
                await self._insist(lambda: self._commit(reading))
        if self._readings.get(reading.partition) is reading:
            del self._readings[reading.partition]
            self._handle(LetGo(reading.partition))

    # Commits.

    def _committing(self, reading: PartitionConsumer) -> Committing:
        assert reading.committing is not None, "rows come after it is known where they begin"
        return reading.committing

    async def _commit_due(self, reading: PartitionConsumer) -> None:
        committing = self._committing(reading)
        if self._options.commit is None or committing.due(monotonic_ns()) is None:
            return
        try:
            await self._commit(reading)
        except UnavailableError:
            committing.postponed(monotonic_ns())
        except RefusedError as error:
            if passes(error):
                committing.postponed(monotonic_ns())
            elif error.code in _GONE:
                self._lose(reading.partition)
            else:
                raise

    async def _commit(self, reading: PartitionConsumer) -> None:
        committing = self._committing(reading)
        wanted = committing.pending()
        if wanted is None:
            return
        try:
            await self._store(wanted)
        except RefusedError as error:
            if error.code != "CURSOR_BEHIND":
                raise
            # Its own, under the same grant, was late; or its own store was put back, and counts.
        if committing.pending() == wanted:
            committing.committed()

    async def _store(self, wanted: Cursor) -> Cursor:
        return (await self._client.ask(calls.set_cursors([wanted], member=self.id)))[0]

    def _cursor(self, reading: PartitionConsumer, offset: int) -> Cursor:
        partition = reading.partition
        return Cursor(
            consumer=self.group,
            stream=partition.stream,
            partition=partition.partition,
            offset=offset,
            incarnation=partition.incarnation,
            epoch=reading.epoch,
        )

    async def _insist(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Ask until it is answered, or refused for good."""
        backoff = RetryBackoff(None, self._rng, pause_max_s=0.5)
        while True:
            try:
                return await ask()
            except RefusedError as error:
                if not passes(error):
                    raise
                pause_s = backoff.pause(error, monotonic_ns())
            except UnavailableError as error:
                pause_s = backoff.pause(error, monotonic_ns())
            await asyncio.sleep(pause_s)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)


Item = TypeVar("Item", GroupRecord, GroupRows)


AsyncPositions = Callable[[GroupPartition], Awaitable[int | None]]
"""Async function from a partition to the next offset by the consumer's own store; None: unknown."""


class AsyncGroupConsumer:
    """Made by `AsyncLogClient.join_group`; a member while its `async with` lasts.

    What was given counts as done with when the next is asked for, or `commit` is called.
    """

    def __init__(
        self,
        client: GroupCalls,
        group: str,
        streams: tuple[str, ...],
        options: GroupOptions,
        positions: AsyncPositions | None,
    ) -> None:
        # A session is short: heartbeats soon go to another node.
        beats_s = max(BEATS_S_MIN, options.session_s / BEATS_PER_SESSION)
        self.clients = clients = client, client.beside(beats_s)
        self.membership = Membership(*clients, group, streams, options, asks=positions is not None)
        self.hand = RecordBuffer()
        self._positions = positions

    async def __aenter__(self) -> Self:
        """Join; partitions come when the others have let go of them."""
        self.membership.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Commit what is done with, as the options say, and leave: others go on at once.

        Raises:
            UnavailableError: It may not be committed.
        """
        async with self.clients[1]:
            await self.report()
            await self.membership.close()

    @property
    def member(self) -> str:
        """The id of this membership."""
        return self.membership.id

    def partitions(self) -> list[GroupPartition]:
        return self.membership.held()

    def __aiter__(self) -> AsyncIterator[GroupRecord]:
        """Records, one by one and without end; see `record`."""
        return self._each(self.record)

    def batches(self) -> AsyncIterator[GroupRows]:
        """Rows of whole frames, without end; see `record`."""
        return self._each(self.rows)

    async def record(self) -> GroupRecord:
        """The next record of any partition it was granted; what was given last is done with.

        Waits for one. May be cancelled: nothing is skipped.

        Raises:
            RefusedError: `FENCED`: the session ended and others have the partitions; join again.
                `GROUP_REFUSED`; `OUT_OF_RANGE`, unless the options say where to go on.
            CorruptError: Damaged or missing frames.
        """
        return await self._next(self.hand.record)

    async def rows(self) -> GroupRows:
        """Return all rows of a frame; see `record`."""
        return await self._next(self.hand.rows)

    async def commit(self) -> None:
        """Commit the positions after everything that was given, the last of it too; durable.

        Raises:
            RefusedError: `FENCED`: the session ended before some of it was committed; others do
                that again.
            UnavailableError: It may not be committed.
        """
        self.hand.account()
        await self.report()
        await self.membership.commit()

    # Parts; the blocking consumer calls them, too.

    async def report(self) -> None:
        """Take note of what is done with."""
        progress = self.hand.progress()
        if progress is not None:
            await self.membership.done(*progress)

    async def fill(self) -> PartitionConsumer | None:
        """Have rows in hand on return; or the partition of which it must be told where to begin."""
        await self.report()
        reading = self.hand.reading
        if reading is not None:
            self.hand.drop()
            self.membership.release(reading)
        reading, rows = await self.membership.take()
        if rows is None:
            return reading
        self.hand.put(reading, rows)
        return None

    def pick(self, give: Callable[[], Item | None]) -> Item | None:
        """Return the next buffered item, while its partition may be read."""
        reading = self.hand.reading
        if reading is None or not self.membership.may_read(reading):
            return None
        return give()

    async def _next(self, give: Callable[[], Item | None]) -> Item:
        self.hand.account()
        await self.report()
        while True:
            item = self.pick(give)
            if item is not None:
                return item
            asked = await self.fill()
            if asked is not None:
                await self._begin(asked)

    async def _begin(self, reading: PartitionConsumer) -> None:
        assert self._positions is not None
        try:
            offset = await self._positions(reading.partition)
        except BaseException:
            self.membership.ask_again(reading)
            raise
        self.membership.begin(reading, offset)

    async def _each(self, following: Callable[[], Awaitable[Item]]) -> AsyncIterator[Item]:
        while True:
            yield await following()
