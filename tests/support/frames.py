"""Frames for tests of the store: opaque bodies, real headers."""

from collections.abc import Sequence

import pyarrow as pa

from penstock.logd.format.batch import Record, build_batch, encode_body
from penstock.logd.format.frame import NO_PRODUCER, NO_TIMESTAMP, FrameHeader, crc32c

OPAQUE_SCHEMA = 200
"""A schema version that no codec knows: the store must not look into such bodies."""


def make_frame(
    base_offset: int,
    body: bytes,
    *,
    records: int = 1,
    epoch: int = 1,
    timestamp_ns: int = 0,
    max_timestamp_ns: int | None = None,
    producer_id: bytes = NO_PRODUCER,
    producer_sequence: int = 0,
) -> tuple[FrameHeader, bytes]:
    """A placed frame around a body, which is padded to a multiple of 8."""
    body += bytes(-len(body) % 8)
    header = FrameHeader(
        base_offset=base_offset,
        leader_epoch=epoch,
        record_count=records,
        last_offset_delta=records - 1,
        body_length=len(body),
        body_crc=crc32c(body),
        first_timestamp_ns=timestamp_ns,
        max_timestamp_ns=timestamp_ns if max_timestamp_ns is None else max_timestamp_ns,
        schema_version=OPAQUE_SCHEMA,
        producer_id=producer_id,
        producer_sequence=producer_sequence,
    )
    return header, body


def make_frames(base_offset: int, bodies: Sequence[bytes]) -> list[tuple[FrameHeader, bytes]]:
    """Frames of one record each, end to end; each one's timestamp is its offset."""
    return [
        make_frame(base_offset + number, body, timestamp_ns=base_offset + number)
        for number, body in enumerate(bodies)
    ]


def make_batch_frame(
    base_offset: int,
    records: Sequence[Record],
    *,
    kept: Sequence[int] | None = None,
    epoch: int = 1,
    producer_id: bytes = NO_PRODUCER,
    producer_sequence: int = 0,
) -> tuple[FrameHeader, bytes, pa.RecordBatch]:
    """A placed frame of real records, and its batch; compacted to those in `kept` if given."""
    batch = build_batch(records)
    if kept is not None:
        batch = batch.take(pa.array(kept, pa.int32()))
    body = encode_body(batch)
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    header = FrameHeader(
        base_offset=base_offset,
        leader_epoch=epoch,
        record_count=batch.num_rows,
        last_offset_delta=len(records) - 1,
        body_length=len(body),
        body_crc=crc32c(body),
        first_timestamp_ns=times[0] if times else NO_TIMESTAMP,
        max_timestamp_ns=max(times, default=NO_TIMESTAMP),
        schema_version=1,
        producer_id=producer_id,
        producer_sequence=producer_sequence,
        compacted=kept is not None,
    )
    return header, body, batch
