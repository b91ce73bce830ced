"""Streams as DuckDB and file writers read them: Arrow batches, fetched as they are asked for."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.logd.client import LogClient
from penstock.logd.dump import SCHEMA_OF_DUMP
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.frame import FrameHeader
from penstock.logd.rows import slice_rows

FETCH_BYTES: Final = 1024 * 1024
"""Bytes of frames fetched at a time: what a scan holds, besides what DuckDB does."""

ROWS: Final = 8192
"""Rows that are handed on together; fewer where they fill `FETCH_BYTES`."""

_Gathered = tuple[pa.RecordBatch, int]

QUERY_SCHEMA: Final = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("log_offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("timestamp_ns", pa.int64(), nullable=False),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("value", pa.binary()),
        pa.field("text", pa.string()),
    ]
)
"""A stream's columns in SQL; DuckDB compares microseconds with its other times, and nothing else.

`text` is the value where that is UTF-8, else null. Of a header that is repeated the last one is
there, as text; bytes that are none are taken for Latin-1.
"""


@dataclass(frozen=True, slots=True)
class Range:
    """What is read of a partition: [start, end) of one incarnation of its stream."""

    stream: str
    partition: int
    start: int
    end: int

    @property
    def count(self) -> int:
        """Offsets in it."""
        return max(self.end - self.start, 0)


class StreamSource:
    """A stream that can be read again and again, by several readers at a time.

    Args:
        connect: Makes a client for one reader.
        ranges: What is read, partition by partition.
        columns: Those that are looked at; what is costly to make and not among them is null.
            None: all.
        advance: Told how many records, and bytes, have come.

    Attributes:
        error: What ended the last reading that failed; DuckDB only says its words.
    """

    def __init__(
        self,
        connect: Callable[[], LogClient],
        ranges: list[Range],
        columns: Collection[str] | None,
        advance: Callable[[int, int], None],
    ) -> None:
        self.error: Exception | None = None
        self._connect = connect
        self._ranges = ranges
        self._columns = columns
        self._advance = advance

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        """As the Arrow PyCapsule interface has it; DuckDB calls it for each scan."""
        reader = pa.RecordBatchReader.from_batches(QUERY_SCHEMA, self.batches())
        return reader.__arrow_c_stream__(requested_schema)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """What is read, in `QUERY_SCHEMA`."""
        try:
            with self._connect() as log:
                for part in self._ranges:
                    for rows, size in gathered(read_range(log, part)):
                        self._advance(rows.num_rows, size)
                        yield _for_query(part.partition, rows, self._columns)
        except Exception as error:
            self.error = error
            raise


def read_range(log: LogClient, part: Range) -> Iterator[tuple[FrameHeader, pa.RecordBatch]]:
    """The rows of a range, frame by frame; frames without any are left out."""
    batches = log.batches(
        part.stream, part.start, part.end, partition=part.partition, bytes_max=FETCH_BYTES
    )
    for header, batch in batches if part.count else ():
        rows = slice_rows(header, batch, part.start, part.end)
        if rows.num_rows:
            yield header, rows


def gathered(frames: Iterator[tuple[FrameHeader, pa.RecordBatch]]) -> Iterator[_Gathered]:
    """Frames put together, in `SCHEMA_OF_DUMP`, and how many bytes they had.

    A stream of a record to a frame would else be read by DuckDB a record at a time.
    """
    parts: list[pa.RecordBatch] = []
    count = size = 0
    for header, rows in frames:
        columns = [offsets_of(header, rows), *rows.columns[1:]]
        parts.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA_OF_DUMP))
        count, size = count + rows.num_rows, size + header.body_length
        if count >= ROWS or size >= FETCH_BYTES:
            yield _one(parts), size
            parts, count, size = [], 0, 0
    if parts:
        yield _one(parts), size


def _one(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


def clip(
    log: LogClient, stream: str, partition: int, start: int, end: int | None, time_ns: int | None
) -> Range:
    """What of [start, end) there is now, from a time on.

    Raises:
        RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`.
    """
    first, last = log.offsets(stream, partition)
    start = max(start, first)
    if time_ns is not None:
        start = max(start, log.offset_for_timestamp(stream, time_ns, partition))
    return Range(stream, partition, start, last if end is None else min(end, last))


def partitions_of(log: LogClient, stream: str, wanted: Collection[int]) -> list[int]:
    """The numbers of a stream's partitions, or those of them that are wanted.

    Raises:
        RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`.
        UnavailableError: The stream is not open.
    """
    info = log.stream(stream)
    count = len(info.partitions)
    if not count:  # an earlier logd shows no partitions of a stream that is not open
        raise UnavailableError(f"stream {stream!r}: {info.problem or 'it has no partitions'}")
    missing = sorted(number for number in wanted if number >= count)
    if missing:
        message = f"stream {stream!r} has no partition {missing[0]}"
        raise RefusedError("UNKNOWN_PARTITION", message, stream=stream, partition=missing[0])
    return sorted(wanted) or list(range(count))


def _for_query(
    partition: int, rows: pa.RecordBatch, columns: Collection[str] | None
) -> pa.RecordBatch:
    def wanted(name: str) -> bool:
        return columns is None or name in columns

    nothing = [
        pa.nulls(rows.num_rows, QUERY_SCHEMA.field(name).type) for name in ("headers", "text")
    ]
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(partition, pa.int32()), rows.num_rows),
            rows.column("offset"),
            rows.column("timestamp").cast(QUERY_SCHEMA.field("timestamp").type, safe=False),
            rows.column("timestamp").cast(pa.int64()),
            rows.column("subject"),
            rows.column("key"),
            _headers(rows.column("headers")) if wanted("headers") else nothing[0],
            rows.column("value"),
            _text(rows.column("value")) if wanted("text") else nothing[1],
        ],
        schema=QUERY_SCHEMA,
    )


def offsets_of(header: FrameHeader, rows: pa.RecordBatch) -> pa.Array:
    """The offsets of a frame's rows."""
    return pc.add(rows.column("offset_delta").cast(pa.int64()), header.base_offset)


def _headers(column: pa.Array) -> pa.Array:
    """Headers whose names are unique, for DuckDB's maps."""
    kind = QUERY_SCHEMA.field("headers").type
    if column.null_count == len(column):
        return pa.nulls(len(column), kind)
    pairs = [
        None if found is None else list({name: _words(value) for name, value in found}.items())
        for found in column.to_pylist()
    ]
    return pa.array(pairs, kind)


def _text(column: pa.Array) -> pa.Array:
    """Values that are UTF-8, as text without a copy where all of them are."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_decoded(value) for value in column.to_pylist()], pa.string())


def _decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _words(value: bytes) -> str:
    text = _decoded(value)
    return value.decode("latin-1") if text is None else text
