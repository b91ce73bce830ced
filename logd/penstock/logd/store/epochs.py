"""The epoch file: at which offset each leader epoch began.

A checkpoint whose document is `{"epochs": [[epoch, start offset], ...]}`, both rising. The start
offset of an epoch is the first offset that its leader assigned or would have assigned. Truncation
after a change of leader is decided by it (KIP-101, KIP-279).
"""

from bisect import bisect_right
from itertools import pairwise
from pathlib import Path

from penstock.logd.errors import CorruptError, RefusedError
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
        self._entries = _entries(self._checkpoint.load(), str(path))

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), rising."""
        return list(self._entries)

    @property
    def latest(self) -> int:
        """The last epoch; 0 when there has been none."""
        return self._entries[-1][0] if self._entries else 0

    def begin(self, epoch: int, start_offset: int) -> None:
        """Record that an epoch began.

        An epoch that began at the same offset and got no record is replaced.

        Raises:
            RefusedError: `STALE_EPOCH`: not above the last one, or it would begin before that.
        """
        if self._entries and (epoch <= self.latest or start_offset < self._entries[-1][1]):
            message = f"epoch {epoch} at {start_offset} does not follow {self._entries[-1]}"
            raise RefusedError("STALE_EPOCH", message, latest=self.latest)
        kept = [entry for entry in self._entries if entry[1] < start_offset]
        self._save([*kept, (epoch, start_offset)])

    def epoch_at(self, offset: int) -> int:
        """The epoch that an offset belongs to; 0 before the first."""
        number = bisect_right([start for _, start in self._entries], offset)
        return self._entries[number - 1][0] if number else 0

    def end_offset_for(self, epoch: int, end_offset: int) -> tuple[int, int]:
        """The largest known epoch up to the one asked for, and where it ends (KIP-279).

        Args:
            epoch: What the other side has.
            end_offset: Of the log, where the last epoch ends.

        Returns:
            (epoch, end offset, exclusive); (0, start of the first epoch) when all are larger.
        """
        known = [number for number, _ in self._entries]
        index = bisect_right(known, epoch)
        end = self._entries[index][1] if index < len(self._entries) else end_offset
        return (known[index - 1] if index else 0), end

    def truncate_to(self, offset: int) -> None:
        """Forget epochs that began above an offset, as the log was truncated to it."""
        kept = [entry for entry in self._entries if entry[1] <= offset]
        if kept != self._entries:
            self._save(kept)

    def _save(self, entries: list[tuple[int, int]]) -> None:
        self._checkpoint.save({"epochs": entries})
        self._entries = entries


def _entries(document: dict[str, object] | None, where: str) -> list[tuple[int, int]]:
    if document is None:
        return []
    rows = document.get("epochs")
    if not isinstance(rows, list):
        raise CorruptError("not an epoch file", where=where)
    try:
        entries = [(int(epoch), int(start)) for epoch, start in rows]
    except (TypeError, ValueError):
        raise CorruptError("epochs are not pairs of numbers", where=where) from None
    if any(a[0] >= b[0] or a[1] > b[1] for a, b in pairwise(entries)):
        raise CorruptError("epochs or their start offsets do not rise", where=where)
    return entries
