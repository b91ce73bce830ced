"""Has what an intake remembers written down, beside the thread that writes the log.

A snapshot is taken on the event loop, which copies references and nothing else. The log's writer
makes durable what lies below it, and a worker writes the file (`penstock.logd.memory`): with a
million ids that takes it about a second, in which appends and acks go on. One file is written at a
time, and one more after it if somebody asked meanwhile.
"""

import asyncio
import contextlib
import threading

import structlog

from penstock.logd.committer import Committer
from penstock.logd.compactor import Compactor
from penstock.logd.core.intake import Intake
from penstock.logd.errors import LogdError
from penstock.logd.memory import FILE_NAME, Memory
from penstock.logd.store import CommitLog
from penstock.logd.upkeep import Upkeep

_log = structlog.get_logger()


class Remembering:
    """Writes down one intake's memory. Used on the event loop, but for `close`.

    Args:
        intake: Whose.
        log: Its log; what is remembered is written beside its segments.
        committer: Writes that log; posts `MemorySynced`, which is answered by `synced`.
        upkeep: Waits, as retention does, for what it may rewrite to be remembered.
        compactor: Works on `upkeep`.
    """

    def __init__(
        self,
        intake: Intake,
        log: CommitLog,
        committer: Committer,
        upkeep: Upkeep,
        compactor: Compactor | None,
    ) -> None:
        self._intake = intake
        self._log = log
        self._committer = committer
        self._upkeep = upkeep
        self._compactor = compactor
        self._under_way = False
        self._again = False
        self._waiting: Memory | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._cuts = 0

    def want(self) -> None:
        """Write down what is remembered by now; soon, if an earlier one is being written."""
        if self._under_way:
            self._again = True
            return
        self._under_way = True
        self._committer.sync_below(Memory.of(self._intake))

    def synced(self, memory: Memory, high_watermark: int) -> None:
        """Write a memory once it is about committed records only; all of them are durable.

        Others may be cut off again: a file that remembers what the log does not have is of no use.
        """
        self._waiting = memory
        self.committed(high_watermark)

    def committed(self, high_watermark: int) -> None:
        """The high watermark is there now."""
        memory = self._waiting
        if memory is not None and memory.offset <= high_watermark + 1:
            self._waiting = None
            self._begin_writing(memory)

    def forget(self) -> None:
        """The log was cut: what is waiting to be written down speaks of records that are gone.

        `discard` must follow, for what has been written.
        """
        self._cuts += 1
        if self._waiting is not None:
            self._waiting, self._under_way = None, False

    def discard(self, end_offset: int) -> None:
        """Remove what was written down beyond where the log ends now. On any thread.

        Only an unclean election cuts so deep: what is left would remember records that are gone,
        and take others for them.

        Raises:
            OSError: The disk failed.
        """
        self._upkeep.was_cut(end_offset)
        directory, disk = self._log.directory, self._log.disk
        with self._lock, contextlib.suppress(LogdError):  # one that is damaged is not used
            memory = Memory.load(directory, disk=disk, vault=self._log.vault)
            if memory is not None and memory.offset > end_offset:
                disk.unlink(directory / FILE_NAME)
                disk.sync_directory(directory)

    def _begin_writing(self, memory: Memory) -> None:
        """Write on a worker."""
        loop, write = asyncio.get_running_loop(), self._write
        writing = loop.run_in_executor(None, write, memory, self._cuts)
        writing.add_done_callback(lambda done: self._written(memory, done))

    def close(self, *, write: bool = False) -> None:
        """Write nothing any more; waits for what is being written. On any thread.

        Args:
            write: But what is remembered now; all of it is durable.
        """
        with self._lock:
            self._closed = True
            if write:
                self._save(Memory.of(self._intake))

    def _write(self, memory: Memory, cuts: int) -> bool:
        with self._lock:
            return not self._closed and cuts == self._cuts and self._save(memory)

    def _save(self, memory: Memory) -> bool:
        try:
            memory.save(self._log.directory, disk=self._log.disk, vault=self._log.vault)
        except OSError as error:  # the log itself has it; the next start reads more of it
            _log.warning("producers not saved", log=str(self._log.directory), error=str(error))
            return False
        return True

    def _written(self, memory: Memory, writing: "asyncio.Future[bool]") -> None:
        self._under_way = False
        if not writing.cancelled() and writing.result():
            self._tell(memory)
        if self._again:
            self._again = False
            self.want()

    def _tell(self, memory: Memory) -> None:
        """Retention, and with the ids compaction too, may touch what lies below it."""
        self._committer.remembered(memory.offset)
        if memory.whole:
            self._upkeep.remembered(memory.offset)
            if self._compactor is not None:
                self._compactor.wake(self._upkeep)
