"""Reading a span of the log as Arrow batches in Spark's form, patiently: logd may be restarting."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.logd.batch import SCHEMA, decode_body
from penstock.logd.client import ANYBODY, Access, Fetched, LogClient, passes, slice_rows
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.router.clock import Clock
from penstock.router.core.offsets import Readable, Span, StreamPartition
from penstock.router.errors import DataLossError, LogUnavailableError

ROWS_TARGET: Final = 16_384
"""Rows gathered before a batch goes to Spark; small Arrow batches cost it more than large ones."""

BYTES_TARGET: Final = 8 * 1024 * 1024
"""Bytes likewise, a bound on what a worker holds."""

FETCH_BYTES: Final = 4 * 1024 * 1024
"""Bytes asked for in one fetch."""

_TIMEOUT_S: Final = 10.0
_RETRY_FIRST_S: Final = 0.1
_RETRY_MAX_S: Final = 2.0

_NOT_LET_IN: Final = frozenset(
    {
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
        "QUOTA_EXCEEDED",
        "PLAIN_TOKEN",
        "BAD_TOKEN_FILE",
        "BAD_TLS_FILE",
    }
)
"""Refusals of this reader, which say nothing of the records."""

Value = TypeVar("Value")

_FIELDS: Final = [
    pa.field("stream", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestamp_ns", pa.int64()),
    pa.field("subject", pa.string()),
    pa.field("key", pa.binary()),
    pa.field("headers", pa.map_(pa.string(), pa.binary())),
    pa.field("value", pa.binary()),
]
_LOG_SCHEMA: Final = SCHEMA.remove(0).insert(0, pa.field("offset", pa.int64()))


@dataclass(frozen=True, slots=True)
class LogState:
    """What can be read of some streams at one moment."""

    readable: Mapping[StreamPartition, Readable]
    incarnations: Mapping[str, str]


class LogReading:
    """A connection to logd that waits for it, up to a limit, when it is away.

    Args:
        server: Address of logd's fetch endpoint.
        retry_timeout_s: Seconds to wait for an unreachable logd before giving up; and for one that
            does not let this reader in, for tokens and permissions are renewed.
        clock: For the waiting.
        access: How it is let in.
    """

    def __init__(
        self, server: str, *, retry_timeout_s: float, clock: Clock, access: Access = ANYBODY
    ) -> None:
        self._client = LogClient(server, timeout_s=_TIMEOUT_S, access=access)
        self._retry_timeout_s = retry_timeout_s
        self._clock = clock
        self._random = random.Random()  # noqa: S311 - jitter

    def __enter__(self) -> Self:
        """Nothing is connected yet."""
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
        """Close the connection."""
        self._client.close()

    def state(self, streams: tuple[str, ...]) -> LogState:
        """What can be read now, after waiting for logd if need be.

        Raises:
            DataLossError: A stream does not exist.
            LogUnavailableError: logd stayed away.
        """
        return self._patiently(lambda: self._state(streams))

    def state_now(self, streams: tuple[str, ...]) -> LogState:
        """`state` without the patience."""
        try:
            return self._state(streams)
        except UnavailableError as error:
            raise LogUnavailableError(str(error)) from None

    def rows(
        self, span: Span, *, include_headers: bool, fail_on_data_loss: bool
    ) -> Iterator[pa.RecordBatch]:
        """Exactly the records of a span, in order, in batches of Spark's columns.

        Raises:
            DataLossError: Records of the span are gone, and that was not allowed.
            LogUnavailableError: logd stayed away.
        """
        held: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in self._slices(span, fail_on_data_loss=fail_on_data_loss):
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= ROWS_TARGET or size >= BYTES_TARGET:
                yield _spark_batch(span, held, include_headers=include_headers)
                held, rows, size = [], 0, 0
        if held:
            yield _spark_batch(span, held, include_headers=include_headers)

    def _slices(self, span: Span, *, fail_on_data_loss: bool) -> Iterator[pa.RecordBatch]:
        """The frames that hold the span, cut to it, with absolute offsets in column 0.

        Records are missing where no frame stands for their offsets; a frame may have fewer rows
        than offsets, for compaction removes records and keeps the frames' ranges.
        """
        position = span.start
        while position < span.end:
            at = position
            try:
                fetched = self._patiently(lambda at=at: self._fetch(span, at))  # type: ignore[misc]
            except DataLossError:
                if fail_on_data_loss:
                    raise
                position = self._first_readable_after(span, position)
                continue
            for header, body in fetched.frames:
                if header.base_offset >= span.end:
                    break
                if header.base_offset > position and fail_on_data_loss:
                    raise DataLossError(
                        f"{span.stream}/{span.partition}: offsets {position} to"
                        f" {header.base_offset - 1} are missing from the log"
                    )
                where = f"{span.stream}/{span.partition} offset {header.base_offset}"
                rows = slice_rows(header, decode_body(body, where=where), position, span.end)
                if rows.num_rows:  # of a compacted frame, all may have been removed
                    yield _with_offsets(rows, header.base_offset)
                position = header.next_offset
            position = max(position, fetched.next_offset)

    def _fetch(self, span: Span, offset: int) -> Fetched:
        try:
            fetched = self._client.fetch(
                span.stream,
                offset,
                partition=span.partition,
                bytes_max=FETCH_BYTES,
                wait_ms=1000,
            )
        except RefusedError as error:
            if passes(error) or error.code in _NOT_LET_IN:
                raise UnavailableError(str(error)) from None
            raise DataLossError(
                f"{span.stream}/{span.partition}: offset {offset} cannot be read: {error}"
                f" ({error.code} {error.detail})"
            ) from None
        if span.incarnation and fetched.incarnation != span.incarnation:
            raise DataLossError(f"stream {span.stream!r} was deleted and made again")
        if not fetched.frames:
            raise UnavailableError(
                f"{span.stream}/{span.partition}: nothing to read at offset {offset} below"
                f" {span.end}"
            )
        return fetched

    def _first_readable_after(self, span: Span, position: int) -> int:
        """Where reading can go on behind a gap; the span's end when nowhere in it."""
        state = self.state((span.stream,))
        readable = state.readable[span.where]
        if position < readable.start < span.end:
            return readable.start
        return span.end

    def _state(self, streams: tuple[str, ...]) -> LogState:
        try:
            known = {info.name: info for info in self._client.streams()}
        except RefusedError as error:
            if error.code not in _NOT_LET_IN:
                raise
            raise UnavailableError(str(error)) from None
        unknown = [name for name in streams if name not in known]
        if unknown:
            raise DataLossError(f"logd has no stream {', '.join(map(repr, unknown))}")
        for name in streams:
            if not known[name].partitions:
                raise UnavailableError(f"stream {name!r}: {known[name].problem}")
            away = [part.partition for part in known[name].partitions if not part.is_known]
            if away:
                raise UnavailableError(f"{name}/{away[0]}: no node that leads it answers")
        return LogState(
            readable={
                StreamPartition(name, part.partition): Readable(
                    part.start_offset, part.high_watermark + 1
                )
                for name in streams
                for part in known[name].partitions
            },
            incarnations={name: known[name].incarnation for name in streams},
        )

    def _patiently(self, call: Callable[[], Value]) -> Value:
        deadline_ns = self._clock.monotonic_ns() + int(self._retry_timeout_s * 1e9)
        pause_s = _RETRY_FIRST_S
        while True:
            try:
                return call()
            except UnavailableError as error:
                if self._clock.monotonic_ns() >= deadline_ns:
                    raise LogUnavailableError(
                        f"{error}; gave up after {self._retry_timeout_s:g} s"
                    ) from None
            self._clock.sleep(self._random.uniform(pause_s / 2, pause_s))
            pause_s = min(pause_s * 2, _RETRY_MAX_S)


def _with_offsets(rows: pa.RecordBatch, base_offset: int) -> pa.RecordBatch:
    offsets = pc.add(rows.column(0).cast(pa.int64()), base_offset)
    return pa.RecordBatch.from_arrays([offsets, *rows.columns[1:]], schema=_LOG_SCHEMA)


def _spark_batch(
    span: Span, parts: list[pa.RecordBatch], *, include_headers: bool
) -> pa.RecordBatch:
    """Lay rows out in the columns of `source.row_type`."""
    rows = parts[0]
    if len(parts) > 1:
        rows = pa.concat_batches(parts)
    count = rows.num_rows
    timestamp = rows.column("timestamp")
    columns = {
        "stream": pa.repeat(span.stream, count),
        "partition": pa.repeat(pa.scalar(span.partition, pa.int32()), count),
        "offset": rows.column("offset"),
        "timestamp": timestamp.cast(pa.timestamp("us", tz="UTC"), safe=False),
        "timestamp_ns": timestamp.cast(pa.int64()),
        "subject": rows.column("subject"),
        "key": rows.column("key"),
        "headers": rows.column("headers"),
        "value": rows.column("value"),
    }
    fields = [field for field in _FIELDS if include_headers or field.name != "headers"]
    return pa.RecordBatch.from_arrays(
        [columns[field.name] for field in fields], schema=pa.schema(fields)
    )
