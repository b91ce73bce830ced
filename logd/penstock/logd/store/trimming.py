"""A frame cut down to a part of its range."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from penstock.logd.batch import SCHEMA, SCHEMA_VERSION, decode_body, encode_body
from penstock.logd.errors import RefusedError
from penstock.logd.frame import NO_PRODUCER, NO_TIMESTAMP, FrameHeader, crc32c


def trim_frame(
    header: FrameHeader, body: bytes, first: int, upto: int
) -> tuple[FrameHeader, bytes]:  # fmt: skip
    """The frame of those of its records that lie in [first, upto), which it has a part of.

    What stays of a record stays bit for bit. The frame counts as compacted and names no producer:
    it is not the batch any more that its producer sent.

    Raises:
        RefusedError: `UNKNOWN_FORMAT`: its rows cannot be told apart.
        CorruptError: Its body is no record batch.
    """
    if header.schema_version != SCHEMA_VERSION:
        message = f"a frame of schema version {header.schema_version} cannot be cut down"
        raise RefusedError("UNKNOWN_FORMAT", message, version=header.schema_version)
    first, upto = max(first, header.base_offset), min(upto, header.next_offset)
    assert first < upto, (header, first, upto)
    batch = decode_body(body)
    distance = first - header.base_offset
    deltas = batch.column("offset_delta")
    inside = pc.and_(
        pc.greater_equal(deltas, pa.scalar(distance, pa.int32())),
        pc.less(deltas, pa.scalar(upto - header.base_offset, pa.int32())),
    )
    left = batch.filter(inside)
    moved = pc.subtract(left.column("offset_delta"), pa.scalar(distance, pa.int32()))
    left = pa.RecordBatch.from_arrays([moved, *left.columns[1:]], schema=SCHEMA)
    trimmed = encode_body(left)
    if len(trimmed) > len(body):
        trimmed = min(trimmed, encode_body(left, compression="zstd"), key=len)
    times = left.column("timestamp").cast(pa.int64())
    trimmed_header = replace(
        header,
        base_offset=first,
        record_count=left.num_rows,
        last_offset_delta=upto - first - 1,
        body_length=len(trimmed),
        body_crc=crc32c(trimmed),
        first_timestamp_ns=times[0].as_py() if len(times) else NO_TIMESTAMP,
        max_timestamp_ns=pc.max(times).as_py() if len(times) else NO_TIMESTAMP,
        producer_id=NO_PRODUCER,
        producer_sequence=0,
        compacted=True,
    )
    return trimmed_header, trimmed
