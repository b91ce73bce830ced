"""A producer's batch against what its envelope says, before it may enter the log."""

import pyarrow.compute as pc

from penstock.logd.batch import SCHEMA_VERSION, decode_body, describe_body
from penstock.logd.core.body_size import decoded_size
from penstock.logd.envelope import BatchPayload
from penstock.logd.errors import CorruptError
from penstock.logd.frame import FrameHeader
from penstock.logd.limits import DECODED_SIZE_MAX


def describe_batch(batch: BatchPayload, subject: str) -> FrameHeader:
    """Check a producer's batch against what its envelope says, and make its frame header.

    Args:
        batch: As the envelope has it.
        subject: That the envelope came on. Each record must name it, or who may publish on one
            subject could write records of another.

    Raises:
        CorruptError: The body is not an Arrow batch of the schema, or says something else.
    """
    if batch.schema_version != SCHEMA_VERSION:
        raise CorruptError(f"batch schema version {batch.schema_version} is not known")
    size = decoded_size(batch.body)
    if size > DECODED_SIZE_MAX:
        raise CorruptError(f"the batch claims {size} bytes; at most {DECODED_SIZE_MAX} are taken")
    rows = decode_body(batch.body)
    if rows.num_rows != batch.record_count:
        raise CorruptError(f"the batch has {rows.num_rows} records, not {batch.record_count}")
    for name in ("offset_delta", "timestamp", "subject"):
        if rows.column(name).null_count:
            raise CorruptError(f"the batch's column {name} holds nulls")
    if not pc.all(pc.equal(rows.column("subject"), subject)).as_py():
        raise CorruptError("the batch holds records of another subject than it was published on")
    if rows.column("offset_delta").to_pylist() != list(range(rows.num_rows)):
        raise CorruptError("the batch's offset deltas are not 0 to n-1")
    return describe_body(
        batch.body,
        rows,
        producer_id=batch.producer_id,
        producer_sequence=batch.sequence,
    )
