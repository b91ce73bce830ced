"""State of a replica's log: its end, and the first offset of each leader epoch.

Leader epochs: at which offset each one began.

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

import msgspec
from msgspec import Struct

from penstock.logd.errors import RefusedError
from penstock.logd.replication.events import (
    EpochSaved,
    Event,
    LogStartMoved,
    Submitted,
    Synced,
    Truncated,
    WasReset,
    Written,
)

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
            epoch: Epoch at the other replica.
            end_offset: End of the log, and of its last epoch.

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
        """Return whether the last epoch has no record in a log that ends there."""
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
        """Forget all, as the log starts somewhere else."""
        self._entries = []


class LogState(Struct, kw_only=True):
    """start <= synced <= written <= submitted, and all that is committed lies below synced.

    The last part breaks when a disk lost what it had acknowledged: `is_short`.

    Attributes:
        start: First offset kept.
        submitted: End of the log once its writer has done what it was given.
        written: End of the log for readers.
        synced: Everything below is durable.
        high_watermark: Offset of the last record known to be committed and held here; -1: none.
        agreed_epoch: The last leader epoch under which this log agreed with the leader's.
        epochs: Epochs of the log, as submitted.
        cuts: Truncations and resets so far.
        cutting: One of them is under way.
        beginning: The epoch whose start is being noted by its leader; 0: none.
    """

    start: int = 0
    submitted: int = 0
    written: int = 0
    synced: int = 0
    high_watermark: int = -1
    agreed_epoch: int = 0
    epochs: Epochs = msgspec.field(default_factory=Epochs)
    cuts: int = 0
    cutting: bool = False
    beginning: int = 0

    @classmethod
    def opened(
        cls,
        *,
        start: int,
        end: int,
        epochs: Epochs,
        high_watermark: int,
        agreed_epoch: int = 0,
    ) -> "LogState":
        """Return the state of a recovered log, all of which is durable.

        Args:
            start: First offset kept.
            end: Next offset.
            epochs: Stored epochs; they are truncated to fit the log (`Epochs.recover`), and the
                file
                with them before anything else is written.
            high_watermark: Stored high watermark; it may be too low.
            agreed_epoch: Stored with it.
        """
        epochs.recover(end)
        return cls(
            start=start,
            submitted=end,
            written=end,
            synced=end,
            high_watermark=max(high_watermark, start - 1),  # only what is committed is deleted
            agreed_epoch=agreed_epoch,
            epochs=epochs,
        )

    @property
    def last_epoch(self) -> int:
        """Epoch of the last record; 0 when the log holds none."""
        return self.epochs.epoch_at(self.submitted - 1) if self.submitted > self.start else 0

    @property
    def busy(self) -> bool:
        """True if the writer has not finished what it was given."""
        return self.cutting or bool(self.beginning) or self.written < self.submitted

    @property
    def is_short(self) -> bool:
        """True if it lacks records that were committed, as its own node knows."""
        return self.high_watermark >= self.submitted

    def note(self, event: Event) -> None:
        """Take what the writer reports, and what it was handed; all else changes nothing."""
        match event:
            case Submitted(upto):
                self.submitted = max(self.submitted, upto)
            case Written() | Synced():
                self._grown(event)
            case Truncated() | WasReset() if event.cuts == self.cuts and self.cutting:
                self._cut(event)
            case EpochSaved(epoch) if epoch == self.beginning:
                self.beginning = 0
            case LogStartMoved(start):
                self.start = max(self.start, start)
            case _:
                pass

    def _grown(self, event: Written | Synced) -> None:
        if event.cuts != self.cuts or self.cutting:
            return
        self.written = max(self.written, event.upto)
        self.submitted = max(self.submitted, self.written)
        if isinstance(event, Synced):
            self.synced = max(self.synced, event.upto)

    def _cut(self, event: Truncated | WasReset) -> None:
        self.cutting = False
        if isinstance(event, WasReset):
            self.start = event.start
            self.epochs.clear()
            self.submitted = self.written = self.synced = event.start
            self.high_watermark = max(self.high_watermark, event.start - 1)
        else:
            self.epochs.truncate_to(event.upto)
            self.submitted = self.written = self.synced = event.upto
