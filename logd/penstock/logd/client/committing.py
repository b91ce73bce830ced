"""What a consumer is done with, and when its cursor is due to be committed. No I/O."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from penstock.logd.batch import Record
from penstock.logd.client.answers import Cursor, StreamInfo
from penstock.logd.client.following import FollowOptions, Position, Rows
from penstock.logd.errors import RefusedError
from penstock.logd.rows import batch_records

Item = TypeVar("Item")

Explode = Callable[[Rows], Iterator[tuple[Item, int, int]]]
"""From a frame's rows to what a consumer is given: item, offset after it, records in it."""

_RETRY_NS: Final = 1_000_000_000
"""Between two tries to commit while logd is away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPolicy:
    """When to commit while reading; with neither, only when the reading is closed.

    Attributes:
        records: After so many records.
        seconds: So long after the first record that is not committed.
    """

    records: int | None = None
    seconds: float | None = None


class Committing:
    """Counts what a consumer has been given and is done with.

    A record is done with when the consumer asks for the next one. So after a crash it may see
    records again, and never misses one.

    Args:
        position: The cursor to move, with its stream's incarnation.
        policy: When to commit.
    """

    def __init__(self, position: Cursor, policy: CommitPolicy) -> None:
        self._position = position
        self._policy = policy
        self._count = 0
        self._since_ns: int | None = None
        self._not_before_ns = 0

    def done(self, next_offset: int, count: int, now_ns: int) -> None:
        """The consumer is done with `count` more records, up to `next_offset` (exclusive)."""
        self._position = replace(self._position, offset=next_offset)
        self._count += count
        if self._since_ns is None:
            self._since_ns = now_ns

    def passed(self, next_offset: int, now_ns: int) -> None:
        """There was nothing for the consumer up to `next_offset`: a filter left it out.

        Without this a cursor would stay behind until retention overtook it.
        """
        if next_offset > self._position.offset:
            self.done(next_offset, 0, now_ns)

    def due(self, now_ns: int) -> Cursor | None:
        """What to commit now."""
        if self._since_ns is None or now_ns < self._not_before_ns:
            return None
        records, seconds = self._policy.records, self._policy.seconds
        by_count = records is not None and self._count >= records
        by_time = seconds is not None and now_ns - self._since_ns >= seconds * 1e9
        return self._position if by_count or by_time else None

    def pending(self) -> Cursor | None:
        """What is done with and not committed."""
        return None if self._since_ns is None else self._position

    def committed(self) -> None:
        """What was due or pending is committed."""
        self._count = 0
        self._since_ns = None

    def postponed(self, now_ns: int) -> None:
        """What is due could not be committed, for logd is away; it is tried again in a second."""
        self._not_before_ns = now_ns + _RETRY_NS


def begin(
    wanted: Cursor,
    found: Cursor | None,
    info: StreamInfo,
    start: Position,
    options: FollowOptions,
) -> tuple[Position, FollowOptions, Cursor]:
    """Where a consumer begins to read, bound to the stream as it is now.

    Args:
        wanted: The consumer, stream and partition.
        found: What is committed.
        info: Of the stream.
        start: For when nothing is.
        options: Of the reading.

    Raises:
        RefusedError: `STREAM_RECREATED`: the cursor is of an earlier stream of the name.
    """
    if found is not None and found.incarnation != info.incarnation:
        raise RefusedError(
            "STREAM_RECREATED",
            f"the cursor of {wanted.consumer!r} is of an earlier stream {info.name!r}: delete it,"
            " or commit an offset of the present one",
            incarnation=info.incarnation,
        )
    bound = replace(options, incarnation=info.incarnation, partition=wanted.partition)
    offset = 0 if found is None else found.offset
    position = replace(wanted, offset=offset, incarnation=info.incarnation)
    return (start if found is None else found.offset), bound, position


def whole(rows: Rows) -> Iterator[tuple[Rows, int, int]]:
    """A frame's rows as one item."""
    header, batch = rows
    yield rows, header.next_offset, batch.num_rows


def single(rows: Rows) -> Iterator[tuple[tuple[int, Record], int, int]]:
    """A frame's rows one by one."""
    for offset, record in batch_records(*rows):
        yield (offset, record), offset + 1, 1
