"""A segment's index, made again while its log file is read."""

from pathlib import Path

from penstock.logd.frame import NO_TIMESTAMP
from penstock.logd.store.disk import Disk
from penstock.logd.store.index import Claim, SparseIndex, empty_claim
from penstock.logd.store.scan import Damage, Found
from penstock.logd.store.segment import Segment


class IndexRebuild:
    """A segment's index, made again frame by frame, or from where a sound one ends.

    Attributes:
        position: Where to begin in the log file.
        end_offset: Of what was taken.
    """

    def __init__(
        self,
        base_offset: int,
        interval_bytes: int,
        index: SparseIndex | None = None,
        claim: Claim | None = None,
    ) -> None:
        claim = claim or empty_claim(base_offset)
        self.position, self.end_offset = claim.log_size, claim.end_offset
        self._base_offset = base_offset
        self._index = index or SparseIndex(interval_bytes)
        self._unchecked = len(self._index)
        if not self._unchecked:
            self._index.offer(base_offset, 0, NO_TIMESTAMP)  # also where damage comes first
        self._max_timestamp_ns = claim.max_timestamp_ns
        self._damaged = False
        self._skipped = False

    def take(self, found: Found) -> None:
        """Add a sound frame; the first after damage gets an entry, to start behind it."""
        header = found.header
        self._index.offer(
            header.base_offset, found.position, self._max_timestamp_ns, force=self._skipped
        )
        self._skipped = False
        self._max_timestamp_ns = max(self._max_timestamp_ns, header.max_timestamp_ns)
        self.end_offset = header.next_offset

    def skip(self, damage: Damage) -> None:
        """Pass over damage; its offsets stay used."""
        self._damaged = self._skipped = True
        self.end_offset = max(self.end_offset, damage.next_offset)

    def segment(self, directory: Path, size: int, *, disk: Disk) -> Segment:
        """The segment of everything taken and skipped."""
        claim = Claim(
            base_offset=self._base_offset,
            end_offset=self.end_offset,
            log_size=size,
            max_timestamp_ns=self._max_timestamp_ns,
            damaged=self._damaged,
        )
        unchecked = len(self._index) if self._damaged else self._unchecked
        return Segment(directory, self._index, claim, disk=disk, unchecked=unchecked)
