"""The data directory, opened under its lock: the checkpoint, the spools and other journals."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from penstock.collector.checkpoint.state import (
    SPOOL_ORIGIN,
    URGENT_ORIGIN,
    NewerStateError,
    State,
    read_state,
)
from penstock.collector.sources.files.identity import FileState
from penstock.collector.spool.journal import Journal
from penstock.logd.errors import CorruptError, LogdError, RefusedError
from penstock.logd.storage import REAL_DISK, Checkpoint, DirectoryLock, Disk
from penstock.logd.storage.reader import UNREADABLE
from penstock.service import ConfigError, ExitCode, ServiceError, UnavailableError
from penstock.service.data_format import DataFormat

SPOOL: Final = "spool"
URGENT: Final = "spool-urgent"
QUARANTINE: Final = "quarantine"
DROPS: Final = "drops"
DAMAGED_DROPS: Final = "drops.damaged"
_NAMED_MAX: Final = 10
_SEGMENTS_PER_AGE: Final = 8
"""Segments of a drop journal within its age: what is too old goes a segment at a time."""
DATA_FORMAT: Final = DataFormat("collector")
NEWER_FIX: Final = (
    "a later Penstock wrote it: start that one; or, once that one has sent what it holds, move the"
    " data_dir away; nothing was changed"
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Most bytes of each journal, and the age of the drop journal."""

    spool: int
    urgent: int
    quarantine: int
    drops: int = 64 * 1024**2
    drops_age_s: float = 86_400.0


@dataclass(slots=True)
class DataDirectory:
    """One collector's directory, locked.

    Attributes:
        urgent: The spool of audit and event records.
        foreign: A spool is not the one that the checkpoint was written for.
    """

    path: Path
    lock: DirectoryLock
    checkpoint: Checkpoint
    state: State
    spool: Journal
    urgent: Journal
    quarantine: Journal
    drops: Journal
    foreign: bool

    def fit_to_routing(self, fingerprint: str) -> None:
        """Adapt the state to the route fingerprint that runs now, and log what may come twice."""
        logs = {SPOOL_ORIGIN: self.spool.log, URGENT_ORIGIN: self.urgent.log}
        ends = {origin: log.end_offset for origin, log in logs.items()}
        sizes = {file.origin: _size_of(file) for file in self.state.files}
        ends |= {origin: size for origin, size in sizes.items() if size is not None}
        if waiting := self.state.fit_to_routing(fingerprint, ends):
            structlog.get_logger().info(
                "route_changed",
                origins=waiting[:_NAMED_MAX],
                count=len(waiting),
                reason="delivered records of these origins may be delivered twice",
            )


def _size_of(file: FileState) -> int | None:
    """Bytes that a file has; None where it has not its name any more."""
    try:
        status = Path(file.path).stat()
    except (OSError, ValueError):
        return None
    same = (status.st_dev, status.st_ino) == (file.device, file.inode)
    return status.st_size if same else None


def open_data_directory(
    path: Path, sizes: Sizes, *, where: str, disk: Disk = REAL_DISK
) -> DataDirectory:
    """Lock and open a data directory.

    Args:
        path: The directory; made when it is not there.
        sizes: The sizes of its journals.
        where: Name of the setting with the directory, for messages.
        disk: The checkpoint's and the journals'.

    Raises:
        ConfigError: It cannot be written, or what it holds cannot be read.
        UnavailableError: A collector uses it.
        UnreadableError: The disk does not give what is in a journal.
        DataFormatError: A later version wrote it, or another part of Penstock.
    """
    DATA_FORMAT.check(path)
    lock = _lock(path, where)
    try:
        DATA_FORMAT.open(path)
        checkpoint = Checkpoint(path / "checkpoint", disk=disk)
        state = _load_state(checkpoint)
        spool = _open(path / SPOOL, sizes.spool, disk)
        urgent = _open(path / URGENT, sizes.urgent, disk)
        quarantine = _open(path / QUARANTINE, sizes.quarantine, disk)
        drops = _open_drops(path, sizes, disk)
    except BaseException:
        lock.release()
        raise
    for journal, cursor in ((spool, state.cursor), (urgent, state.urgent_cursor)):
        _tell_given_up(journal, cursor)
    foreign = state.fit_to_spool(
        spool.log.start_offset,
        spool.log.end_offset,
        urgent=(urgent.log.start_offset, urgent.log.end_offset),
    )
    return DataDirectory(path, lock, checkpoint, state, spool, urgent, quarantine, drops, foreign)


def _tell_given_up(journal: Journal, cursor: int) -> None:
    """A collector that is stopped counts what it had read of these; one that is killed cannot."""
    units = journal.log.start_offset - cursor
    if units > 0:
        structlog.get_logger().warning(
            "spool_units_dropped",
            directory=str(journal.directory),
            units_at_most=units,
            reason="the spool was full before the collector was killed",
        )


def _lock(directory: Path, where: str) -> DirectoryLock:
    try:
        for part in (directory, *(directory / name for name in (SPOOL, URGENT, QUARANTINE, DROPS))):
            part.mkdir(parents=True, exist_ok=True)
        return DirectoryLock(directory)
    except OSError as error:
        raise ConfigError(
            f"{where}: data_dir: {directory} cannot be written: {error.strerror}",
            fix="create the directory and let this process's user write to it",
        ) from None
    except RefusedError as error:
        raise UnavailableError(
            f"{where}: data_dir: {error}",
            fix="stop the other collector, or give this one its own data_dir",
        ) from None


def _load_state(checkpoint: Checkpoint) -> State:
    try:
        document = checkpoint.load()
        return State() if document is None else read_state(document)
    except NewerStateError as error:
        raise ConfigError(f"{checkpoint.path}: {error}", fix=NEWER_FIX) from None
    except (LogdError, KeyError, ValueError, TypeError) as error:
        if isinstance(error, RefusedError):
            raise ConfigError(str(error), fix=NEWER_FIX) from None
        raise ConfigError(
            f"{checkpoint.path}: the checkpoint cannot be read: {error}",
            fix="restore it from a copy; if there is none, move the data_dir away: the "
            "collector then reads all files again and what the spool held is not sent",
        ) from None


class UnreadableError(ServiceError):
    """The disk does not give what a journal needs.

    Args:
        directory: The journal's.
        error: The error of the read.
    """

    exit_code = ExitCode.IO

    def __init__(self, directory: Path, error: OSError) -> None:
        copied = f"dd if={error.filename or 'FILE'} of=COPY bs=4096 conv=noerror,sync"
        command = "penstock collector spool"
        super().__init__(
            f"{directory}: cannot be read: {error}",
            fix="look at what the kernel says of its disk, and start again. What it never gives"
            f" again is lost, the rest is not: put a copy of the file in its place (`{copied}`),"
            f" look at it with `{command} check {directory}`,"
            f" and mend it with `{command} repair {directory}`",
        )


def _open_drops(path: Path, sizes: Sizes, disk: Disk) -> Journal:
    """Open the drop journal, or an empty one where it is damaged."""
    age_s = sizes.drops_age_s / _SEGMENTS_PER_AGE
    try:
        return _open(path / DROPS, sizes.drops, disk, segment_age_s=age_s)
    except (_DamagedJournalError, UnreadableError) as error:
        aside = path / DAMAGED_DROPS
        structlog.get_logger().error("drops_set_aside", directory=str(aside), error=error.reason)
        shutil.rmtree(aside, ignore_errors=True)
        (path / DROPS).rename(aside)
        (path / DROPS).mkdir()
        return _open(path / DROPS, sizes.drops, disk, segment_age_s=age_s)


class _DamagedJournalError(ConfigError):
    """The segments of a journal contradict each other."""


def _open(
    directory: Path, bytes_max: int, disk: Disk, *, segment_age_s: float | None = None
) -> Journal:
    journal = Journal(directory, bytes_max=bytes_max, disk=disk, segment_age_s=segment_age_s)
    try:
        journal.open()
    except RefusedError as error:
        raise ConfigError(f"{directory}: cannot be opened: {error}", fix=NEWER_FIX) from None
    except (CorruptError, OSError) as error:
        if isinstance(error, OSError) and error.errno in UNREADABLE:
            raise UnreadableError(directory, error) from None
        kind = _DamagedJournalError if isinstance(error, CorruptError) else ConfigError
        raise kind(
            f"{directory}: cannot be opened: {error}",
            fix=f"look at it with `penstock collector spool check {directory}`, "
            f"then mend it with `penstock collector spool repair {directory}`",
        ) from None
    return journal
