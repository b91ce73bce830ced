"""The batch: one Arrow record batch with one fixed schema, the log's unit of work.

Schema version 1 (never changed; a new column is a new version):

    offset_delta  int32                      offset minus the frame's base offset
    timestamp     timestamp[ns, UTC]         publisher's time if given, else reception time
    subject       string                     the NATS subject it was published on
    key           binary, nullable           compaction and partitioning key
    headers       map<string, binary>, null. NATS headers
    reply         string, nullable           ack inbox, so that a new leader can ack
    value         binary, nullable           payload; null is a tombstone

A body is the encapsulated Arrow IPC message of one record batch, without a schema message: the
schema is known from the frame's schema version. `stream_prefix()` followed by bodies is a valid
Arrow IPC stream that any Arrow client reads.
"""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa
from msgspec import Struct

from penstock.base.lazy_module import LazyModule
from penstock.logd.errors import CorruptError
from penstock.logd.format.frame import BODY_SIZE_MAX, NO_PRODUCER, FrameHeader, crc32c

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")

SCHEMA_VERSION: Final = 1
SCHEMA: Final = pa.schema(
    [
        pa.field("offset_delta", pa.int32(), nullable=False),
        pa.field("timestamp", pa.timestamp("ns", tz="UTC"), nullable=False),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("headers", pa.map_(pa.string(), pa.binary())),
        pa.field("reply", pa.string()),
        pa.field("value", pa.binary()),
    ]
)

SCHEMA_OF_DUMP: Final = pa.schema(
    [pa.field("offset", pa.int64(), nullable=False), *list(SCHEMA)[1:]]
)
"""The batch's columns, with the offset itself instead of its delta to a frame that is not there."""

Compression = Literal["zstd", "lz4"]
_END_OF_STREAM_SIZE: Final = 8


class Record(Struct, frozen=True):
    """One record, as a publisher gives it or as a reader gets it.

    Attributes:
        headers: NATS headers; of a repeated name the pairs are kept in order.
    """

    subject: str
    value: bytes | None
    timestamp_ns: int
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    reply: str | None = None


def build_batch(records: Sequence[Record]) -> pa.RecordBatch:
    """Lay records out as a batch with offset deltas 0 to n-1."""
    return pa.RecordBatch.from_arrays(
        [
            dense_deltas(len(records)),
            pa.array([record.timestamp_ns for record in records], pa.int64()).cast(
                SCHEMA.field("timestamp").type
            ),
            pa.array([record.subject for record in records], pa.string()),
            pa.array([record.key for record in records], pa.binary()),
            pa.array([record.headers or None for record in records], SCHEMA.field("headers").type),
            pa.array([record.reply for record in records], pa.string()),
            pa.array([record.value for record in records], pa.binary()),
        ],
        schema=SCHEMA,
    )


def dense_deltas(rows: int) -> pa.Array:
    """The column `offset_delta` of a batch without gaps: 0 to n-1."""
    return _counting_to(rows.bit_length()).slice(0, rows)


@cache
def _counting_to(bits: int) -> pa.Array:
    """0 to 2 to the `bits`: kept, for it is needed all the time and made from Python's numbers."""
    return pa.array(range(1 << bits), pa.int32())


def encode_body(batch: pa.RecordBatch, *, compression: Compression | None = None) -> bytes:
    """Encode a batch of `SCHEMA` as a frame's body."""
    assert batch.schema.equals(SCHEMA), batch.schema
    if compression is None:
        body: bytes = batch.serialize().to_pybytes()
    else:  # only a stream writer takes options: cut its schema and end-of-stream messages off
        sink = pa.BufferOutputStream()
        # The buffers of a batch are too small to be worth other threads.
        options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        with pa.ipc.new_stream(sink, SCHEMA, options=options) as stream:
            stream.write_batch(batch)
        body = sink.getvalue().to_pybytes()[len(stream_prefix()) : -_END_OF_STREAM_SIZE]
    return body + bytes(-len(body) % 8)


def decode_body(body: bytes | memoryview, *, where: str = "") -> pa.RecordBatch:
    """Decode a frame's body; columns point into `body` where it is not compressed.

    Raises:
        CorruptError: Not an Arrow record-batch message of `SCHEMA`.
    """
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), SCHEMA)
        batch.validate(full=True)
    except (pa.ArrowException, EOFError, OSError) as error:
        raise CorruptError(
            f"not an Arrow batch of schema {SCHEMA_VERSION}: {error}", where=where
        ) from None
    return batch


def describe_body(
    body: bytes,
    batch: pa.RecordBatch,
    *,
    producer_id: bytes = NO_PRODUCER,
    producer_sequence: int = 0,
) -> FrameHeader:
    """Make the header of a frame that has no place in a log yet (offset 0, epoch 0)."""
    assert 0 < len(body) <= BODY_SIZE_MAX, len(body)
    timestamps = batch.column("timestamp").view(pa.int64())
    return FrameHeader(
        base_offset=0,
        leader_epoch=0,
        record_count=batch.num_rows,
        last_offset_delta=batch.column("offset_delta")[batch.num_rows - 1].as_py(),
        body_length=len(body),
        body_crc=crc32c(body),
        first_timestamp_ns=timestamps[0].as_py(),
        max_timestamp_ns=pc.max(timestamps).as_py(),
        schema_version=SCHEMA_VERSION,
        producer_id=producer_id,
        producer_sequence=producer_sequence,
    )


@cache
def stream_prefix() -> bytes:
    """The schema message that turns bodies into an Arrow IPC stream."""
    prefix: bytes = SCHEMA.serialize().to_pybytes()
    return prefix
