"""An endless read of one partition: where it stands, what to ask next, what may go wrong. No I/O.

The driver of a client asks for `next_call`, makes the call, and hands over what came of it:

    an answer      `take` gives its frames, cut to what has not been given yet
    a refusal      `refused` moves on where the caller allowed it, and raises where not
    unavailable    `RetryBackoff.pause` says how long to wait, and raises when it has been too long
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import msgspec

from penstock.base.backoff import Backoff
from penstock.logd.api.models import Cursor, StreamInfo
from penstock.logd.api.operations import End, Fetch
from penstock.logd.client import calls
from penstock.logd.client.calls import Call
from penstock.logd.client.results import Fetched
from penstock.logd.errors import CorruptError, RefusedError, UnavailableError

if TYPE_CHECKING:  # what reads records is imported when some are read: a client may read none
    import pyarrow as pa

    from penstock.logd.format.batch import Record
    from penstock.logd.format.frame import FrameHeader

Position = int | End | datetime
"""An offset, an end of the log, or the first record at or after a time (with its zone)."""

OutOfRange = Literal["raise", "earliest", "latest"]
"""Action of an endless read when its offset is gone: raise the refusal, or go on from an end."""

FETCH_BYTES: Final = 4 * 1024 * 1024
"""Bytes of frames asked for at a time, where the caller does not say."""

FETCH_WAIT_S: Final = 5.0
"""Seconds the server may wait for records; a connection that broke unnoticed shows after that."""

PAUSE_FIRST_S: Final = 0.05
PAUSE_MAX_S: Final = 5.0
"""Seconds between tries double from the first to this, each cut at random to half or more."""

_BUSY: Final = frozenset({"TOO_MANY_CONNECTIONS", "TOO_MANY_REQUESTS", "UNAVAILABLE"})
"""Refusals that pass; anything else would be refused again."""

_TIME_NS_MAX: Final = (1 << 63) - 1
"""Maximum nanoseconds in a request: dates from 1678 to 2261. No record is beyond them."""

Rows = tuple["FrameHeader", "pa.RecordBatch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowOptions:
    """Options of an endless read.

    Attributes:
        partition: The stream's partition.
        subject: A filter; records on other subjects are left out.
        out_of_range: Action when the next offset cannot be read any more.
        incarnation: Incarnation of the stream to which the position belongs; None: any.
        retry_s: Seconds that logd may be away at a time; None: unlimited.
        bytes_max: Bytes of frames requested at a time.
        wait_s: Seconds that the server may wait for records before an empty answer.
    """

    partition: int = 0
    subject: str | None = None
    out_of_range: OutOfRange = "raise"
    incarnation: str | None = None
    retry_s: float | None = None
    bytes_max: int = FETCH_BYTES
    wait_s: float = FETCH_WAIT_S


class Following:
    """One endless read.

    Args:
        server: Address of the server, for errors.
        stream: The stream's name.
        start: Position to begin at.
        options: Options of the reading.

    Attributes:
        offset: Offset of the next record; -1 until the server has resolved `start`.
        incarnation: Incarnation of the stream, once known.
        skipped: Offsets skipped because `out_of_range` allowed it.
    """

    def __init__(self, server: str, stream: str, start: Position, options: FollowOptions) -> None:
        if isinstance(start, datetime) and start.tzinfo is None:
            msg = f"start {start} has no time zone"
            raise ValueError(msg)
        self.stream = stream
        self.offset = start if isinstance(start, int) else -1
        self.incarnation = options.incarnation
        self.skipped = 0
        self._log_epoch: int | None = None
        self._server = server
        self._start = start
        self._options = options

    def next_call(self) -> Call[int | Fetched]:
        """Return the next call."""
        options = self._options
        if self.offset < 0:
            return calls.offset_at(self.stream, options.partition, position_request(self._start))
        return calls.fetch(
            Fetch(
                stream=self.stream,
                offset=self.offset,
                partition=options.partition,
                bytes_max=options.bytes_max,
                wait_ms_max=int(options.wait_s * 1000),
                subject=options.subject,
                incarnation=self.incarnation,
                log_epoch=self._log_epoch,
            ),
            where=self._server,
        )

    def take(self, answer: int | Fetched) -> Iterator[Rows]:
        """The frames of an answer, in order, without rows that were given before.

        Raises:
            CorruptError: Offsets are missing between the frames, or a body is damaged.
        """
        if isinstance(answer, int):
            self.offset = answer
            return
        from penstock.logd.format.batch import decode_body
        from penstock.logd.format.rows import slice_rows

        self.incarnation, self._log_epoch = answer.incarnation, answer.log_epoch
        for header, body in answer.frames:
            where = f"{self._server} {self.stream}/{self._options.partition}"
            if header.base_offset > self.offset and self._options.subject is None:
                missing = f"offsets {self.offset} to {header.base_offset - 1} are missing"
                raise CorruptError(missing, where=where)
            batch = decode_body(body, where=f"{where} offset {header.base_offset}")
            rows = slice_rows(header, batch, self.offset)
            self.offset = max(self.offset, header.next_offset)
            if rows.num_rows:
                yield header, rows
        self.offset = max(self.offset, answer.next_offset)

    def refused(self, error: RefusedError) -> None:
        """Go on where `out_of_range` says.

        Raises:
            UnavailableError: The refusal passes; wait and ask again.
            RefusedError: Any other refusal: the same.
        """
        if passes(error):
            raise UnavailableError(str(error)) from None
        policy = self._options.out_of_range
        if error.code == "RECORDS_LOST" and policy != "raise":
            self.offset, self._log_epoch = int(error.detail["offset"]), None
            return
        if error.code != "OUT_OF_RANGE" or policy == "raise":
            raise error
        position = int(error.detail["earliest" if policy == "earliest" else "latest"])
        self.skipped += max(position - self.offset, 0)
        self.offset = position


class RetryBackoff:
    """Backoff towards an absent server: doubling pauses with jitter, up to a deadline.

    Args:
        retry_s: Seconds from the first failure on; None: unlimited.
        rng: Source of the jitter.
        pause_max_s: Maximum seconds of a pause.
        pause_first_s: Seconds of the first pause.
    """

    def __init__(
        self,
        retry_s: float | None,
        rng: random.Random,
        *,
        pause_max_s: float = PAUSE_MAX_S,
        pause_first_s: float = PAUSE_FIRST_S,
    ) -> None:
        self._retry_s = retry_s
        self._rng = rng
        self._backoff = Backoff(pause_first_s, pause_max_s, jitter=0.5)
        self._since_ns: int | None = None

    def succeeded(self) -> None:
        """The server is there."""
        self._backoff.reset()
        self._since_ns = None

    def failed(self, now_ns: int) -> None:
        """The deadline counts from here, unless it does already."""
        if self._since_ns is None:
            self._since_ns = now_ns

    def pause(self, error: Exception, now_ns: int) -> float:
        """Seconds to wait before the next try.

        Args:
            error: Why the last one failed; raised when the deadline has passed.
            now_ns: Monotonic.
        """
        self.failed(now_ns)
        assert self._since_ns is not None
        waited_s = (now_ns - self._since_ns) / 1e9
        if self._retry_s is not None and waited_s >= self._retry_s:
            raise error
        pause_s = self._backoff.next_wait(self._rng.random())
        if self._retry_s is None:
            return pause_s
        return min(pause_s, self._retry_s - waited_s)


def passes(error: RefusedError) -> bool:
    """Return whether a refusal may pass, so that the call may be repeated."""
    return error.code in _BUSY


def position_request(start: Position) -> End | int:
    """Return the request for the offset of a position that is not an offset itself."""
    if isinstance(start, datetime):
        since = start - datetime(1970, 1, 1, tzinfo=UTC)
        time_ns = ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000
        return max(-_TIME_NS_MAX, min(time_ns, _TIME_NS_MAX))
    assert not isinstance(start, int), start
    return start


Item = TypeVar("Item")

Explode = Callable[[Rows], Iterator[tuple[Item, int, int]]]
"""Function from a frame's rows to items, each with the offset after it and its records."""

_RETRY_NS: Final = 1_000_000_000
"""Between two tries to commit while logd is away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPolicy:
    """Policy of commits while reading; with neither, only a close commits.

    Attributes:
        records: Number of records after which to commit.
        seconds: Seconds after the first uncommitted record.
    """

    records: int | None = None
    seconds: float | None = None


_DEFAULT_POLICY: Final = CommitPolicy(records=1000, seconds=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """Options of a member of a consumer group.

    Attributes:
        session_s: Seconds without an answered heartbeat after which it stops reading; a little
            later its partitions go to others. 1 to 300.
        start: Position in a partition without a committed cursor.
        commit: Policy of commits, which also happen before a partition is released and when the
            consumer is closed; None: only by `commit`.
        subject: A filter; records on other subjects are left out.
        out_of_range: Action when the next offset of a partition cannot be read any more.
        bytes_max: Bytes of frames requested at a time from each partition.
        name: Prefix of the member's id, for people to recognise it.
    """

    session_s: float = 10.0
    start: Position = "earliest"
    commit: CommitPolicy | None = _DEFAULT_POLICY
    subject: str | None = None
    out_of_range: OutOfRange = "raise"
    bytes_max: int = FETCH_BYTES
    name: str = "member"


class Committing:
    """Counts what a consumer has been given and is done with.

    A record is done with when the consumer asks for the next one. So after a crash it may see
    records again, and never misses one.

    Args:
        position: The cursor to move, with its stream's incarnation.
        policy: Policy of commits.
    """

    def __init__(self, position: Cursor, policy: CommitPolicy) -> None:
        self._position = position
        self._policy = policy
        self._count = 0
        self._since_ns: int | None = None
        self._not_before_ns = 0

    def done(self, next_offset: int, count: int, now_ns: int) -> None:
        """The consumer is done with `count` more records, up to `next_offset` (exclusive)."""
        self._position = msgspec.structs.replace(self._position, offset=next_offset)
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
        """Return the cursor to commit now; None: none is due."""
        if self._since_ns is None or now_ns < self._not_before_ns:
            return None
        records, seconds = self._policy.records, self._policy.seconds
        by_count = records is not None and self._count >= records
        by_time = seconds is not None and now_ns - self._since_ns >= seconds * 1e9
        return self._position if by_count or by_time else None

    def pending(self) -> Cursor | None:
        """Return the cursor of what was processed and not committed; None: nothing."""
        return None if self._since_ns is None else self._position

    def committed(self) -> None:
        """Note that the due or pending cursor is committed."""
        self._count = 0
        self._since_ns = None

    def postponed(self, now_ns: int) -> None:
        """Note that logd was away for a commit, which is tried again in a second."""
        self._not_before_ns = now_ns + _RETRY_NS


def begin(
    wanted: Cursor,
    found: Cursor | None,
    info: StreamInfo,
    start: Position,
    options: FollowOptions,
) -> tuple[Position, FollowOptions, Cursor]:
    """Return where a consumer begins, bound to the current incarnation of the stream.

    Args:
        wanted: The consumer, stream and partition.
        found: The committed cursor; None: there is none.
        info: The stream.
        start: Position for a consumer without a cursor.
        options: Options of the reading.

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
    position = msgspec.structs.replace(wanted, offset=offset, incarnation=info.incarnation)
    return (start if found is None else found.offset), bound, position


def whole(rows: Rows) -> Iterator[tuple[Rows, int, int]]:
    """A frame's rows as one item."""
    header, batch = rows
    yield rows, header.next_offset, batch.num_rows


def single(rows: Rows) -> "Iterator[tuple[tuple[int, Record], int, int]]":
    """A frame's rows one by one."""
    from penstock.logd.format.rows import batch_records

    for offset, record in batch_records(*rows):
        yield (offset, record), offset + 1, 1
