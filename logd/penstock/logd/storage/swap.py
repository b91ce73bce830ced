"""Replacement of segments by a rewritten one, reset of a log, and what a crash leaves of either.

Compaction rewrites segments, and so does filling damaged ranges (`penstock.logd.storage.rewrite`).

The new segment stands for exactly the offsets of a run of sealed segments, `base` to `end`, end
exclusive. Its file has three names one after another:

    1  `<base>-<end>.swap.tmp`  written, then synced
    2  `<base>-<end>.swap`      renamed, directory synced: from here on it replaces the run
    3                           the run's index files and, but for the first, log files removed,
                                directory synced
    4  `<base>.log`             renamed over the run's first log file, directory synced

Before 2 is durable the run is whole, so a temporary file is simply removed (row C of the recovery
table). After it, the new file is whole and durable, so opening the log goes on from where it was
interrupted (row N): whatever is left of the run is also in the new file. The first log file is
replaced and never removed, so at every moment a file of the name `<base>.log` or a swap file says
where the run's offsets are.

A swap file that does not check out has rotted. If the run is still whole, the file is of no use and
is removed (row O); else it is the only one to have all of the run's records, takes its place all
the same, and its damage is reported as any other (row P). What was left of the run may have what is
damaged: it is set aside as `<base>.replaced`, for people.

How a log becomes empty and begins at another offset, and what a crash leaves of that.

    1  `<start>.reset`  an empty file is made, directory synced: from here on the log is empty
    2                   all segments removed, with the files that speak of their records (epochs,
                        producers, synced mark), directory synced
    3  `<start>.log`    made, empty, directory synced
    4                   `<start>.reset` removed, directory synced

Before 1 is durable the log is as it was, or reset. After it, opening the log begins with step 2
again and ends it (row R of the recovery table). Nothing is appended before 4 is durable: so
whatever lies beside a reset file is to go, a log file of the same name included.
"""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Final

from msgspec import Struct

from penstock.logd.storage.checkpoint import EPOCHS_NAME, MARK_NAME, MEMORY_NAME
from penstock.logd.storage.disk import Disk, File
from penstock.logd.storage.scan import Damage, FrameReader, scanner, walk
from penstock.logd.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    segment_path,
)

SWAP_SUFFIX: Final = ".swap"
REPLACED_SUFFIX: Final = ".replaced"
_DIGITS: Final = 20


class Swap(Struct, frozen=True):
    """A rewritten segment's file and the range that it replaces.

    Attributes:
        base_offset: Offset of the run's first segment.
        end_offset: After the run's last record.
    """

    directory: Path
    base_offset: int
    end_offset: int

    @property
    def path(self) -> Path:
        """The swap file."""
        name = f"{self.base_offset:0{_DIGITS}d}-{self.end_offset:0{_DIGITS}d}{SWAP_SUFFIX}"
        return self.directory / name

    @property
    def temporary_path(self) -> Path:
        """The file while it is written."""
        return self.path.with_name(self.path.name + ".tmp")

    def publish(self, disk: Disk) -> None:
        """Steps 2: the file was synced; when this returns, it replaces the run.

        Raises:
            OSError: It may or may not: `withdraw` it.
        """
        disk.rename(self.temporary_path, self.path)
        disk.sync_directory(self.directory)

    def withdraw(self, disk: Disk) -> None:
        """Take the file back; the run was not touched.

        Raises:
            OSError: The file stays, and would replace the run when the log is opened again.
        """
        if disk.exists(self.path):
            disk.unlink(self.path)

    def set_aside(self, disk: Disk, bases: Iterable[int]) -> None:
        """Keep what is left of the run's log files under other names; `complete` must follow.

        Raises:
            OSError: The disk failed; opening the log again goes on.
        """
        for base in bases:
            if self.base_offset <= base < self.end_offset:
                log = segment_path(self.directory, base)
                disk.rename(log, log.with_suffix(REPLACED_SUFFIX))

    def complete(self, disk: Disk, bases: Iterable[int]) -> None:
        """Steps 3 and 4, from wherever they were interrupted.

        Args:
            disk: The file system.
            bases: Base offsets of the log files in the directory.

        Raises:
            OSError: The disk failed; opening the log again completes it.
        """
        for base in bases:
            if self.base_offset <= base < self.end_offset:
                log = segment_path(self.directory, base)
                gone = [log] if base != self.base_offset else []
                indexes = [log.with_suffix(suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
                for path in (*gone, *indexes):
                    if disk.exists(path):  # not after a crash, or when it was set aside
                        disk.unlink(path)
        disk.sync_directory(self.directory)
        disk.rename(self.path, segment_path(self.directory, self.base_offset))
        disk.sync_directory(self.directory)


def find_swaps(directory: Path, names: Iterable[str]) -> list[Swap]:
    """The swap files among a directory's names."""
    swaps = []
    for name in names:
        if not name.endswith(SWAP_SUFFIX):
            continue
        base, _, end = name.removesuffix(SWAP_SUFFIX).partition("-")
        ours = len(base) == len(end) == _DIGITS
        if ours and (base + end).isascii() and (base + end).isdigit():
            swaps.append(Swap(directory, int(base), int(end)))
    return swaps


def is_sound(swap: Swap, disk: Disk) -> bool:
    """Return whether a swap file holds every offset of its range in intact frames."""
    return _holds(disk, swap.path, swap.base_offset, swap.end_offset, deep=True)


def is_whole(swap: Swap, disk: Disk, bases: list[int]) -> bool:
    """Return whether the run that a swap file replaces is complete, by its frames' headers."""
    run = [base for base in bases if swap.base_offset <= base < swap.end_offset]
    return run[:1] == [swap.base_offset] and all(
        _holds(disk, segment_path(swap.directory, base), base, end, deep=False)
        for base, end in pairwise([*run, swap.end_offset])
    )


def _holds(disk: Disk, path: Path, base: int, end: int, *, deep: bool) -> bool:
    file = disk.open(path)
    size = file.size()
    reader = (
        scanner(file, end=size, name=str(path))
        if deep
        else FrameReader(file, end=size, name=str(path))
    )
    offset = base
    for item in walk(reader, 0, base, end_offset=end, deep=deep):
        if isinstance(item, Damage):
            return False
        offset = item.header.next_offset
    return offset == end


RESET_SUFFIX: Final = ".reset"

_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, SWAP_SUFFIX)
_NAMES: Final = (EPOCHS_NAME, MEMORY_NAME, MARK_NAME)


class Reset(Struct, frozen=True):
    """A log that is to be empty.

    Attributes:
        start: The offset at which it is to begin.
    """

    directory: Path
    start: int

    @property
    def path(self) -> Path:
        """The reset file."""
        return self.directory / f"{self.start:0{_DIGITS}d}{RESET_SUFFIX}"

    def publish(self, disk: Disk) -> None:
        """Step 1: when this returns, the log is empty, whatever lies there.

        Raises:
            OSError: It may be, or not.
        """
        disk.create(self.path).close()
        disk.sync_directory(self.directory)

    def complete(self, disk: Disk, *, interval_bytes: int) -> tuple[Segment, File]:
        """Steps 2 to 4, from wherever they were interrupted.

        Returns:
            The only segment, empty, and its file.

        Raises:
            OSError: The disk failed; opening the log again completes it.
        """
        for name in disk.list_directory(self.directory):
            if name in _NAMES or name.endswith(_SUFFIXES):
                disk.unlink(self.directory / name)
        disk.sync_directory(self.directory)
        made = Segment.create(
            self.directory, self.start, interval_bytes=interval_bytes, disk=disk
        )  # fmt: skip
        disk.unlink(self.path)
        disk.sync_directory(self.directory)
        return made


def find_resets(directory: Path, names: Iterable[str]) -> list[Reset]:
    """The reset files among a directory's names."""
    resets = []
    for name in names:
        if not name.endswith(RESET_SUFFIX):
            continue
        start = name.removesuffix(RESET_SUFFIX)
        ours = len(start) == _DIGITS
        if ours and start.isascii() and start.isdigit():
            resets.append(Reset(directory, int(start)))
    return resets
