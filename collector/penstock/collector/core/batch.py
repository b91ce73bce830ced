"""What a lane holds: runs of records in source order, cut into batches."""

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple


class LaneKey(NamedTuple):
    """One chain of records that logd must store in order: the unit of retry and of sequence.

    Attributes:
        origin: What has a read position of its own: ``spool``, or ``file/<generation>``.
        source: Name of the source, as configured.
        subject: NATS subject of every record in the lane.
        branch: Which of the copies that transforms made of a record for the same subject; the
            sequences of a lane rise, and copies share one.
    """

    origin: str
    source: str
    subject: str
    branch: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the delivery core.

    Attributes:
        batch_bytes_max: Bytes of record lines in a batch; one larger record still makes a batch.
        batch_records_max: Records in a batch.
        batch_age_ns: How long a batch may wait for more records.
        lane_flight_max: Batches of one lane that are sent and unanswered.
        flight_bytes_max: Bytes of all lanes that are sent and unanswered.
        backoff_min_ns: First wait after a failure; it doubles up to `backoff_max_ns`.
        lanes_max: Lanes kept; beyond it those with nothing to do are forgotten.
    """

    batch_bytes_max: int = 512 * 1024
    batch_records_max: int = 1000
    batch_age_ns: int = 200_000_000
    lane_flight_max: int = 8
    flight_bytes_max: int = 8 * 1024 * 1024
    backoff_min_ns: int = 100_000_000
    backoff_max_ns: int = 10_000_000_000
    lanes_max: int = 4096


@dataclass(slots=True)
class Batch:
    """Records of one lane, columns of equal length.

    Attributes:
        start: Position of the origin from which reading again meets every record of the batch.
        sequences: Rising; the producer's sequence is the last.
        size: Sum of the lines' lengths, bytes.
        body: The encoded batch, kept by the shell for retries; a changed batch has none.
    """

    start: int
    sequences: list[int] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    size: int = 0
    body: bytes | None = None

    def __len__(self) -> int:
        """Records."""
        return len(self.sequences)

    @property
    def last(self) -> int:
        """Sequence of the last record."""
        return self.sequences[-1]

    def extend(self, other: "Batch", first: int, end: int, size: int) -> None:
        """Append records `first` to `end` (exclusive) of another batch, `size` bytes in all."""
        self.sequences += other.sequences[first:end]
        self.timestamps += other.timestamps[first:end]
        self.lines += other.lines[first:end]
        self.size += size

    def after(self, sequence: int) -> "Batch":
        """The records whose sequence is greater."""
        return self.part(bisect_right(self.sequences, sequence), len(self))

    def part(self, first: int, end: int) -> "Batch":
        """Records `first` to `end` (exclusive)."""
        lines = self.lines[first:end]
        return Batch(
            self.start,
            self.sequences[first:end],
            self.timestamps[first:end],
            lines,
            sum(map(len, lines)),
        )

    def halves(self) -> tuple["Batch", "Batch"]:
        """Both halves, neither empty."""
        middle = len(self) // 2
        assert middle > 0
        return self.part(0, middle), self.part(middle, len(self))
