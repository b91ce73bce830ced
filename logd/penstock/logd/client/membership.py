"""One membership in a consumer group, on an event loop: heartbeats, readings, commits.

`core.cluster.group_member` decides what may be read; this sends its heartbeats, reads what it was
granted, and lets go of what is revoked once that is done with and committed. A partition is read
from the position that its group has committed. Committing that position again, in the epoch of the
grant, comes first: from then on nobody commits who was granted the partition before.
"""

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar, assert_never

from penstock.base.clock import boot_ns, monotonic_ns
from penstock.logd.client import calls, group_calls
from penstock.logd.client.answers import Cursor
from penstock.logd.client.committing import CommitPolicy, Committing
from penstock.logd.client.following import FollowOptions, Patience, Rows, passes, position_request
from penstock.logd.client.grouping import GroupOptions, Reading
from penstock.logd.core.cluster.group_member import (
    Answered,
    Ended,
    Grant,
    LetGo,
    Lost,
    Member,
    MemberEvent,
    Revoke,
    SendBeat,
    Tick,
)
from penstock.logd.core.cluster.group_messages import MemberBeat
from penstock.logd.core.cluster.records import GroupPartition
from penstock.logd.errors import LogdError, RefusedError, UnavailableError

if TYPE_CHECKING:
    from penstock.logd.client.asynchronous import AsyncLogClient

Answer = TypeVar("Answer")

BEATS_S_MIN: Final = 0.5
"""Seconds that a heartbeat may take at least; it is a fifth of the session where that is more."""

_NEVER: Final = CommitPolicy()
_GONE: Final = frozenset({"FENCED", "STREAM_RECREATED", "UNKNOWN_STREAM", "UNKNOWN_PARTITION"})
"""Refusals of a partition that is no more, or another's: the coordinator tells the same soon."""


class Membership:
    """Used on one event loop. `start` it; `take` what there is; `close` it.

    Args:
        client: Reads and commits.
        beats: Sends heartbeats; it has a short timeout, so that it is soon at another node.
        group: Name of the group.
        streams: What is to be read.
        options: How.
        asks: Whether `take` asks where to begin in a partition, for `begin` to be called.
    """

    def __init__(
        self,
        client: "AsyncLogClient",
        beats: "AsyncLogClient",
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
        self._readings: dict[GroupPartition, Reading] = {}
        self._arrived: asyncio.Queue[tuple[Reading, Rows | int | LogdError | None] | None]
        self._arrived = asyncio.Queue()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._rng = random.Random()  # noqa: S311 - jitter
        self._failure: BaseException | None = None
        self._lost: list[GroupPartition] = []

    def start(self) -> None:
        """Begin to send heartbeats."""
        self._spawn(self._run())

    def may_read(self, reading: Reading) -> bool:
        """Whether what was read of it may still be handed out."""
        partition = reading.partition
        current = self._readings.get(partition) is reading
        return current and not reading.revoked and partition in self._member.reading(boot_ns())

    def held(self) -> list[GroupPartition]:
        """What may be read now."""
        return sorted(self._member.reading(boot_ns()))

    async def take(self) -> tuple[Reading, Rows | None]:
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

    def begin(self, reading: Reading, offset: int | None) -> None:
        """Begin to read where a consumer's own store says; None: it has nothing of that."""
        if self._readings.get(reading.partition) is reading and not reading.revoked:
            reading.task = self._spawn(self._read(reading, offset))

    def ask_again(self, reading: Reading) -> None:
        """It could not be told where to begin."""
        self._arrived.put_nowait((reading, None))

    async def done(self, reading: Reading, next_offset: int, count: int) -> None:
        """The consumer is done with so many more records of what it has in hand."""
        if self._readings.get(reading.partition) is reading:
            self._committing(reading).done(next_offset, count, monotonic_ns())
            await self._commit_due(reading)

    def release(self, reading: Reading) -> None:
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
                await self._beats.ask(group_calls.leave(self.group, self.id))

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
                    self._grant(Reading(partition, epoch))
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

    def _grant(self, reading: Reading) -> None:
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
            text = f"{self.id} was not heard for its session: others have its partitions"
            error = RefusedError("FENCED", text)
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._arrived.put_nowait(None)

    async def _send(self, beat: MemberBeat) -> None:
        try:
            answer = await self._beats.ask(group_calls.beat(beat))
        except UnavailableError:
            return  # another one follows
        except LogdError as error:
            if not isinstance(error, RefusedError) or not passes(error):
                self._fail(error)
            return
        self._handle(Answered(answer))

    # What it reads.

    async def _read(self, reading: Reading, offset: int | None) -> None:
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

    async def _claim(self, reading: Reading) -> int:
        """Where the group has come, with commits of those before shut out."""
        partition = reading.partition
        found = await self._insist(
            lambda: self._client.get_cursor(self.group, partition.stream, partition.partition)
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

    async def _at(self, partition: GroupPartition, at: str | int) -> int:
        return await self._client.ask(calls.offset_at(partition.stream, partition.partition, at))

    async def _let_go(self, reading: Reading) -> None:
        """Commit what is done with, and let another read on."""
        if self._options.commit is not None and reading.has_pending:
            with suppress(RefusedError):  # the stream is no more, or it is another's already
                await self._insist(lambda: self._commit(reading))
        if self._readings.get(reading.partition) is reading:
            del self._readings[reading.partition]
            self._handle(LetGo(reading.partition))

    # Commits.

    def _committing(self, reading: Reading) -> Committing:
        assert reading.committing is not None, "rows come after it is known where they begin"
        return reading.committing

    async def _commit_due(self, reading: Reading) -> None:
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

    async def _commit(self, reading: Reading) -> None:
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

    def _cursor(self, reading: Reading, offset: int) -> Cursor:
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
        patience = Patience(None, self._rng, pause_max_s=0.5)
        while True:
            try:
                return await ask()
            except RefusedError as error:
                if not passes(error):
                    raise
                pause_s = patience.pause(error, monotonic_ns())
            except UnavailableError as error:
                pause_s = patience.pause(error, monotonic_ns())
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
