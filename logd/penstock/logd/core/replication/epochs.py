"""Leader epochs: at which offset each one began.

An epoch's start is its first offset: the first that its leader assigned or would have assigned. Its
end, exclusive, is the start of the next epoch there is an entry for, or the end of the log. This is
the only definition; what is one too high or low keeps a divergent record.

Two logs that hold a record of the same epoch at the same offset agree on everything below it: an
epoch has one leader, who appends and never goes back, and followers copy from the front. So the
last place where two logs agree is found by epochs (KIP-101), and where one log lacks an epoch of
the other's, by asking again with a smaller one (KIP-279).
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

from penstock.logd.errors import RefusedError

Entry = tuple[int, int]
"""(epoch, start offset)."""


class Epochs:
    """The epochs of one log.

    Args:
        entries: Epochs rise; start offsets do not fall.

    Raises:
        ValueError: They do.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries = list(entries)
        if any(a[0] >= b[0] or a[1] > b[1] for a, b in pairwise(self._entries)):
            raise ValueError("epochs or their start offsets do not rise")

    @property
    def entries(self) -> list[Entry]:
        """(epoch, start offset), rising."""
        return list(self._entries)

    @property
    def latest(self) -> int:
        """The last epoch; 0 when there has been none."""
        return self._entries[-1][0] if self._entries else 0

    def begin(self, epoch: int, start_offset: int) -> None:
        """Note that an epoch began.

        An epoch that began at the same offset and got no record is replaced.

        Raises:
            RefusedError: `STALE_EPOCH`: not above the last one, or it would begin before that.
        """
        if self._entries and (epoch <= self.latest or start_offset < self._entries[-1][1]):
            message = f"epoch {epoch} at {start_offset} does not follow {self._entries[-1]}"
            raise RefusedError("STALE_EPOCH", message, latest=self.latest)
        kept = [entry for entry in self._entries if entry[1] < start_offset]
        self._entries = [*kept, (epoch, start_offset)]

    def epoch_at(self, offset: int) -> int:
        """The epoch that an offset belongs to; 0 before the first."""
        number = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        return self._entries[number - 1][0] if number else 0

    def end_offset_for(self, epoch: int, end_offset: int) -> tuple[int, int]:
        """The largest known epoch up to the one asked for, and where it ends (KIP-279).

        Args:
            epoch: What the other side has.
            end_offset: Of the log, where the last epoch ends.

        Returns:
            (epoch, end offset, exclusive); (0, start of the first epoch) when all are larger.
        """
        index = bisect_right(self._entries, epoch, key=lambda entry: entry[0])
        end = self._entries[index][1] if index < len(self._entries) else end_offset
        return (self._entries[index - 1][0] if index else 0), end

    def truncate_to(self, offset: int) -> None:
        """Forget epochs that began at or above an offset, as the log was truncated to it.

        One that began right there has no record; the next ones may be of a smaller epoch.
        """
        self._entries = [entry for entry in self._entries if entry[1] < offset]

    def has_empty(self, end_offset: int) -> bool:
        """Whether the last epoch has no record in a log that ends there."""
        return bool(self._entries) and self._entries[-1][1] >= end_offset

    def recover(self, end_offset: int) -> None:
        """Fit a log that lost its tail with a crash.

        The number of the last epoch is kept, even if it began with records that were lost: this
        node may have led under it, and must not do so again.
        """
        latest = self.latest
        self.truncate_to(end_offset)
        if latest > self.latest:
            self._entries.append((latest, end_offset))

    def clear(self) -> None:
        """Forget all, as the log begins anew somewhere else."""
        self._entries = []
