"""Liftbridge's publish and ack envelopes: a single record as its clients send it to a NATS subject.

An envelope of type 0 (`penstock.logd.format.envelope`) holds the protobuf message `Message` of
`logd/proto/logd_liftbridge.proto`: key, value and headers of a record, whom to answer (`ackInbox`,
with `correlationId`), when (`ackPolicy`), and in `offset` the one that the publisher expects. The
answer is an envelope of type 1 with an `Ack`. As Liftbridge's, it has no CRC.

The policy `LEADER` is 0 on the wire, so that a publisher which says nothing says that. It means
the policy of the stream.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from penstock.logd.errors import CorruptError
from penstock.logd.format.acks import Nack
from penstock.logd.format.envelope import COOKIE, decode_envelope
from penstock.logd.format.headers import Pairs
from penstock.logd.limits import SUBJECT_LENGTH_MAX
from penstock.logd.metadata.streams import AckPolicy
from penstock.logd.wire import logd_liftbridge_pb2 as wire

TYPE_PUBLISH: Final = 0
TYPE_ACK: Final = 1

ANY_OFFSET: Final = -1
"""The expected offset of a publisher that expects none."""

HEADER_OVERHEAD: Final = 32
"""Bytes that a header of an envelope takes in a frame beyond those it has in the envelope."""

_SUBJECT: Final = re.compile(r"[^\x00-\x20\x7f.*>]+(?:\.[^\x00-\x20\x7f.*>]+)*")
_POLICIES: Final[Mapping[int, AckPolicy | None]] = {
    wire.LEADER: None,
    wire.ALL: "all",
    wire.NONE: "none",
}
_ERRORS: Final = {
    Nack.WRONG_LAST_SEQUENCE: wire.Ack.INCORRECT_OFFSET,
    Nack.MESSAGE_TOO_LARGE: wire.Ack.TOO_LARGE,
}


class Published(NamedTuple):
    """Content of a publish envelope.

    Attributes:
        key: None where it has none; protobuf does not tell that from an empty one.
        ack_inbox: Subject of the ack; empty: none is sent.
        ack_policy: None: that of the stream.
        expected_offset: `ANY_OFFSET` for none.
        form: First bytes of its acks, encoded.
    """

    key: bytes | None
    value: bytes
    headers: Pairs
    ack_inbox: bytes
    ack_policy: AckPolicy | None
    expected_offset: int
    form: bytes


def is_literal(subject: str) -> bool:
    """Return whether a subject can be published to: no spaces, controls or wildcards."""
    return bool(_SUBJECT.fullmatch(subject)) and len(subject.encode()) <= SUBJECT_LENGTH_MAX


def encode_publish(message: wire.Message) -> bytes:
    """Wrap a record to publish."""
    return COOKIE + bytes((0, 8, 0, TYPE_PUBLISH)) + message.SerializeToString()


def decode_publish(payload: memoryview, subject: bytes, now_ns: int) -> Published:
    """Read the payload of an envelope of type `TYPE_PUBLISH`.

    Args:
        payload: Payload of the envelope.
        subject: On which it came.
        now_ns: Current Unix time.

    Raises:
        CorruptError: It is no such message, or it wants to be answered where no publisher can be.
    """
    message = wire.Message()
    try:
        message.ParseFromString(bytes(payload))
    except DecodeError as error:
        raise CorruptError(f"publish envelope: {error}") from None
    inbox = message.ackInbox
    if inbox and not is_literal(inbox):
        raise CorruptError(f"publish envelope: ack inbox {inbox[:80]!r} is not a subject")
    if message.ackPolicy not in _POLICIES:
        raise CorruptError(f"publish envelope: ack policy {message.ackPolicy} is not known")
    form = wire.Ack(
        msgSubject=subject.decode("utf-8", "replace"),
        ackInbox=inbox,
        correlationId=message.correlationId,
        ackPolicy=message.ackPolicy,
        receptionTimestamp=now_ns,
    )
    return Published(
        key=message.key or None,
        value=message.value,
        headers=tuple(sorted(message.headers.items())),
        ack_inbox=inbox.encode(),
        ack_policy=_POLICIES[message.ackPolicy],
        expected_offset=message.offset,
        form=form.SerializeToString(),
    )


def published_in(payload: bytes, subject: bytes, now_ns: int) -> Published | None:
    """Decode a message that may be a publish envelope; None when it is no valid one."""
    if payload[7:8] != bytes((TYPE_PUBLISH,)):
        return None
    try:
        envelope = decode_envelope(payload)
        return None if envelope is None else decode_publish(envelope.payload, subject, now_ns)
    except CorruptError:
        return None


def stored_ack(
    form: bytes, *, stream: str, offset: int, epoch: int, duplicate: bool, now_ns: int
) -> bytes:
    """The envelope that says a record is stored; the rest of it is in the publisher's `form`."""
    return _ack(
        form,
        wire.Ack(
            stream=stream,
            offset=offset,
            commitTimestamp=now_ns,
            leaderEpoch=epoch,
            duplicate=duplicate,
        ),
    )


def refused_ack(form: bytes, *, stream: str, nack: Nack, description: str) -> bytes:
    """The envelope that says a record is not stored, and why."""
    return _ack(
        form,
        wire.Ack(
            stream=stream,
            offset=-1,
            ackError=_ERRORS.get(nack, wire.Ack.UNKNOWN),
            errorNumber=nack.err_code,
            errorMessage=description,
        ),
    )


def decode_ack_envelope(data: bytes) -> wire.Ack:
    """Read an answer.

    Raises:
        CorruptError: It is none.
    """
    envelope = decode_envelope(data)
    if envelope is None or envelope.type != TYPE_ACK:
        raise CorruptError("not an ack envelope")
    ack = wire.Ack()
    try:
        ack.ParseFromString(bytes(envelope.payload))
    except DecodeError as error:
        raise CorruptError(f"ack envelope: {error}") from None
    return ack


def encode_ack(ack: wire.Ack) -> bytes:
    """Wrap an answer."""
    return _ack(b"", ack)


def _ack(form: bytes, rest: wire.Ack) -> bytes:
    # Two encoded messages after one another are one message with the fields of both.
    return COOKIE + bytes((0, 8, 0, TYPE_ACK)) + form + rest.SerializeToString()
