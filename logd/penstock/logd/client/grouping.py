"""What a consumer in a group chooses, what it is given, and one partition while it reads it."""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.logd.batch import Record
from penstock.logd.client.committing import CommitPolicy, Committing
from penstock.logd.client.following import FETCH_BYTES, OutOfRange, Position, Rows
from penstock.logd.core.cluster.records import GroupPartition
from penstock.logd.frame import FrameHeader
from penstock.logd.rows import batch_records, slice_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_POLICY: Final = CommitPolicy(records=1000, seconds=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """How a member of a consumer group reads.

    Attributes:
        session_s: Not heard for so long, it reads nothing any more; a little later its partitions
            go to others. 1 to 300.
        start: Where to begin in a partition of which nobody has committed anything yet.
        commit: When what is done with is committed, which it also is before a partition is let go
            of and when the consumer is closed; None: only by `commit`.
        subject: A filter; records on other subjects are left out.
        out_of_range: What to do when the next offset of a partition cannot be read any more.
        bytes_max: Of frames, asked for at a time from each partition.
        name: What the member's id begins with, for people to know it.
    """

    session_s: float = 10.0
    start: Position = "earliest"
    commit: CommitPolicy | None = DEFAULT_POLICY
    subject: str | None = None
    out_of_range: OutOfRange = "raise"
    bytes_max: int = FETCH_BYTES
    name: str = "member"


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A record, with what a consumer stores that keeps its position together with its results.

    Attributes:
        partition: Stream, incarnation and number.
        epoch: Of the grant. A store takes no position of a lower epoch than it has.
        offset: Of the record.
        record: Itself.
    """

    partition: GroupPartition
    epoch: int
    offset: int
    record: Record

    @property
    def next_offset(self) -> int:
        """The position after it."""
        return self.offset + 1


@dataclass(frozen=True, slots=True)
class GroupRows:
    """Rows of a frame; otherwise as `GroupRecord`.

    Attributes:
        header: Of the frame.
        rows: Those that were not given before.
    """

    partition: GroupPartition
    epoch: int
    header: FrameHeader
    rows: pa.RecordBatch

    @property
    def next_offset(self) -> int:
        """The position after them."""
        return self.header.next_offset


@dataclass(slots=True, eq=False)
class Reading:
    """One partition, from its grant until it is let go of or lost.

    Attributes:
        committing: What is done with; None until it is known where to begin.
        task: What reads it.
        room: For what was read and not taken.
        revoked: It is to be let go of.
        busy: The consumer has rows of it in hand.
    """

    partition: GroupPartition
    epoch: int
    committing: Committing | None = None
    task: asyncio.Task[None] | None = None
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    revoked: bool = False
    busy: bool = False

    def stop(self) -> None:
        """Read nothing more."""
        if self.task is not None:
            self.task.cancel()

    @property
    def has_pending(self) -> bool:
        """Whether something is done with and not committed."""
        return self.committing is not None and self.committing.pending() is not None


class Hand:
    """What a consumer has in hand: rows of one partition, of which it is given one after another.

    Attributes:
        reading: Of what; None: nothing.
    """

    def __init__(self) -> None:
        self.reading: Reading | None = None
        self._rows: Rows | None = None
        self._records: Iterator[tuple[int, Record]] | None = None
        self._next: int | None = None
        self._given: tuple[int, int] | None = None
        self._done: tuple[int, int] | None = None

    def put(self, reading: Reading, rows: Rows) -> None:
        """Rows to be given; the hand was empty."""
        self.reading, self._rows = reading, rows

    def drop(self) -> None:
        """The rest is not given."""
        self.reading = self._rows = self._records = None
        self._next = self._given = self._done = None

    def record(self) -> GroupRecord | None:
        """The next record; None: there is none left."""
        if self.reading is None or self._rows is None:
            return None
        if self._records is None:
            self._records = batch_records(*self._rows)
        found = next(self._records, None)
        if found is None:
            return None
        self._next = found[0] + 1
        self._given = self._next, 1
        return GroupRecord(self.reading.partition, self.reading.epoch, *found)

    def rows(self) -> GroupRows | None:
        """All that is left; None: nothing is."""
        if self.reading is None or self._rows is None:
            return None
        (header, rows), self._rows = self._rows, None
        if self._next is not None:  # some of them were given one by one
            rows = slice_rows(header, rows, self._next)
        if not rows.num_rows:
            return None
        self._given = header.next_offset, rows.num_rows
        return GroupRows(self.reading.partition, self.reading.epoch, header, rows)

    def account(self) -> None:
        """The consumer is done with what it was given last."""
        if self._given is not None:
            count = self._given[1] + (self._done[1] if self._done else 0)
            self._done, self._given = (self._given[0], count), None

    def progress(self) -> tuple[Reading, int, int] | None:
        """What is done with since this was asked last: offset after it, and how many."""
        if self.reading is None or self._done is None:
            return None
        done, self._done = self._done, None
        return self.reading, *done
