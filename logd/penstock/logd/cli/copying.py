"""Copying a partition's range into a backup while the stream goes on, or saying why it cannot be.

The range was there when the backup began. Meanwhile limits of the stream, or a purge, may delete
its beginning; an election that loses records may take back what was copied already, or the range's
end; the stream may be deleted. What was copied then belongs to no one history, so it is never
finished.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from penstock.base.clock import SystemClock
from penstock.logd.backup import FILE_BYTES, PARTIAL, FileWriter, Manifest, cut, empty_frame
from penstock.logd.cli.progress import Progress
from penstock.logd.cli.server import AskRefusedError
from penstock.logd.client import Fetched, LogClient, calls
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.rows import Frame
from penstock.service import ExitCode, ServiceError

SHORT_S: Final = 30.0
"""For so long the end of what is committed may be below the range's end: after an election the new
leader learns what was committed, which takes a moment."""

_FETCH_BYTES: Final = 4 * 1024 * 1024
_WAIT_MS: Final = 1000
_PAUSE_S: Final = 0.5


class BackupOvertakenError(ServiceError):
    """What was to be copied is no more what it was (exit code 65)."""

    exit_code = ExitCode.DATA


def check_begun(manifest: Manifest, directory: Path) -> None:
    """Look whether what an earlier run has copied can be told from another history.

    Raises:
        BackupOvertakenError: A release that did not ask for the history has copied some of it.
    """
    for number, part in enumerate(manifest.partitions):
        if part.files and part.epoch is None:
            message = f"{directory}: an older release of Penstock began this backup, and nobody"
            message += f" can tell whether what it has of {manifest.stream}/{number} is still there"
            raise BackupOvertakenError(message, fix="begin anew in another directory")


class PartitionCopy:
    """One partition's way into a backup.

    Args:
        log: Where from.
        manifest: Of the backup; it is saved with each file.
        number: Of the partition.
        directory: Of the backup.
        progress: Is told.
        pause_s: Seconds before a leader that is behind is asked again.
        short_s: Seconds for which nothing may come though the range goes on.
    """

    def __init__(  # noqa: PLR0913 - what is copied, whither, and how patiently
        self,
        log: LogClient,
        manifest: Manifest,
        number: int,
        directory: Path,
        progress: Progress,
        *,
        pause_s: float = _PAUSE_S,
        short_s: float = SHORT_S,
    ) -> None:
        self._log = log
        self._manifest = manifest
        self._number = number
        self._part = manifest.partitions[number]
        self._directory = directory
        self._progress = progress
        self._clock = SystemClock()
        self._pause_s, self._short_s = pause_s, short_s
        self._short_ns: int | None = None

    def run(self, file_bytes: int = FILE_BYTES) -> None:
        """Copy what no file has yet.

        Raises:
            BackupOvertakenError: It cannot be finished any more.
            CorruptError: What comes is damaged.
            UnavailableError: logd does not answer; it goes on where it stopped.
            OSError: The disk failed.
        """
        part = self._part
        while part.reached < part.end:
            writer = FileWriter(self._directory, self._number, part.reached)
            try:
                self._fill(writer, file_bytes)
            except BaseException:
                writer.abandon()
                raise
            part.files.append(writer.close())
            self._manifest.save(self._directory / PARTIAL)

    def _fill(self, writer: FileWriter, file_bytes: int) -> None:
        """Write frames until the file is large enough, or the partition's end is there."""
        end = self._part.end
        while writer.end < end and writer.bytes < file_bytes:
            for frame in self._next(writer.end):
                if writer.end >= end or writer.bytes >= file_bytes:
                    break
                if frame[0].base_offset > writer.end:
                    message = f"offsets {writer.end} to {frame[0].base_offset - 1} are missing"
                    raise CorruptError(message, where=self._label)
                header, body = cut(frame, writer.end, end)
                writer.write(header, body)
                self._progress.advance(header.last_offset_delta + 1, header.frame_length)

    def _next(self, offset: int) -> list[Any]:
        """The frames from an offset on; none: not yet."""
        part = self._part
        call = calls.fetch(
            self._manifest.stream,
            offset,
            partition=self._number,
            bytes_max=_FETCH_BYTES,
            wait_ms=_WAIT_MS,
            incarnation=self._manifest.incarnation,
            log_epoch=part.epoch,
            where=self._log.server,
        )
        with self._explained(offset):
            try:
                fetched: Fetched | None = self._log.ask(call)
            except RefusedError as error:
                if error.code != "OUT_OF_RANGE" or _number(error, "earliest") > offset:
                    raise
                fetched = None  # a new leader does not know yet what was committed
        if fetched is not None and (fetched.frames or fetched.next_offset > offset):
            self._short_ns = None
            if fetched.log_epoch is None:
                message = f"{self._label}: logd does not say the epoch of what it sends (log_epoch)"
                raise AskRefusedError(message, fix="upgrade logd, and run the same command again")
            part.epoch = fetched.log_epoch
            return fetched.frames or [self._skipped(offset, min(fetched.next_offset, part.end))]
        self._check_short(offset)
        if fetched is None:
            time.sleep(self._pause_s)
        return []

    def _skipped(self, first: int, upto: int) -> Frame:
        """What stands for damage that the client was told to skip."""
        self._part.skipped.append([first, upto])
        return empty_frame(first, upto)

    def _check_short(self, offset: int) -> None:
        """Nothing came though the range goes on: that is not for long, or its end is lost."""
        now_ns = self._clock.monotonic_ns()
        if self._short_ns is None:
            self._short_ns = now_ns
        elif now_ns - self._short_ns > self._short_s * 1e9:
            what = f"{self._label}: nothing is committed from offset {offset} on, and when the"
            raise self._overtaken(f"{what} backup began it was up to {self._part.end}")

    @contextmanager
    def _explained(self, offset: int) -> Iterator[None]:
        try:
            yield
        except RefusedError as error:
            where = self._label
            match error.code:
                case "OUT_OF_RANGE":
                    upto = _number(error, "earliest")
                    message = f"{where}: offsets {offset} to {upto - 1} were deleted, by the"
                    message += " stream's limits or a purge, before they were copied"
                case "RECORDS_LOST":
                    begin = _number(error, "offset")
                    message = f"{where}: an election lost records from offset {begin} on, which"
                    message += " are in this backup already; others are there now"
                case "STREAM_RECREATED" | "UNKNOWN_STREAM":
                    message = f"{where}: the stream was deleted meanwhile"
                case _:
                    raise
            raise self._overtaken(message) from None

    def _overtaken(self, message: str) -> BackupOvertakenError:
        fix = f"this backup can never be finished: remove {self._directory} and begin again"
        return BackupOvertakenError(message, fix=fix)

    @property
    def _label(self) -> str:
        return f"{self._manifest.stream}/{self._number}"


def _number(error: RefusedError, key: str) -> int:
    return int(error.detail[key])
