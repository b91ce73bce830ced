"""Options of a publisher in the headers of a message.

The `Nats-` headers mean what they mean to JetStream. Those of ours are taken out of the headers
that are stored, for the record has a place for what they say:

    Penstock-Key         the record's key; bytes as they are, without white space around them
    Penstock-Tombstone   `true`: the record's value is null, which deletes its key by compaction
    Penstock-Ack-Policy  `all`, `leader` or `none`, instead of the stream's `ack_policy`
"""

from typing import Final, NamedTuple

from msgspec import Struct

from penstock.logd.format.acks import Nack
from penstock.logd.format.headers import Pairs
from penstock.logd.limits import MESSAGE_ID_LENGTH_MAX
from penstock.logd.metadata.streams import AckPolicy

MESSAGE_ID: Final = "Nats-Msg-Id"
EXPECTED_STREAM: Final = "Nats-Expected-Stream"
EXPECTED_LAST_SEQUENCE: Final = "Nats-Expected-Last-Sequence"
EXPECTED_LAST_MESSAGE_ID: Final = "Nats-Expected-Last-Msg-Id"
EXPECTED_SUBJECT_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
KEY: Final = "Penstock-Key"
TOMBSTONE: Final = "Penstock-Tombstone"
ACK_POLICY: Final = "Penstock-Ack-Policy"

_ACK_POLICIES: Final[dict[bytes, AckPolicy]] = {b"all": "all", b"leader": "leader", b"none": "none"}
_TAKEN_OUT: Final = frozenset({KEY, TOMBSTONE, ACK_POLICY})
"""Headers that are not stored, for the record says it otherwise. One that comes twice is refused:
no copy of it is left to tell what else was meant."""

_NOT_OFFERED: Final = {
    "Nats-Rollup": (Nack.NO_ROLLUP, "rollup not permitted"),
    "Nats-TTL": (Nack.NO_TTL, "per-message TTL is disabled"),
    "Nats-Incr": (Nack.NO_COUNTERS, "message counters is disabled"),
    "Nats-Batch-Id": (Nack.NO_ATOMIC_PUBLISH, "atomic publish is disabled"),
    "Nats-Schedule": (Nack.NO_SCHEDULES, "message schedules is disabled"),
}
"""JetStream headers that change what storing means, and what JetStream says where they are off. A
message that asks for one is refused: stored without it, the publisher would believe it had what it
asked for."""

_KNOWN: Final = (
    frozenset(_NOT_OFFERED)
    | _TAKEN_OUT
    | {
        MESSAGE_ID,
        EXPECTED_STREAM,
        EXPECTED_LAST_SEQUENCE,
        EXPECTED_LAST_MESSAGE_ID,
        EXPECTED_SUBJECT_SEQUENCE,
        EXPECTED_SUBJECT,
    }
)


class Refusal(Struct, frozen=True):
    """Why a message is not stored."""

    nack: Nack
    description: str
    sequence: int | None = None


class PublishOptions(NamedTuple):
    """Options in one message's headers; None where there is none.

    Attributes:
        last_sequence: Expected offset of the stream's last record, plus one.
        subject_sequence: The same of the last record of a subject.
        subject: That subject, if it is not the message's own.
        key: The record's key; not empty.
        tombstone: Whether the record's value is null; then it has a key.
        ack_policy: Ack policy instead of the stream's.
    """

    message_id: bytes | None = None
    stream: str | None = None
    last_sequence: int | None = None
    last_message_id: bytes | None = None
    key: bytes | None = None
    tombstone: bool = False
    ack_policy: AckPolicy | None = None
    subject_sequence: int | None = None
    subject: bytes | None = None

    @property
    def for_one_record(self) -> bool:
        """True if an option applies to a single record only."""
        return self._replace(stream=None, ack_policy=None) != NO_OPTIONS

    def stored(self, pairs: Pairs) -> Pairs:
        """The headers that the record keeps of those that these options were read from."""
        return pairs if self.key is None and self.ack_policy is None else stored_pairs(pairs)


NO_OPTIONS: Final = PublishOptions()


def read_options(pairs: Pairs, *, max_key_bytes: int) -> PublishOptions | Refusal:
    """Read the headers that mean something to logd; the first of a repeated name counts."""
    known = [pair for pair in pairs if pair[0] in _KNOWN]
    if not known:
        return NO_OPTIONS
    if len(known) == 1 and known[0][0] == MESSAGE_ID and len(known[0][1]) <= MESSAGE_ID_LENGTH_MAX:
        return PublishOptions(known[0][1] or None)  # what most messages with headers ask for
    values: dict[str, bytes] = {}
    for name, value in known:
        if name in _NOT_OFFERED:
            nack, text = _NOT_OFFERED[name]
            return Refusal(nack, f"{text}: header {name} is not offered")
        if name in _TAKEN_OUT and name in values:
            return Refusal(Nack.BAD_HEADER, f"{name} stands there twice")
        values.setdefault(name, value)
    policy = values.get(ACK_POLICY)
    refusal = _refuse_values(values, max_key_bytes)
    if refusal is not None:
        return refusal
    stream = values.get(EXPECTED_STREAM)
    return PublishOptions(
        message_id=values.get(MESSAGE_ID) or None,
        stream=None if stream is None else stream.decode("utf-8", "replace"),
        last_sequence=_sequence(values, EXPECTED_LAST_SEQUENCE),
        last_message_id=values.get(EXPECTED_LAST_MESSAGE_ID),
        key=values.get(KEY),
        tombstone=TOMBSTONE in values,
        ack_policy=None if policy is None else _ACK_POLICIES[policy],
        subject_sequence=_sequence(values, EXPECTED_SUBJECT_SEQUENCE),
        subject=values.get(EXPECTED_SUBJECT),
    )


def named_stream(pairs: Pairs) -> str | None:
    """The stream that a message's publisher expects to store it; None: any."""
    for name, value in pairs:
        if name == EXPECTED_STREAM:
            return value.decode("utf-8", "replace")
    return None


def read_unanswered(pairs: Pairs, *, max_key_bytes: int, tombstones: bool) -> PublishOptions:
    """Read the headers of a message that is stored without an answer: nothing of them is refused.

    What asks for an answer or for another way of storing is meant for another stream. Key and
    tombstone count if all of Penstock's headers are sound, and an id if it is not too long to be
    kept. What does not count is stored with the other headers.

    Args:
        pairs: The headers; the first of a repeated name counts.
        max_key_bytes: Bytes of a record's key.
        tombstones: Whether the message may be one: it has no payload.
    """
    values: dict[str, bytes] = {}
    repeated = False
    for name, value in pairs:
        if name in _TAKEN_OUT or name == MESSAGE_ID:
            repeated = repeated or (name in _TAKEN_OUT and name in values)
            values.setdefault(name, value)
    message_id = values.get(MESSAGE_ID, b"")
    if len(message_id) > MESSAGE_ID_LENGTH_MAX:
        message_id = b""
    key, tombstone, policy = (values.get(name) for name in (KEY, TOMBSTONE, ACK_POLICY))
    sound = not repeated and (tombstone is None or tombstones)
    if not sound or _policy_fault(policy) or _key_fault(key, tombstone, max_key_bytes):
        return PublishOptions(message_id or None)
    return PublishOptions(
        message_id=message_id or None,
        key=key,
        tombstone=tombstone is not None,
        ack_policy=None if policy is None else _ACK_POLICIES[policy],
    )


def stored_pairs(pairs: Pairs) -> Pairs:
    """The headers that the record keeps."""
    return tuple([pair for pair in pairs if pair[0] not in _TAKEN_OUT])


def stored_message_id(pairs: Pairs) -> bytes | None:
    """The id of a message by the headers that its record kept; one that is too long is none."""
    for name, value in pairs:
        if name == MESSAGE_ID:
            return value if 0 < len(value) <= MESSAGE_ID_LENGTH_MAX else None
    return None


def _sequence(values: dict[str, bytes], name: str) -> int | None:
    value = values.get(name)
    return None if value is None else int(value)


def _refuse_values(values: dict[str, bytes], max_key_bytes: int) -> Refusal | None:
    fault = _fault(values, max_key_bytes)
    if fault is not None:
        return Refusal(Nack.BAD_HEADER, fault)
    if EXPECTED_SUBJECT in values and EXPECTED_SUBJECT_SEQUENCE not in values:
        text = "missing sequence for expected last sequence per subject"
        return Refusal(Nack.NO_SUBJECT_SEQUENCE, text)
    return None


def _fault(values: dict[str, bytes], max_key_bytes: int) -> str | None:
    """Return what is wrong with the values; None: nothing."""
    if len(values.get(MESSAGE_ID, b"")) > MESSAGE_ID_LENGTH_MAX:
        return f"{MESSAGE_ID} has more than {MESSAGE_ID_LENGTH_MAX} bytes"
    for name in (EXPECTED_LAST_SEQUENCE, EXPECTED_SUBJECT_SEQUENCE):
        sequence = values.get(name)
        if sequence is not None and not (sequence.isdigit() and len(sequence) <= 19):
            return f"{name} is not a number"
    return _policy_fault(values.get(ACK_POLICY)) or _key_fault(
        values.get(KEY), values.get(TOMBSTONE), max_key_bytes
    )


def _policy_fault(policy: bytes | None) -> str | None:
    if policy is not None and policy not in _ACK_POLICIES:
        return f"{ACK_POLICY} is {policy[:40]!r}; it can be all, leader or none"
    return None


def _key_fault(key: bytes | None, tombstone: bytes | None, max_key_bytes: int) -> str | None:
    if key is not None and not 0 < len(key) <= max_key_bytes:
        return f"{KEY} has {len(key)} bytes; 1 to {max_key_bytes} are taken"
    if tombstone is not None and tombstone != b"true":
        return f"{TOMBSTONE} is {tombstone[:40]!r}; it can only be true"
    if tombstone is not None and key is None:
        return f"{TOMBSTONE} needs a {KEY}"
    return None
