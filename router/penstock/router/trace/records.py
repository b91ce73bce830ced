"""The records that a trace is asked about, read from the log by their positions and typed."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.logd.client import LogClient, OffsetRange
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.format.batch import decode_body
from penstock.logd.format.frame import FrameHeader
from penstock.logd.format.rows import slice_rows
from penstock.router.checkpoint.deliveries import RecordPosition
from penstock.router.columns.projection import Projection, Projector, arrow_schema
from penstock.router.columns.schema import view
from penstock.router.columns.spec_versions import known_versions
from penstock.router.read.offsets import Span, StreamPartition
from penstock.router.trace.verdict import Wanted

_RECORDS: Final = view("records")
_DIGEST_BYTES: Final = 16
_LOG_COLUMNS: Final = ("timestamp", "subject", "key", "value")


def value_digest(value: bytes | None) -> str:
    """Return the digest by which a client shows that it has read a record."""
    return hashlib.blake2b(value or b"", digest_size=_DIGEST_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class ReadRecords:
    """What the log has of the wanted records.

    Attributes:
        rows: Those that are there: rows of the view `records`, one for each.
        readable: Readable offsets of each partition.
        stream_ids: Id of each stream.
        missing: Why a record cannot be read, by position.
    """

    rows: pa.Table
    readable: Mapping[StreamPartition, OffsetRange]
    stream_ids: Mapping[str, str]
    missing: Mapping[RecordPosition, str] = field(default_factory=dict)


def read_records(log: LogClient, wanted: Sequence[Wanted]) -> ReadRecords:
    """Read records by their positions.

    Raises:
        LogdError: logd cannot be reached, or refuses this client.
    """
    places = sorted({it.at for it in wanted})
    stream_ids = {name: log.stream(name).incarnation for name in {at.stream for at in places}}
    readable = {at: log.offsets(*at) for at in places}
    batches, missing = list[pa.RecordBatch](), dict[RecordPosition, str]()
    projector = Projector(Projection(_RECORDS, _RECORDS.columns, versions=known_versions()))
    for at in places:
        offsets = sorted({it.offset for it in wanted if it.at == at})
        rows, gone = _rows_of(log, at, offsets, readable[at], stream_ids[at.stream])
        missing |= gone
        if rows is not None:
            span = Span(at.stream, at.partition, offsets[0], offsets[-1] + 1)
            batches.append(projector.shape(span, rows))
    empty = pa.RecordBatch.from_pylist([], schema=arrow_schema(_RECORDS.columns))
    return ReadRecords(pa.Table.from_batches([empty, *batches]), readable, stream_ids, missing)


def _rows_of(
    log: LogClient,
    at: StreamPartition,
    offsets: Iterable[int],
    readable: OffsetRange,
    stream_id: str,
) -> tuple[pa.RecordBatch | None, dict[RecordPosition, str]]:
    """The rows of a partition at these offsets, and why others cannot be read."""
    parts, missing = list[pa.RecordBatch](), dict[RecordPosition, str]()
    frame: tuple[FrameHeader, pa.RecordBatch] | None = None
    for offset in offsets:
        if not readable.start <= offset < readable.end:
            missing[at, offset] = "out of range"
            continue
        try:
            if frame is None or not frame[0].base_offset <= offset < frame[0].next_offset:
                frame = _frame_at(log, at, offset, stream_id)
        except (CorruptError, RefusedError) as error:
            if isinstance(error, RefusedError) and error.code not in ("CORRUPT", "OUT_OF_RANGE"):
                raise
            missing[at, offset] = str(error)
            continue
        row = None if frame is None else slice_rows(*frame, offset, offset + 1)
        if frame is None or row is None or not row.num_rows:
            missing[at, offset] = "the log has no record at this offset: compaction removed it"
            continue
        absolute = pc.add(row.column("offset_delta").cast(pa.int64()), frame[0].base_offset)
        columns = [absolute, *(row.column(name) for name in _LOG_COLUMNS)]
        parts.append(pa.RecordBatch.from_arrays(columns, names=["offset", *_LOG_COLUMNS]))
    if not parts:
        return None, missing
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0], missing


def _frame_at(
    log: LogClient, at: StreamPartition, offset: int, stream_id: str
) -> tuple[FrameHeader, pa.RecordBatch] | None:
    fetched = log.fetch(
        at.stream, offset, partition=at.partition, bytes_max=1, incarnation=stream_id
    )
    for header, body in fetched.frames:
        if header.base_offset <= offset < header.next_offset:
            return header, decode_body(body, where=f"{at.stream}/{header.base_offset}")
    return None
