"""A producer's batch against what its envelope says, before it may enter the log."""

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.base.lazy_module import LazyModule
from penstock.logd.errors import CorruptError
from penstock.logd.format.batch import SCHEMA_VERSION, decode_body, dense_deltas, describe_body
from penstock.logd.format.body_claims import read_claims
from penstock.logd.format.envelope import BatchPayload
from penstock.logd.format.frame import FrameHeader
from penstock.logd.metadata.streams import StreamConfig

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")


def describe_batch(batch: BatchPayload, subject: str, limits: StreamConfig) -> FrameHeader:
    """Check a producer's batch against what its envelope says, and make its frame header.

    What the body claims is held against the limits before anything is decoded.

    Args:
        batch: The batch in the envelope.
        subject: Subject of the envelope. Each record must name it, or a publisher on one subject
            could write records of another.
        limits: Limits of the stream: `max_batch_rows`, `max_batch_decoded_bytes`, `max_key_bytes`.

    Raises:
        CorruptError: The body is not an Arrow batch of the schema, says something else, or is
            beyond a limit.
    """
    if batch.schema_version != SCHEMA_VERSION:
        raise CorruptError(f"batch schema version {batch.schema_version} is not known")
    rows, size = read_claims(batch.body)
    if rows != batch.record_count:
        raise CorruptError(f"the batch has {rows} records, not {batch.record_count}")
    if rows > limits.max_batch_rows:
        most = limits.max_batch_rows
        raise CorruptError(f"the batch has {rows} records; at most {most} are taken")
    if size > limits.max_batch_decoded_bytes:
        most = limits.max_batch_decoded_bytes
        raise CorruptError(f"the batch claims {size} bytes; at most {most} are taken")
    decoded = decode_body(batch.body)
    _check_columns(decoded, subject, limits.max_key_bytes)
    return describe_body(
        batch.body,
        decoded,
        producer_id=batch.producer_id,
        producer_sequence=batch.sequence,
    )


def _check_columns(batch: pa.RecordBatch, subject: str, max_key_bytes: int) -> None:
    for name in ("offset_delta", "timestamp", "subject"):
        if batch.column(name).null_count:
            raise CorruptError(f"the batch's column {name} holds nulls")
    # Given as a scalar: Arrow takes longer to find out what a str is than to compare a thousand.
    if pc.equal(batch.column("subject"), pa.scalar(subject, pa.string())).false_count:
        raise CorruptError("the batch holds records of another subject than it was published on")
    if not batch.column("offset_delta").equals(dense_deltas(batch.num_rows)):
        raise CorruptError("the batch's offset deltas are not 0 to n-1")
    keys = batch.column("key")
    if keys.null_count < batch.num_rows:
        lengths = pc.min_max(pc.binary_length(keys)).as_py()
        if not 0 < lengths["min"] <= lengths["max"] <= max_key_bytes:
            raise CorruptError(f"the batch's keys are not of 1 to {max_key_bytes} bytes")
