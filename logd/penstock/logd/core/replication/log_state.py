"""What a replica knows of its own log."""

from dataclasses import dataclass, field

from penstock.logd.core.replication.epochs import Epochs
from penstock.logd.core.replication.events import (
    EpochSaved,
    Event,
    LogStartMoved,
    Submitted,
    Synced,
    Truncated,
    WasReset,
    Written,
)


@dataclass(slots=True, kw_only=True)
class LogState:
    """start <= synced <= written <= submitted, and all that is committed lies below synced.

    The last part breaks when a disk lost what it had vouched for: `is_short`.

    Attributes:
        start: First offset kept.
        submitted: Where the log will end once its writer has done what it was given.
        written: Where it ends for readers of the log.
        synced: Everything below is durable.
        high_watermark: Of the last record known to be committed and held here; -1: none.
        agreed_epoch: The last leader epoch under which this log agreed with the leader's.
        epochs: Of the log, as submitted.
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
    epochs: Epochs = field(default_factory=Epochs)
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
        """Of a log that was just recovered, so that all of it is durable.

        Args:
            start: First offset kept.
            end: Next offset.
            epochs: As noted; they are made to fit the log (`Epochs.recover`), and the file with
                them before anything else is written.
            high_watermark: As it was last written down; it may be too low.
            agreed_epoch: Written down with it.
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
        """Of the last record; 0 when the log holds none."""
        return self.epochs.epoch_at(self.submitted - 1) if self.submitted > self.start else 0

    @property
    def busy(self) -> bool:
        """Whether the writer has not done yet what it was given."""
        return self.cutting or bool(self.beginning) or self.written < self.submitted

    @property
    def is_short(self) -> bool:
        """Whether it lacks records that were committed, as its own node knows."""
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
