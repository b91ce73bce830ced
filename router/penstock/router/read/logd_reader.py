"""Reading a span of the log as Arrow batches, patiently: logd may be restarting."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import pyarrow as pa

from penstock.base.backoff import Backoff
from penstock.base.clock import BlockingClock
from penstock.logd.client import (
    ANYBODY,
    Access,
    AsyncLogClient,
    Fetched,
    LogClient,
    PartitionInfo,
    StreamInfo,
)
from penstock.logd.errors import CorruptError, RefusedError, UnavailableError
from penstock.router.errors import (
    ACCEPTING,
    BadOptionError,
    DamagedError,
    DataLossError,
    LogUnavailableError,
    UnknownPartitionError,
)
from penstock.router.read.async_calls import AsyncCalls
from penstock.router.read.chunks import Cut, together, within
from penstock.router.read.fetch import NOT_LET_IN, fetch, kept_until, warn
from penstock.router.read.offset_spec import Subscription, Times
from penstock.router.read.offsets import FrameSize, Readable, Span, StreamPartition
from penstock.router.read.record_sizes import Found, Look, RecordSizes, Sample
from penstock.router.read.trigger import News

ROWS_TARGET: Final = 16_384
"""Rows gathered before a batch goes to Spark; small Arrow batches cost it more than large ones."""

BYTES_TARGET: Final = 8 * 1024 * 1024
"""Bytes likewise, a bound on what a worker holds."""

_TIMEOUT_S: Final = 10.0
_RETRY_FIRST_S: Final = 0.1
_RETRY_MAX_S: Final = 2.0
_MENDED_S: Final = 10.0
"""Seconds to wait for a repair of damaged records; an election takes about two."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class LogState:
    """The readable offsets of some streams at one moment.

    Attributes:
        readable: Readable range by partition.
        stream_ids: Stream id by stream.
        epochs: Epochs of the leaders, by partition.
        written: Log end offsets by partition. A new leader may not know yet that it may show all
            records that readers have seen.
    """

    readable: Mapping[StreamPartition, Readable]
    stream_ids: Mapping[str, str]
    epochs: Mapping[StreamPartition, int] = field(default_factory=dict)
    written: Mapping[StreamPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Clients:
    """Factories of clients of a logd: one reads records, the other samples their sizes."""

    blocking: Callable[..., LogClient] = LogClient
    asynchronous: Callable[..., AsyncLogClient] = AsyncLogClient


CLIENTS: Final = Clients()


class LogdReader:
    """A connection to logd that waits for it, up to a limit, when it is away.

    Args:
        server: Address of logd's fetch endpoint.
        retry_timeout_s: Seconds to wait for an unreachable logd before giving up; and for one that
            does not let this reader in, for tokens and permissions are renewed.
        clock: Clock of waits.
        access: Credentials of the client.
        rack: Records are read from a replica in sync that does not lead, in this rack if there is
            one and it is not empty; None: from the leader.
        clients: Make its connections.

    Attributes:
        lost: Number of offsets that `rows` has skipped, for they are gone or damaged.
        news: Waits for new records.
    """

    def __init__(
        self,
        server: str,
        *,
        retry_timeout_s: float,
        clock: BlockingClock,
        access: Access = ANYBODY,
        rack: str | None = None,
        clients: Clients = CLIENTS,
    ) -> None:
        how: Any = {
            "timeout_s": _TIMEOUT_S,
            "prefer": "leader" if rack is None else "replica",
            "rack": rack or "",
            "access": access,
        }
        self.lost = 0
        self._may_mend = True
        self._client = clients.blocking(server, **how)
        self._retry_timeout_s = retry_timeout_s
        self._clock = clock
        self._random = random.Random()  # noqa: S311 - jitter
        self._calls = AsyncCalls(lambda: clients.asynchronous(server, **how))
        self._sizes = RecordSizes(self._calls)
        self.news = News(self._calls)

    def __enter__(self) -> Self:
        """Enter without a connection: the first call connects."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._calls.close()

    def state(
        self, streams: Subscription | tuple[str, ...], *, may_be_gone: bool = False
    ) -> LogState:
        """Return what can be read now; wait for logd if need be.

        Args:
            streams: The streams.
            may_be_gone: Whether streams and partitions that do not exist are left out.

        Raises:
            DataLossError: A stream does not exist, and `may_be_gone` is false.
            LogUnavailableError: logd could not be reached in time.
        """
        return self._patiently(lambda: self._state(streams, may_be_gone=may_be_gone))

    def state_now(
        self, streams: Subscription | tuple[str, ...], *, may_be_gone: bool = False
    ) -> LogState:
        """`state` without the backoff."""
        return self._asked(lambda: self._state(streams, may_be_gone=may_be_gone), patiently=False)

    def kept_until(self, span: Span, *, patiently: bool) -> int:
        """The end of what the log still has of the records before a span's end, since it was so.

        Args:
            span: Span with `planned_epoch`, the epoch in which its records existed.
            patiently: Whether logd is waited for.

        Raises:
            LogUnavailableError: logd is away; or it stayed so.
        """
        return self._asked(partial(kept_until, self._client, span), patiently=patiently)

    def at_times(
        self, times: Times, readable: Mapping[StreamPartition, Readable]
    ) -> dict[StreamPartition, int]:
        """The first record at or after a time, of each partition that has one.

        Raises:
            BadOptionError: A partition has no such record, and the strategy is to fail.
            LogUnavailableError: logd stayed away.
        """
        found: dict[StreamPartition, int] = {}
        for where, span in readable.items():
            time_ms = times.of(where)
            if time_ms is None:
                continue
            offset = self._patiently(lambda at=where, ms=time_ms: self._at_time(at, ms))  # type: ignore[misc]
            if offset >= span.end and times.strategy == "error":
                raise BadOptionError(
                    f"{where.stream}/{where.partition} has no record at or after {time_ms} ms;"
                    " with startingOffsetsByTimestampStrategy=latest it is read from its end"
                )
            found[where] = min(offset, span.end)
        return found

    def rows(
        self,
        span: Span,
        *,
        fail_on_data_loss: bool,
        subject: str | None = None,
        max_bytes: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The records of a span, in order, in batches of the log's columns.

        The first column is `offset`, absolute; the others are those of
        `penstock.logd.format.batch`.

        Args:
            span: All of its records.
            fail_on_data_loss: Whether to raise where some are gone; else it goes on behind them.
            subject: A filter; logd sends records on other subjects not at all.
            max_bytes: Bytes of memory that they may take; None: they are not counted.

        Raises:
            LargerThanPlannedError: They take more.
            DataLossError: Records of the span are gone, and that was not allowed.
            LogRefusedError: logd refuses, and does not say that records are gone.
            LogUnavailableError: logd stayed away.
        """
        held: list[pa.RecordBatch] = []
        rows = size = 0
        cuts = self._cuts(span, fail_on_data_loss=fail_on_data_loss, subject=subject)
        for cut in within(cuts, max_bytes, span):
            batch = cut.rows()
            if not batch.num_rows:
                continue
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= ROWS_TARGET or size >= BYTES_TARGET:
                yield together(held)
                held, rows, size = [], 0, 0
        if held:
            yield together(held)

    def frame_sizes(self, span: Span, *, subject: str | None) -> Iterator[FrameSize]:
        """Bytes of every frame of a span, which is fetched and not decoded.

        Raises:
            LogRefusedError: logd refuses, and does not say that records are gone.
            LogUnavailableError: logd stayed away.
        """
        for cut in self._cuts(span, fail_on_data_loss=False, subject=subject):
            yield FrameSize(cut.start, cut.end, cut.size)

    def sample(
        self, looks: Iterable[Look], *, subject: str | None, patiently: bool, found: Found
    ) -> None:
        """See how large records are, as `RecordSizes.ask` says.

        Args:
            looks: Positions to sample.
            subject: Subject of the records that are read.
            patiently: Whether logd is waited for if need be, as long as it tells of one at a time.
            found: Told what was found.

        Raises:
            LogUnavailableError: logd is away, or has no time for this reader; or it stayed so.
        """
        left = dict.fromkeys(looks)

        def take(look: Look, sample: Sample) -> None:
            del left[look]
            found(look, sample)

        while left:
            waiting = len(left)
            try:
                self._asked(
                    lambda: self._sizes.ask(tuple(left), subject, take), patiently=patiently
                )
            except LogUnavailableError:
                if not patiently or len(left) == waiting:
                    raise

    def _cuts(self, span: Span, *, fail_on_data_loss: bool, subject: str | None) -> Iterator[Cut]:
        """The frames that hold the span, cut to it.

        Records are missing where no frame stands for their offsets; a frame may have fewer rows
        than offsets, for compaction removes records and keeps the frames' ranges. With a subject
        frames stand for what matches only, and the server says how far it has looked.
        """
        position, epoch = span.start, span.epoch
        while position < span.end:
            ask = partial(fetch, self._client, span, position, epoch=epoch, subject=subject)
            try:
                fetched = self._fetched(span, ask)
            except DataLossError as error:
                if fail_on_data_loss:
                    raise
                behind = span.end if error.next_offset is None else error.next_offset
                lost = min(behind, span.end) - position
                warn(f"going on at {behind} without {lost} offsets that are lost: {error}")
                self.lost += lost
                position = behind
                epoch = None  # what an election has put in the place of lost records is read
                continue
            for header, body in fetched.frames:
                if header.base_offset >= span.end:
                    break
                if header.base_offset > position and subject is None:
                    missing = (
                        f"{span.stream}/{span.partition}: offsets {position} to"
                        f" {header.base_offset - 1} are missing from the log"
                    )
                    if fail_on_data_loss:
                        raise DataLossError(f"{missing}; {ACCEPTING} behind them")
                    warn(missing)
                    self.lost += header.base_offset - position
                start, end = max(position, header.base_offset), min(span.end, header.next_offset)
                yield Cut(header, body, start, end, f"{span.stream}/{span.partition}")
                position = header.next_offset
            position, epoch = max(position, fetched.next_offset), fetched.log_epoch

    def _fetched(self, span: Span, ask: Callable[[], Fetched]) -> Fetched:
        """Fetch; retry damaged records for a while, for another replica may have them intact.

        A leader that learns of damage lets another replica lead, or fetches the bytes from it.
        After one wait has failed, other damage is not waited for.
        """
        until_ns: int | None = None
        while True:
            try:
                return self._patiently(ask)
            except DamagedError:
                now_ns = self._clock.monotonic_ns()
                if until_ns is None:
                    until_ns = now_ns + int(_MENDED_S * 1e9) if self._has_copies(span) else 0
                if now_ns >= until_ns:
                    self._may_mend = False
                    raise
            self._clock.sleep(_RETRY_FIRST_S)

    def _has_copies(self, span: Span) -> bool:
        """Return whether the partition has other replicas, as far as is known."""
        if not self._may_mend:
            return False
        try:
            parts = self._client.stream(span.stream).partitions
        except (RefusedError, UnavailableError, CorruptError):
            return False
        return any(len(it.replicas) > 1 for it in parts if it.partition == span.partition)

    def _at_time(self, where: StreamPartition, time_ms: int) -> int:
        return self._client.offset_for_timestamp(where.stream, time_ms * 10**6, where.partition)

    def _state(self, streams: Subscription | tuple[str, ...], *, may_be_gone: bool) -> LogState:
        wanted = Subscription(names=streams) if isinstance(streams, tuple) else streams
        known = self._described(wanted)
        names = wanted.streams(known.keys())
        unknown = [name for name in names if name not in known]
        if unknown and not may_be_gone:
            raise DataLossError(f"logd has no stream {', '.join(map(repr, unknown))}")
        names = tuple(name for name in names if name in known)
        parts: dict[StreamPartition, PartitionInfo] = {}
        for name in names:
            if not known[name].partitions:
                raise UnavailableError(f"stream {name!r}: {known[name].problem}")
            parts |= {
                StreamPartition(name, part.partition): part for part in known[name].partitions
            }
        parts = {where: part for where, part in parts.items() if wanted.covers(where)}
        absent = sorted(wanted.partitions - parts.keys())
        if absent and not may_be_gone:
            name = f"{absent[0].stream}/{absent[0].partition}"
            raise UnknownPartitionError(f"logd has no partition {name}")
        away = [where for where, part in parts.items() if not part.is_known]
        if away:
            raise UnavailableError(
                f"{away[0].stream}/{away[0].partition}: no node that leads it answers"
            )
        return LogState(
            readable={
                where: Readable(part.start_offset, part.high_watermark + 1)
                for where, part in parts.items()
            },
            stream_ids={name: known[name].incarnation for name in names},
            epochs={where: part.epoch for where, part in parts.items()},
            written={where: part.end_offset for where, part in parts.items()},
        )

    def _described(self, wanted: Subscription) -> dict[str, StreamInfo]:
        """The streams there are, by name; of one that is named, only that."""
        try:
            if len(wanted.names) == 1:
                return {wanted.names[0]: self._client.stream(wanted.names[0])}
            return {info.name: info for info in self._client.streams()}
        except CorruptError as error:  # of the answer: no record is in it
            raise UnavailableError(f"{self._client.server} answers otherwise: {error}") from None
        except RefusedError as error:
            if error.code == "UNKNOWN_STREAM":
                return {}
            if error.code not in NOT_LET_IN:
                raise
            raise UnavailableError(str(error)) from None

    def _asked(self, call: Callable[[], Value], *, patiently: bool) -> Value:
        if patiently:
            return self._patiently(call)
        try:
            return call()
        except UnavailableError as error:
            raise LogUnavailableError(str(error)) from None

    def _patiently(self, call: Callable[[], Value]) -> Value:
        deadline_ns = self._clock.monotonic_ns() + int(self._retry_timeout_s * 1e9)
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S, jitter=0.5)
        while True:
            try:
                return call()
            except UnavailableError as error:
                if self._clock.monotonic_ns() >= deadline_ns:
                    raise LogUnavailableError(
                        f"{error}; gave up after {self._retry_timeout_s:g} s"
                    ) from None
            self._clock.sleep(backoff.next_wait(self._random.random()))
