"""The envelope: how a publisher sends more than a plain message to a NATS subject.

The first 12 bytes are those of Liftbridge's envelope, big-endian, so that its clients are
recognised by the same cookie:

    offset size field
         0    4 cookie         b9 0e 43 b4, not valid UTF-8
         4    1 version        0
         5    1 header length  offset of the payload: 8, or 12 with a CRC
         6    1 flags          bit 0: CRC present
         7    1 type           0-14 are Liftbridge's, of which logd speaks 0 and 1
                               (`penstock.logd.format.publish_envelope`); 64 = batch, 65 = batch ack
         8    4 CRC-32C        of the payload, when flag bit 0 is set
    header length ... payload

Payload of a batch (little-endian), always sent with the CRC:

         0    1 payload version    1
         1    1 schema version     `penstock.logd.format.batch.SCHEMA_VERSION`
         2    2 reserved           zero
         4    4 record count
         8   16 producer id        not zero
        24    8 previous sequence  the producer's sequence before this batch; 0 for its first
        32    8 sequence           of this batch; greater than the previous one
        40      body               Arrow IPC record-batch message, a multiple of 8 bytes

Sequences of a producer rise but need not be dense: a producer may use the position of the batch's
last record in whatever it reads from. logd stores a batch only when its previous sequence is the
one it stored last for that producer; see `penstock.logd.intake.dedup`. After a refusal the
producer learns the last stored sequence from the ack and goes on from there, so neither a lost
message nor a restart of either side loses or repeats a record.

The ack of a batch goes to the NATS reply subject: an envelope of type 65 whose payload is the JSON
of `penstock.logd.format.acks`.
"""

import struct
from typing import Final

from msgspec import Struct

from penstock.logd.errors import CorruptError
from penstock.logd.format.frame import NO_PRODUCER, crc32c

COOKIE: Final = b"\xb9\x0e\x43\xb4"
VERSION: Final = 0
TYPE_BATCH: Final = 64
TYPE_BATCH_ACK: Final = 65
FLAG_CRC: Final = 1
BATCH_HEADER_SIZE: Final = 40
BATCH_PAYLOAD_VERSION: Final = 1

_ENVELOPE: Final = struct.Struct(">4sBBBB")
_CRC: Final = struct.Struct(">I")
_BATCH: Final = struct.Struct("<BBHI16sQQ")
assert _BATCH.size == BATCH_HEADER_SIZE


class Envelope(Struct, frozen=True):
    """An envelope whose outer layer is sound; the payload is not looked at yet."""

    type: int
    payload: memoryview


class BatchPayload(Struct, frozen=True, kw_only=True):
    """A whole batch from one producer."""

    schema_version: int
    record_count: int
    producer_id: bytes
    previous_sequence: int
    sequence: int
    body: bytes


def encode_envelope(kind: int, payload: bytes) -> bytes:
    """Wrap a payload, with CRC."""
    head = _ENVELOPE.pack(COOKIE, VERSION, 12, FLAG_CRC, kind)
    return b"".join((head, _CRC.pack(crc32c(payload)), payload))


def decode_envelope(data: bytes | memoryview) -> Envelope | None:
    """Unwrap an envelope; None when `data` does not start with the cookie.

    Raises:
        CorruptError: The cookie is there and the rest does not follow the format.
    """
    if len(data) < 4 or bytes(data[:4]) != COOKIE:
        return None
    if len(data) < 8:
        raise CorruptError(f"envelope of {len(data)} bytes is too short")
    _, version, header_length, flags, kind = _ENVELOPE.unpack(data[:8])
    if version != VERSION:
        raise CorruptError(f"envelope version {version} is not known")
    if header_length != (12 if flags & FLAG_CRC else 8) or len(data) < header_length:
        raise CorruptError(f"envelope header length {header_length} does not fit its flags")
    payload = memoryview(data)[header_length:]
    if flags & FLAG_CRC and _CRC.unpack(data[8:12])[0] != crc32c(payload):
        raise CorruptError("envelope CRC does not match")
    return Envelope(kind, payload)


def encode_batch(batch: BatchPayload) -> bytes:
    """Encode a batch as an envelope of type `TYPE_BATCH`."""
    assert batch.producer_id != NO_PRODUCER
    assert batch.previous_sequence < batch.sequence
    head = _BATCH.pack(
        BATCH_PAYLOAD_VERSION,
        batch.schema_version,
        0,
        batch.record_count,
        batch.producer_id,
        batch.previous_sequence,
        batch.sequence,
    )
    return encode_envelope(TYPE_BATCH, head + batch.body)


def decode_batch(payload: bytes | memoryview) -> BatchPayload:
    """Decode the payload of an envelope of type `TYPE_BATCH`; the body is not decoded.

    Raises:
        CorruptError: Too short, an unknown version, or fields out of range.
    """
    if len(payload) <= BATCH_HEADER_SIZE:
        raise CorruptError(f"batch payload of {len(payload)} bytes is too short")
    version, schema, _, count, producer, previous, sequence = _BATCH.unpack(
        payload[:BATCH_HEADER_SIZE]
    )
    if version != BATCH_PAYLOAD_VERSION:
        raise CorruptError(f"batch payload version {version} is not known")
    if count == 0 or producer == NO_PRODUCER or previous >= sequence or len(payload) % 8:
        raise CorruptError("batch payload fields are out of range")
    return BatchPayload(
        schema_version=schema,
        record_count=count,
        producer_id=producer,
        previous_sequence=previous,
        sequence=sequence,
        body=bytes(payload[BATCH_HEADER_SIZE:]),
    )
