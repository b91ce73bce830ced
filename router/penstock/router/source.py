"""The Spark data source `format("logd")`: streams of a logd by offset, as they lie in the log.

    spark.dataSource.register(LogDataSource)
    frame = (
        spark.readStream.format("logd")
        .option("logd", "127.0.0.1:9293")
        .option("subscribe", "logs,traces")
        .load()
    )

| option | default | meaning |
|---|---|---|
| logd | required | address of logd's fetch endpoint, HOST:PORT |
| subscribe | required | stream names, separated by commas |
| startingOffsets | earliest for a batch, latest for a stream | earliest, latest, or JSON |
| endingOffsets | latest | for a batch: latest, or JSON |
| maxOffsetsPerTrigger | no limit | records of one micro-batch |
| minPartitions | one per partition of the log | pieces that a batch is read in |
| failOnDataLoss | true | fail, rather than go on without records that are gone |
| includeHeaders | false | adds the column `headers` |
| retryTimeoutSeconds | 120 | how long an unreachable logd is waited for |
| tokenFile | none | a file with a token or an API key, there where tasks run as well |
| tls | false | whether to connect with TLS; so it is with the next two |
| tlsCaFile | the system's | PEM; the authority of logd's certificate |
| certFile, keyFile | none | PEM; the certificate to be known by, and its key |

JSON offsets are `{"logs": {"0": 123}}`; -2 in place of an offset is the earliest, -1 the latest.

Spark runs the planning side in one Python process beside the driver, and `read` in its workers.
This module is imported by both: it must not import the daemons' libraries.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from typing_extensions import override

from penstock.logd.client import Access
from penstock.router.clock import Clock, SystemClock
from penstock.router.core.offsets import (
    EARLIEST,
    LATEST,
    Offsets,
    Span,
    StreamPartition,
    admit,
    check_readable,
    clip,
    offsets_from_json,
    resolve,
    spans_between,
    split,
    with_streams_not_read,
)
from penstock.router.errors import BadOptionError, LogUnavailableError
from penstock.router.reading import LogReading, LogState

RETRY_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of `format("logd")`, checked; see the module's table."""

    logd: str
    streams: tuple[str, ...]
    starting: Offsets | int
    ending: Offsets | int
    rows_max: int | None
    partitions_min: int
    fail_on_data_loss: bool
    include_headers: bool
    retry_timeout_s: float
    access: Access

    def reading(self, clock: Clock) -> LogReading:
        """A reader of the log with these options."""
        return LogReading(
            self.logd, retry_timeout_s=self.retry_timeout_s, clock=clock, access=self.access
        )


def parse_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Check the options of the data source.

    Raises:
        BadOptionError: One is missing, unknown in value or of the wrong form.
    """
    streams = tuple(name.strip() for name in _need(options, "subscribe").split(",") if name.strip())
    if not streams:
        raise BadOptionError("option subscribe names no stream")
    limit = options.get("maxOffsetsPerTrigger")
    return SourceOptions(
        logd=_need(options, "logd"),
        streams=streams,
        starting=_offsets(
            options, "startingOffsets", default="latest" if streaming else "earliest"
        ),
        ending=_offsets(options, "endingOffsets", default="latest"),
        rows_max=None if limit is None else _positive(limit, "maxOffsetsPerTrigger"),
        partitions_min=_positive(options.get("minPartitions", "1"), "minPartitions"),
        fail_on_data_loss=_flag(options, "failOnDataLoss", default=True),
        include_headers=_flag(options, "includeHeaders", default=False),
        retry_timeout_s=_seconds(options, "retryTimeoutSeconds", default=RETRY_TIMEOUT_S),
        access=_access(options),
    )


def _access(options: Mapping[str, str]) -> Access:
    try:
        return Access(
            tls=_flag(options, "tls", default=False),
            ca_file=options.get("tlsCaFile"),
            cert_file=options.get("certFile"),
            key_file=options.get("keyFile"),
            token_file=options.get("tokenFile"),
        )
    except ValueError as error:
        raise BadOptionError(f"options keyFile, certFile, tokenFile: {error}") from None


class LogPartition(InputPartition):  # type: ignore[misc] # pyspark is untyped here
    """What one task reads."""

    def __init__(self, span: Span) -> None:
        super().__init__(span)
        self.span = span


class LogDataSource(DataSource):  # type: ignore[misc] # pyspark is untyped here
    """Streams of a logd."""

    @classmethod
    @override
    def name(cls) -> str:
        return "logd"

    @override
    def schema(self) -> StructType:
        return row_type(include_headers=_flag(self.options, "includeHeaders", default=False))

    @override
    def reader(self, schema: StructType) -> "LogBatchReader":
        return LogBatchReader(parse_options(self.options, streaming=False))

    @override
    def streamReader(self, schema: StructType) -> "LogStreamReader":
        return LogStreamReader(parse_options(self.options, streaming=True))


class LogBatchReader(DataSourceReader):  # type: ignore[misc] # pyspark is untyped here
    """Reads a bounded range once."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    @override
    def partitions(self) -> Sequence[LogPartition]:
        options = self._options
        if options.ending == EARLIEST:
            raise BadOptionError("option endingOffsets cannot be earliest")
        with options.reading(SystemClock()) as log:
            state = log.state(options.streams)
        first = resolve(options.starting, state.readable, missing=EARLIEST)
        last = resolve(options.ending, state.readable, missing=LATEST)
        spans = spans_between(Offsets(first, state.incarnations), Offsets(last, state.incarnations))
        return _plan(spans, state, options)

    @override
    def read(self, partition: LogPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reads on from a position, micro-batch by micro-batch.

    Where logd cannot be reached when a batch is planned, there is simply nothing new; only after
    `retryTimeoutSeconds` of that the query fails.
    """

    def __init__(self, options: SourceOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._log = options.reading(self._clock)
        self._target: Mapping[StreamPartition, int] | None = None
        self._unreachable_since_ns: int | None = None

    @override
    def initialOffset(self) -> dict[str, Any]:
        state = self._log.state(self._options.streams)
        at = resolve(self._options.starting, state.readable, missing=EARLIEST)
        return Offsets(at, state.incarnations).to_json()

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        rows_max = self._options.rows_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    @override
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        state = self._state_or_nothing()
        if state is None:
            return start
        known = offsets_from_json(start)
        first = self._known_or_starting(known, state)
        last = {where: span.end for where, span in state.readable.items()}
        if self._target is not None:
            last = {
                where: max(min(end, self._target.get(where, 0)), first[where])
                for where, end in last.items()
            }
        if isinstance(limit, ReadMaxRows) and limit.max_rows > 0:
            last = admit(first, last, limit.max_rows)
        return with_streams_not_read(Offsets(last, state.incarnations), known).to_json()

    @override
    def reportLatestOffset(self) -> dict[str, Any] | None:
        state = self._state_or_nothing()
        if state is None:
            return None
        last = {where: span.end for where, span in state.readable.items()}
        return Offsets(last, state.incarnations).to_json()

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        state = self._log.state(self._options.streams)
        self._target = {where: span.end for where, span in state.readable.items()}

    @override
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[LogPartition]:
        known, last = offsets_from_json(start), offsets_from_json(end)
        # A batch planned before a restart may hold a stream that is not read any more.
        of_batch = {at.stream for at, upto in last.next.items() if known.next.get(at) != upto}
        state = self._log.state(tuple(sorted({*self._options.streams, *of_batch})))
        first = Offsets(self._known_or_starting(known, state), known.incarnations)
        if not self._options.fail_on_data_loss:
            first = _forgive(first, last)
        return _plan(spans_between(first, last), state, self._options)

    @override
    def read(self, partition: LogPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options)

    @override
    def stop(self) -> None:
        self._log.close()

    def _known_or_starting(self, known: Offsets, state: LogState) -> dict[StreamPartition, int]:
        """Where to read on; a stream that joined later starts as `startingOffsets` says."""
        starting = resolve(self._options.starting, state.readable, missing=EARLIEST)
        return starting | dict(known.next)

    def _state_or_nothing(self) -> LogState | None:
        now_ns = self._clock.monotonic_ns()
        try:
            state = self._log.state_now(self._options.streams)
        except LogUnavailableError:
            since_ns = self._unreachable_since_ns = self._unreachable_since_ns or now_ns
            if now_ns - since_ns > self._options.retry_timeout_s * 1e9:
                raise
            return None
        self._unreachable_since_ns = None
        return state


def row_type(*, include_headers: bool) -> StructType:
    """The columns of the data source."""
    fields = [
        StructField("stream", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestamp_ns", LongType()),
        StructField("subject", StringType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
    ]
    if include_headers:
        fields.insert(-1, StructField("headers", MapType(StringType(), BinaryType())))
    return StructType(fields)


def _forgive(first: Offsets, last: Offsets) -> Offsets:
    """Start a stream over that was made again, and never begin behind the end."""
    made_again = {
        stream
        for stream, incarnation in last.incarnations.items()
        if first.incarnations.get(stream, incarnation) != incarnation
    }
    return Offsets(
        {
            at: 0 if at.stream in made_again else min(offset, last.next.get(at, offset))
            for at, offset in first.next.items()
        },
        last.incarnations,
    )


def _plan(spans: list[Span], state: LogState, options: SourceOptions) -> list[LogPartition]:
    if options.fail_on_data_loss:
        check_readable(spans, state.readable)
    else:
        kept = clip(spans, state.readable)
        if kept != spans:
            print(f"logd source: going on without lost records: {spans} -> {kept}", file=sys.stderr)  # noqa: T201
        spans = kept
    return [LogPartition(span) for span in split(spans, options.partitions_min)]


def _read(partition: LogPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    with options.reading(SystemClock()) as log:
        yield from log.rows(
            partition.span,
            include_headers=options.include_headers,
            fail_on_data_loss=options.fail_on_data_loss,
        )


def _need(options: Mapping[str, str], name: str) -> str:
    value = options.get(name)
    if not value:
        raise BadOptionError(f"option {name} is required")
    return value


def _offsets(options: Mapping[str, str], name: str, *, default: str) -> Offsets | int:
    text = options.get(name) or default
    if text in ("earliest", "latest"):
        return EARLIEST if text == "earliest" else LATEST
    try:
        return offsets_from_json(json.loads(text))
    except json.JSONDecodeError:
        raise BadOptionError(
            f"option {name} must be earliest, latest or JSON, not {text!r}"
        ) from None


def _positive(text: str, name: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise BadOptionError(f"option {name} must be a number from 1 on, not {text!r}")
    return int(text)


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = (options.get(name) or str(default)).lower()
    if text not in ("true", "false"):
        raise BadOptionError(f"option {name} must be true or false, not {text!r}")
    return text == "true"


def _seconds(options: Mapping[str, str], name: str, *, default: float) -> float:
    text = options.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value < 0:
        raise BadOptionError(f"option {name} must be seconds from 0 on, not {text!r}")
    return value
