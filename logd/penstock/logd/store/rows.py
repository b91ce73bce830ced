"""The rows of a frame, where the store has to look into it."""

from penstock.logd.batch import SCHEMA_VERSION, decode_body
from penstock.logd.frame import FrameHeader


def first_row_at(header: FrameHeader, body: bytes, timestamp_ns: int) -> int:
    """Offset of a frame's first record that is not earlier than a time.

    A body of another schema version is opaque here: its frame's base offset is the answer.
    """
    if header.schema_version != SCHEMA_VERSION:
        return header.base_offset
    if header.first_timestamp_ns >= timestamp_ns and not header.compacted:
        return header.base_offset
    batch = decode_body(body)
    times = batch.column("timestamp").cast("int64").to_pylist()
    deltas = batch.column("offset_delta").to_pylist()
    for delta, time in zip(deltas, times, strict=True):
        if time >= timestamp_ns:
            return header.base_offset + int(delta)
    return header.base_offset
