"""How a log becomes empty and begins at another offset, and what a crash leaves of that.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.logd.store.disk import Disk, File
from penstock.logd.store.names import EPOCHS_NAME, MARK_NAME, MEMORY_NAME
from penstock.logd.store.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, Segment
from penstock.logd.store.swap import SWAP_SUFFIX

RESET_SUFFIX: Final = ".reset"
_DIGITS: Final = 20
_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, SWAP_SUFFIX)
_NAMES: Final = (EPOCHS_NAME, MEMORY_NAME, MARK_NAME)


@dataclass(frozen=True, slots=True)
class Reset:
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
        start = name.removesuffix(RESET_SUFFIX)
        ours = name.endswith(RESET_SUFFIX) and len(start) == _DIGITS
        if ours and start.isascii() and start.isdigit():
            resets.append(Reset(directory, int(start)))
    return resets
