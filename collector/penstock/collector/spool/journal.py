"""Group commit on a commit log of bounded size: what is offered during one sync goes into the next.

One thread writes. The event loop hands it what has gathered, and answers each offer once the sync
returned: a result is a promise that the entry survives a power loss. After a failed write the log
is opened again, cut back to what was synced, and the next entries are tried on that.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from penstock.base.uncancelled import uncancelled
from penstock.collector import failpoints
from penstock.collector.errors import SpoolFailedError, SpoolFullError, UndecodableError
from penstock.logd.errors import NO_SPACE, CorruptFrameError, LogdError
from penstock.logd.format.batch import Record, build_batch, decode_body, describe_body, encode_body
from penstock.logd.format.frame import HEADER_SIZE, NO_PRODUCER, FrameHeader
from penstock.logd.storage import REAL_DISK, CommitLog, Disk, LogConfig

_ENTRY_OVERHEAD_BYTES = HEADER_SIZE + 1024
_SEGMENTS_PER_JOURNAL = 8
_PROBE: Final = "probe.tmp"
"""A name that opening the log removes."""
_PROBE_BYTES_MAX: Final = 1 << 20
_LOOK_S: Final = 10.0
"""Pause between looks at a disk that failed while nothing is written."""
_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Entry:
    """One frame to be written: one record, and whom it is from."""

    record: Record
    producer_id: bytes = NO_PRODUCER
    sequence: int = 0

    @property
    def size(self) -> int:
        """Bytes that it will take, roughly; never too few."""
        return entry_size(len(self.record.value or b""))


def entry_size(value_bytes: int) -> int:
    """Bytes that an entry will take, roughly; never too few."""
    return value_bytes + _ENTRY_OVERHEAD_BYTES


class Journal:
    """A bounded commit log with group commit. Open it before anything else is called.

    Args:
        directory: The log's directory.
        bytes_max: Bound of all entries.
        disk: Disk of the journal.
        look_s: Seconds between two checks of a failed disk while nothing is written.
        segment_age_s: Seconds after which an entry goes into a new segment; None: only sizes count.

    Attributes:
        failure: Why the disk did not do something; empty once it does.
        failures: Number of failed writes.
        lacks_space: The disk was full when something was written last.
        wants_room: Something failed since the last commit: what could not be given back is tried
            again, and any room counts.
        commits: Groups that were made durable.
    """

    def __init__(
        self,
        directory: Path,
        *,
        bytes_max: int,
        disk: Disk = REAL_DISK,
        look_s: float = _LOOK_S,
        segment_age_s: float | None = None,
    ) -> None:
        self.directory = directory
        self._disk = disk
        self._look_s = look_s
        self.bytes_max = bytes_max
        self._config = LogConfig(
            max_segment_bytes=max(bytes_max // _SEGMENTS_PER_JOURNAL, 1 << 18),
            segment_age_s_max=segment_age_s,
        )
        self._log: CommitLog | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"journal-{directory.name}")
        self._waiting: list[tuple[Entry, asyncio.Future[int]]] = []
        self._waiting_bytes = 0
        self._wake = asyncio.Event()
        self._committing = asyncio.Lock()
        self._room = asyncio.Event()
        self._durable = asyncio.Event()
        self._promised = 0
        self._synced = 0  # the thread's own: what it wrote may be promised when the loop runs again
        self.failure = ""
        self.failures = 0
        self.wants_room = self.lacks_space = False
        self._refused_bytes = 0  # of the last group, if it could not be written
        self.commits = 0

    def open(self) -> None:
        """Open or recover the log.

        Raises:
            LogdError: It is damaged beyond recovery.
            OSError: The disk failed.
        """
        self._log = CommitLog.open(self.directory, self._config, disk=self._disk)
        self._promised = self._synced = self._log.end_offset

    def resize(self, bytes_max: int) -> None:
        """Another bound holds from now on; what is there stays."""
        self.bytes_max = bytes_max
        self._room.set()

    @property
    def log(self) -> CommitLog:
        """The open log; replaced after a failure, so do not keep it."""
        assert self._log is not None, "the journal is not open"
        return self._log

    @property
    def durable_offset(self) -> int:
        """Everything below was promised."""
        return self._promised

    @property
    def used_bytes(self) -> int:
        """Bytes on disk and about to be."""
        return self.log.size_bytes + self._waiting_bytes

    def has_room(self, size: int) -> bool:
        return self.used_bytes + size <= self.bytes_max

    async def wait_for_room(self, size: int) -> None:
        """Return when an entry of this size fits."""
        while not self.has_room(size):
            if size > self.bytes_max:
                raise SpoolFullError(f"{size} bytes never fit", for_ever=True)
            self._room.clear()
            await self._room.wait()

    def offer(self, entry: Entry, *, always: bool = False) -> asyncio.Future[int]:
        """Write an entry soon; the future yields its offset once it is durable.

        Args:
            entry: Entry to write.
            always: Also when there is no room; for what is small and makes room in the end.

        The future raises `SpoolFailedError` when nothing was promised.

        Raises:
            SpoolFullError: There is no room now.
        """
        if not always and not self.has_room(entry.size):
            raise SpoolFullError(f"{self.directory} holds {self.used_bytes} bytes")
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((entry, future))
        self._waiting_bytes += entry.size
        self._wake.set()
        return future

    async def run(self) -> None:
        """Commit what is offered, and look at a disk that failed, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._look_s if self.failure else None):
                    await self._wake.wait()
            except TimeoutError:
                await self.takes_writes()
            else:
                await self.commit()

    async def commit(self) -> None:
        """Write and sync everything offered so far; on return nothing of it is on its way.

        Cancelling it does not leave an offer without an answer.
        """
        async with self._committing:
            await uncancelled(self._commit())

    async def _commit(self) -> None:
        self._wake.clear()
        group, self._waiting = self._waiting, []
        if not group:
            return
        loop = asyncio.get_running_loop()
        try:
            first = await loop.run_in_executor(self._thread, self._write, [e for e, _ in group])
        except (LogdError, OSError) as error:
            self._fail(group, error)
            return
        finally:
            self._waiting_bytes -= sum(entry.size for entry, _ in group)
        self.failure, self._refused_bytes = "", 0
        self.wants_room = self.lacks_space = False
        self.commits += 1
        self._promised = first + len(group)
        for offset, (_, future) in enumerate(group, first):
            if not future.done():
                future.set_result(offset)
        self._durable.set()
        self._room.set()  # entries were counted with more bytes than they took

    def _fail(self, group: list[tuple[Entry, asyncio.Future[int]]], error: Exception) -> None:
        """Refuse the group and all that came after it, so that nothing overtakes what failed."""
        self._failed(error)
        self._refused_bytes = sum(entry.size for entry, _ in group)
        later, self._waiting = self._waiting, []
        self._waiting_bytes -= sum(entry.size for entry, _ in later)
        for _, future in (*group, *later):
            if not future.done():
                future.set_exception(SpoolFailedError(self.failure))
        self._room.set()

    async def wait_durable(self, offset: int) -> None:
        """Return when something at or above `offset` is durable."""
        while self._promised <= offset:
            self._durable.clear()
            await self._durable.wait()

    def frames(self, offset: int, *, salvage: bool = False) -> Iterator[tuple[FrameHeader, bytes]]:
        """Promised frames from an offset on; with `salvage`, what cannot be had is damage."""
        return self.log.frames(offset, upto=self._promised, salvage=salvage)

    async def takes_writes(self) -> bool:
        """Return whether the disk takes a write beside the log, or reports that it is full.

        `failure` is reset if the disk takes as much as it refused last.
        """
        loop = asyncio.get_running_loop()
        try:
            async with self._committing:  # who holds it has the disk's room to itself
                await loop.run_in_executor(self._thread, self._keep_probe)
        except OSError as error:
            return error.errno in NO_SPACE
        except LogdError:  # the log cannot be opened again
            return False
        self.failure, self._refused_bytes, self.lacks_space = "", 0, False
        return True

    async def first_segment_end(self) -> int | None:
        """Return where the oldest segment ends; None while it is the one that is written.

        What is written goes on in a new one if there is none but it. None, too, where the disk does
        not let that be: `failure` says why.
        """
        return await self._try(self._first_segment_end)

    async def delete_before(self, offset: int) -> bool:
        """Give back the room of segments that end at or below `offset`.

        Returns:
            False where the disk does not let us give back now what is to be: it may be full, or
            `failure` says why.
        """
        done = await self._try(partial(self._delete, offset))
        self._room.set()
        return bool(done)

    async def _try(self, work: Callable[[], _T]) -> _T | None:
        """Do something that may wait, in the journal's thread; None if the disk failed."""
        loop = asyncio.get_running_loop()
        try:
            done = await loop.run_in_executor(self._thread, work)
        except (LogdError, OSError) as error:
            self._failed(error)
            return None
        if not (self.log.failure or self._refused_bytes):
            self.failure = ""
        return done

    def _failed(self, error: Exception) -> None:
        self.failure, self.wants_room = str(error), True
        cause = error.__cause__ or error
        self.lacks_space = isinstance(cause, OSError) and cause.errno in NO_SPACE
        self.failures += 1
        self._wake.set()  # `run` looks at the disk from now on

    def held(self) -> asyncio.Lock:
        """Return the lock within which nothing that is offered is written."""
        return self._committing

    async def close(self) -> None:
        """Commit what is left and close the log; what cannot be written is lost."""
        await self.commit()
        await self._try(self.log.close)
        self._thread.shutdown()

    # In the journal's thread.

    def _write(self, entries: list[Entry]) -> int:
        log = self._sound_log()
        first, name = log.end_offset, self.directory.name
        failpoints.passed(f"{name}_before_write")
        log.append([_frame(entry, offset) for offset, entry in enumerate(entries, first)])
        failpoints.passed(f"{name}_before_sync")
        self._synced = log.sync()
        failpoints.passed(f"{name}_after_sync")
        return first

    def _sound_log(self) -> CommitLog:
        """The log, opened again after a failure, with nothing but what was synced."""
        if self.log.failure:
            self._log = CommitLog.open(self.directory, self._config, disk=self._disk)
            self.log.truncate_to(self._synced)
        return self.log

    def _keep_probe(self) -> None:
        self._sound_log()
        path = self.directory / _PROBE
        size = min(self._refused_bytes, _PROBE_BYTES_MAX)
        file = self._disk.create(path)
        try:
            file.write(0, [_PROBE.encode() + bytes(size)])
            file.sync()
        finally:
            file.close()
            self._disk.unlink(path)

    def _first_segment_end(self) -> int | None:
        log = self.log
        if log.failure or (log.segment_count == 1 and not log.roll()):
            return None
        return log.segments()[0].next_offset

    def _delete(self, offset: int) -> bool:
        log = self._sound_log()
        failpoints.passed(f"{self.directory.name}_before_delete")
        due = log.size_bytes > self.bytes_max // _SEGMENTS_PER_JOURNAL
        everything = offset == log.end_offset and (due or self.wants_room)  # full: any room counts
        if everything:
            log.roll()
        start = log.delete_before(offset)
        failpoints.passed(f"{self.directory.name}_after_delete")
        return start == offset or not everything


class Read(Protocol[_T_co]):
    """Reads a log from an offset on; with `salvage`, what the disk does not give is damage."""

    def __call__(self, offset: int, /, *, salvage: bool) -> Iterator[_T_co]:
        """Read on."""
        ...


def undamaged(read: Read[_T], offset: int, *, salvage: bool = False) -> Iterator[_T]:
    """Read from an offset on, so that damage costs only the entries it lies in.

    Args:
        read: The log's method that reads.
        offset: The first one wanted.
        salvage: Whether to skip what the disk cannot read now; for callers that only look, or ask
            again later. A caller that acts on missing entries must not.

    Raises:
        OSError: The disk does not give something.
    """
    while True:
        try:
            yield from read(offset, salvage=salvage)
        except CorruptFrameError as error:
            if error.next_offset <= offset:
                raise
            offset = error.next_offset
        else:
            return


def _frame(entry: Entry, offset: int) -> tuple[FrameHeader, bytes]:
    batch = build_batch([entry.record])
    body = encode_body(batch)
    header = describe_body(
        body, batch, producer_id=entry.producer_id, producer_sequence=entry.sequence
    )
    return header.at(base_offset=offset, leader_epoch=0), body


def read_record(body: bytes) -> tuple[str, dict[str, bytes], bytes]:
    """Return the subject, headers and value of the record in an entry's frame.

    Raises:
        UndecodableError: It does not hold one record.
    """
    try:
        batch = decode_body(body)
        (subject,), (pairs,), (value,) = (
            batch.column(name).to_pylist() for name in ("subject", "headers", "value")
        )
    except (LogdError, ValueError) as error:
        raise UndecodableError(f"not a record: {error}") from None
    headers = dict(pairs or ())
    if not isinstance(value, bytes) or None in headers.values():
        raise UndecodableError("a record without a value")
    return subject, headers, value
