"""Publisher acks and nacks: JSON shaped like NATS JetStream's PubAck.

A plain message with a reply subject, and every batch, is answered on that subject. Stored:

    {"stream": "logs", "seq": 8, "offset": 7, "epoch": 1}
    {"stream": "logs", "seq": 8, "offset": 7, "epoch": 1, "duplicate": true}

`seq` is the offset plus one, as JetStream counts, so the stock `js.publish()` of any NATS client
takes the ack for its own. For a batch, `offset` is that of its last record and `count` its number
of records. Refused:

    {"stream": "logs", "error": {"code": 400, "err_code": 10071, "description": "..."}}

`err_code` is JetStream's where it has one for the case, else one of ours from 20001 up. (Of a full
stream JetStream says 10077, as of a broken disk; ours differ, and its description is kept.) A
refused batch sequence also carries `sequence`, the last one stored for that producer (0 for none).
"""

from enum import Enum
from typing import Any

import orjson
from msgspec import Struct

from penstock.logd.format.envelope import TYPE_BATCH_ACK, decode_envelope


class Nack(Enum):
    """Why a message was refused: HTTP-like code, error code, may a retry succeed."""

    WRONG_LAST_SEQUENCE = (400, 10071, False)
    MESSAGE_TOO_LARGE = (400, 10054, False)
    WRONG_LAST_MESSAGE_ID = (400, 10070, False)
    WRONG_STREAM = (400, 10060, False)
    STORAGE_FAILED = (503, 10077, True)
    BUSY = (429, 10167, True)
    BAD_BATCH = (400, 20001, False)
    SEQUENCE_GAP = (409, 20002, True)
    UNKNOWN_PRODUCER = (409, 20003, True)
    BAD_HEADER = (400, 20004, False)
    STREAM_FULL = (503, 20005, True)
    NOT_ENOUGH_REPLICAS = (503, 20006, True)
    READ_ONLY = (403, 20007, False)
    BAD_SUBJECT = (400, 20008, False)
    HEADERS_TOO_LARGE = (400, 10097, False)
    NO_SUBJECT_SEQUENCE = (400, 10193, False)
    NO_ROLLUP = (500, 10111, False)
    NO_TTL = (400, 10166, False)
    NO_COUNTERS = (400, 10168, False)
    NO_ATOMIC_PUBLISH = (400, 10174, False)
    NO_SCHEDULES = (400, 10188, False)

    @property
    def code(self) -> int:
        """An HTTP-like status."""
        return self.value[0]

    @property
    def err_code(self) -> int:
        """The stable number of this refusal."""
        return self.value[1]

    @property
    def retryable(self) -> bool:
        """True if the same message may be stored later."""
        return self.value[2]


class PubAck(Struct, frozen=True, kw_only=True):
    """A publisher's answer, decoded.

    Attributes:
        offset: Offset of the record, or of the batch's last record; -1 when refused, or when a
            duplicate's offset is no longer known.
        nack: None when stored.
        sequence: The last sequence stored for the producer; only in refusals of a sequence.
    """

    stream: str
    offset: int = -1
    epoch: int = 0
    count: int = 1
    duplicate: bool = False
    nack: Nack | None = None
    description: str = ""
    sequence: int | None = None


def encode_ack(ack: PubAck) -> bytes:
    """Encode as JSON."""
    body: dict[str, Any] = {"stream": ack.stream}
    if ack.nack is None:
        body |= {"seq": ack.offset + 1, "offset": ack.offset, "epoch": ack.epoch}
        if ack.count != 1:
            body["count"] = ack.count
        if ack.duplicate:
            body["duplicate"] = True
    else:
        body["error"] = {
            "code": ack.nack.code,
            "err_code": ack.nack.err_code,
            "description": ack.description,
        }
        if ack.sequence is not None:
            body["sequence"] = ack.sequence
    return orjson.dumps(body)


def decode_ack(data: bytes) -> PubAck:
    """Decode the JSON of an ack.

    Raises:
        ValueError: Not an ack of logd's.
    """
    body = orjson.loads(data)
    try:
        return _ack(body)
    except (AttributeError, KeyError, TypeError):
        msg = f"not an ack: {data[:80]!r}"
        raise ValueError(msg) from None


def decode_batch_ack(data: bytes) -> PubAck:
    """Decode the answer to a batch: an envelope with an ack.

    Raises:
        CorruptError: An envelope that is damaged.
        ValueError: Not an answer of logd's to a batch.
    """
    envelope = decode_envelope(data)
    if envelope is None or envelope.type != TYPE_BATCH_ACK:
        msg = f"not the ack of a batch: {data[:80]!r}"
        raise ValueError(msg)
    return decode_ack(bytes(envelope.payload))


def _ack(body: dict[str, Any]) -> PubAck:
    """The ack of a JSON document; what is missing or of a wrong type raises."""
    stream = body["stream"]
    if not isinstance(stream, str):
        raise TypeError(stream)
    error = body.get("error")
    if error is None:
        return PubAck(
            stream=stream,
            offset=_number(body["offset"]),
            epoch=_number(body["epoch"]),
            count=_number(body.get("count", 1)),
            duplicate=body.get("duplicate", False) is True,
        )
    by_number = {nack.err_code: nack for nack in Nack}
    sequence = body.get("sequence")
    return PubAck(
        stream=stream,
        nack=by_number[error["err_code"]],
        description=str(error.get("description", "")),
        sequence=None if sequence is None else _number(sequence),
    )


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(value)
    return int(value)
