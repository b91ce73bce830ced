"""Writes snapshots of an intake's dedup state, beside the thread that writes the log.

A snapshot is taken on the event loop, which copies references and nothing else. The log's writer
makes durable what lies below it, and a worker writes the file
(`penstock.logd.partition.producer_snapshot`): with a million ids that takes it about a second, in
which appends and acks go on. One file is written at a time, and one more after it if one was
requested meanwhile.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Final

import structlog

from penstock.logd.errors import LogdError
from penstock.logd.intake.intake import Intake
from penstock.logd.partition.log_writer import LogWriter
from penstock.logd.partition.producer_snapshot import FILE_NAME, ProducerSnapshot
from penstock.logd.storage import CommitLog

_RETRY_S: Final = 1.0
"""Seconds until what came from another replica, and could not be written, is written again."""

_log = structlog.get_logger()


class Snapshotter:
    """Writes down one intake's memory. Used on the event loop, but for `close`.

    Args:
        intake: The intake whose state is written.
        log: Its log; snapshots are written beside its segments.
        log_writer: Writes that log; posts `ProducerSnapshotSynced`, which is answered by `synced`.
        high_watermark: Returns the high watermark.
        saved: Called with the offset of a snapshot that has been written down, ids included.
        installed: Called when what came from another replica has been, too.
        is_saved: Whether the current dedup state is on disk.
    """

    def __init__(  # noqa: PLR0913 - what it writes down, and who hears of it
        self,
        intake: Intake,
        log: CommitLog,
        log_writer: LogWriter,
        *,
        high_watermark: Callable[[], int],
        saved: Callable[[int], None],
        installed: Callable[[], None],
        is_saved: bool,
    ) -> None:
        self._intake = intake
        self._log = log
        self._log_writer = log_writer
        self._high_watermark = high_watermark
        self._report_saved = saved
        self._report_installed = installed
        self._saved_offset = intake.next_offset if is_saved else -1
        self._under_way = False
        self._again = False
        self._installed = False
        self._lock = threading.Lock()
        self._closed = self._rebuilding = False
        self._cuts = self._cuts_then = 0

    def installed(self) -> None:
        """Something came from another replica: what is being written does not have it."""
        self._installed, self._saved_offset = False, -1
        self.want()

    def want(self) -> None:
        """Write a snapshot of the current state; soon, if an earlier one is being written.

        Of committed records only: others may be cut off again, and a file that has what the
        log does not have is of no use. While the state is rebuilt only a part of it is there.
        """
        if self._under_way or self._rebuilding:
            self._again = True
            return
        self._under_way = True
        self._installed, self._cuts_then = self._intake.dedup.unsaved, self._cuts
        self._log_writer.submit(ProducerSnapshot.of(self._intake, self._high_watermark() + 1))

    def synced(self, memory: ProducerSnapshot) -> None:
        """Write a memory; all of it is durable."""
        loop, write = asyncio.get_running_loop(), self._write
        writing = loop.run_in_executor(None, write, memory, self._cuts_then)
        writing.add_done_callback(lambda done: self._written(memory, done))

    def forget(self) -> None:
        """The log was cut: what is to be written down may speak of records that are gone.

        `discard` must follow, for what has been written. Nothing is written before `rebuilt`.
        """
        self._rebuilding = True
        self._cuts += 1
        self._saved_offset = -1

    def rebuilt(self) -> None:
        """The state has been rebuilt from the log as it is now: write it if that was wanted."""
        self._rebuilding = False
        self._want_again()

    def discard(self, end_offset: int) -> None:
        """Remove what was written down beyond where the log ends now. On any thread.

        Only an unclean election cuts so deep: what is left would have ids of records that are gone,
        and take others for them.

        Raises:
            OSError: The disk failed.
        """
        directory, disk = self._log.directory, self._log.disk
        with self._lock, contextlib.suppress(LogdError):  # one that is damaged is not used
            memory = ProducerSnapshot.load(directory, disk=disk, cipher=self._log.cipher)
            if memory is not None and memory.offset > end_offset:
                disk.unlink(directory / FILE_NAME)
                disk.sync_directory(directory)

    def close(self, *, write: bool = False) -> None:
        """Write nothing any more; waits for what is being written. On any thread.

        Args:
            write: But the current state; all of it is durable. One that is only partly rebuilt
                is not written: a start would take it for whole, and not read the log.
        """
        with self._lock:
            self._closed = True
            # A repeat is not stored, and yet its producer was seen.
            nothing_came = not self._intake.counts.received
            is_saved = nothing_came and self._intake.next_offset == self._saved_offset
            if write and not self._rebuilding and not is_saved:
                self._save(ProducerSnapshot.of(self._intake))

    def _write(self, memory: ProducerSnapshot, cuts: int) -> bool:
        with self._lock:
            return not self._closed and cuts == self._cuts and self._save(memory)

    def _save(self, memory: ProducerSnapshot) -> bool:
        try:
            memory.save(self._log.directory, disk=self._log.disk, cipher=self._log.cipher)
        except OSError as error:  # the log itself has it; the next start reads more of it
            directory = str(self._log.directory)
            _log.warning("producer_snapshot_write_failed", directory=directory, error=str(error))
            return False
        return True

    def _written(self, memory: ProducerSnapshot, writing: "asyncio.Future[bool]") -> None:
        self._under_way = False
        if not writing.cancelled() and writing.result():
            self._report(memory)
        elif self._intake.dedup.unsaved and not self._closed:
            asyncio.get_running_loop().call_later(_RETRY_S, self.want)
        self._want_again()

    def _want_again(self) -> None:
        if self._again:
            self._again = False
            self.want()

    def _report(self, memory: ProducerSnapshot) -> None:
        """Retention and compaction may touch what lies below it, if the ids are in it, too."""
        if not memory.whole:
            return
        self._report_saved(memory.offset)
        if self._installed:
            self._installed = self._intake.dedup.unsaved = False
            self._report_installed()
