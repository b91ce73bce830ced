"""The epoch file: at which offset each leader epoch began.

A checkpoint whose document is `{"epochs": [[epoch, start offset], ...]}`, both rising. What they
mean: `penstock.logd.core.replication.epochs`.

Each frame's header has its leader epoch, so a file that is damaged, missing or empty is made again
from the frames. An epoch under which nothing was stored is then forgotten; no record depends on it.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from penstock.logd.core.replication.epochs import Entry, Epochs
from penstock.logd.errors import CorruptError
from penstock.logd.frame import FrameHeader
from penstock.logd.store.checkpoint import Checkpoint
from penstock.logd.store.disk import REAL_DISK, Disk


class EpochFile:
    """Leader epochs of one partition; every change is durable on return.

    Args:
        path: The file; its directory exists.
        disk: The file system.

    Raises:
        CorruptError: The file is damaged; nothing was changed.
    """

    def __init__(self, path: Path, *, disk: Disk = REAL_DISK) -> None:
        self._checkpoint = Checkpoint(path, disk=disk)
        self._epochs = _epochs(self._checkpoint.load(), str(path))

    @classmethod
    def open(
        cls, path: Path, headers: Callable[[], Iterable[FrameHeader]], *, disk: Disk = REAL_DISK
    ) -> tuple["EpochFile", str]:
        """The file of a log; made again from the headers of its frames if it has to be.

        Args:
            path: The file; its directory exists.
            headers: Gives those of every sound frame, in order; looked at only if needed.
            disk: The file system.

        Returns:
            The file, and why it was made again; empty: it was not.

        Raises:
            RefusedError: `UNKNOWN_FORMAT`: written by a later version.
            OSError: The disk failed.
        """
        reason, damaged = "the file was missing or empty", True
        try:
            file = cls(path, disk=disk)
        except CorruptError as error:
            reason = str(error)
        else:
            if file.entries:
                return file, ""
            damaged = False
        found = epochs_of(headers())
        if found or damaged:
            save_epochs(path, found, disk=disk)
        return cls(path, disk=disk), reason if found or damaged else ""

    @property
    def entries(self) -> list[Entry]:
        """(epoch, start offset), rising."""
        return self._epochs.entries

    @property
    def latest(self) -> int:
        """The last epoch; 0 when there has been none."""
        return self._epochs.latest

    def begin(self, epoch: int, start_offset: int) -> None:
        """Record that an epoch began.

        Raises:
            RefusedError: `STALE_EPOCH`: not above the last one, or it would begin before that.
        """
        changed = Epochs(self.entries)
        changed.begin(epoch, start_offset)
        self._save(changed)

    def epoch_at(self, offset: int) -> int:
        """The epoch that an offset belongs to; 0 before the first."""
        return self._epochs.epoch_at(offset)

    def end_of(self, epoch: int, end_offset: int) -> int:
        """Where the records end that leaders up to an epoch have ordered, exclusive.

        Args:
            epoch: Of a leader there was.
            end_offset: Of the log.
        """
        return self._epochs.end_offset_for(epoch, end_offset)[1]

    def truncate_to(self, offset: int) -> None:
        """Forget epochs that began at or above an offset, as the log was truncated to it."""
        changed = Epochs(self.entries)
        changed.truncate_to(offset)
        if changed.entries != self.entries:
            self._save(changed)

    def clear(self) -> None:
        """Forget all, as the log was reset."""
        self._save(Epochs())

    def recover(self, end_offset: int) -> None:
        """Fit a log that lost its tail with a crash; the number of the last epoch is kept."""
        changed = Epochs(self.entries)
        changed.recover(end_offset)
        if changed.entries != self.entries:
            self._save(changed)

    def _save(self, epochs: Epochs) -> None:
        self._checkpoint.save({"epochs": epochs.entries})
        self._epochs = epochs


def epochs_of(headers: Iterable[FrameHeader]) -> list[Entry]:
    """(epoch, start offset) as frames show them."""
    found: list[Entry] = []
    for header in headers:
        if header.leader_epoch > (found[-1][0] if found else 0):
            found.append((header.leader_epoch, header.base_offset))
    return found


def save_epochs(path: Path, entries: list[Entry], *, disk: Disk = REAL_DISK) -> None:
    """Write an epoch file, durably.

    Raises:
        OSError: The disk failed.
    """
    Checkpoint(path, disk=disk).save({"epochs": Epochs(entries).entries})


def _epochs(document: dict[str, object] | None, where: str) -> Epochs:
    if document is None:
        return Epochs()
    rows = document.get("epochs")
    if not isinstance(rows, list):
        raise CorruptError("not an epoch file", where=where)
    try:
        entries = [(int(epoch), int(start)) for epoch, start in rows]
    except (TypeError, ValueError):
        raise CorruptError("epochs are not pairs of numbers", where=where) from None
    try:
        return Epochs(entries)
    except ValueError as error:
        raise CorruptError(str(error), where=where) from None
