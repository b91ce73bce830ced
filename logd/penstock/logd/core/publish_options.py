"""What a publisher may ask of a stream in the headers of a message.

The `Nats-` headers mean what they mean to JetStream. Those of ours are taken out of the headers
that are stored, for the record has a place for what they say:

    Penstock-Key         the record's key; bytes as they are, without white space around them
    Penstock-Tombstone   `true`: the record's value is null, which deletes its key by compaction
"""

from dataclasses import dataclass, replace
from typing import Final

from penstock.logd.acks import Nack
from penstock.logd.limits import KEY_LENGTH_MAX, MESSAGE_ID_LENGTH_MAX
from penstock.logd.nats_headers import Pairs

MESSAGE_ID: Final = "Nats-Msg-Id"
EXPECTED_STREAM: Final = "Nats-Expected-Stream"
EXPECTED_LAST_SEQUENCE: Final = "Nats-Expected-Last-Sequence"
EXPECTED_LAST_MESSAGE_ID: Final = "Nats-Expected-Last-Msg-Id"
KEY: Final = "Penstock-Key"
TOMBSTONE: Final = "Penstock-Tombstone"

_TAKEN_OUT: Final = frozenset({KEY, TOMBSTONE})
"""Headers that are not stored, for the record says it otherwise. One that comes twice is refused:
no copy of it is left to tell what else was meant."""

_NOT_OFFERED: Final = frozenset(
    {
        "Nats-Expected-Last-Subject-Sequence",
        "Nats-Expected-Last-Subject-Sequence-Subject",
        "Nats-Rollup",
        "Nats-TTL",
        "Nats-Incr",
        "Nats-Schedule",
        "Nats-Batch-Id",
    }
)
"""JetStream headers that change what storing means. A message that asks for one is refused: stored
without it, the publisher would believe it had what it asked for."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a message is not stored."""

    nack: Nack
    description: str
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """What one message's headers ask for; None where they are silent.

    Attributes:
        last_sequence: One more than the offset of the stream's last record.
        key: Not empty.
        tombstone: Whether the record's value is null; then it has a key.
    """

    message_id: bytes | None = None
    stream: str | None = None
    last_sequence: int | None = None
    last_message_id: bytes | None = None
    key: bytes | None = None
    tombstone: bool = False

    @property
    def for_one_record(self) -> bool:
        """Whether they ask for something that only a single record can have."""
        return replace(self, stream=None) != NO_OPTIONS

    def without_expectations(self) -> "PublishOptions":
        """What they ask of a stream that the publisher did not name."""
        return replace(self, stream=None, last_sequence=None, last_message_id=None)


NO_OPTIONS: Final = PublishOptions()


def read_options(pairs: Pairs) -> PublishOptions | Refusal:
    """Read the headers that mean something to logd; the first of a repeated name counts."""
    values: dict[str, bytes] = {}
    for name, value in pairs:
        if name in _NOT_OFFERED:
            return Refusal(Nack.BAD_HEADER, f"header {name} is not offered")
        if name in _TAKEN_OUT and name in values:
            return Refusal(Nack.BAD_HEADER, f"{name} stands there twice")
        values.setdefault(name, value)
    fault = _fault(values)
    if fault is not None:
        return Refusal(Nack.BAD_HEADER, fault)
    sequence = values.get(EXPECTED_LAST_SEQUENCE)
    stream = values.get(EXPECTED_STREAM)
    return PublishOptions(
        message_id=values.get(MESSAGE_ID) or None,
        stream=None if stream is None else stream.decode("utf-8", "replace"),
        last_sequence=None if sequence is None else int(sequence),
        last_message_id=values.get(EXPECTED_LAST_MESSAGE_ID),
        key=values.get(KEY),
        tombstone=TOMBSTONE in values,
    )


def stored_pairs(pairs: Pairs) -> Pairs:
    """The headers that the record keeps."""
    return tuple(pair for pair in pairs if pair[0] not in _TAKEN_OUT)


def _fault(values: dict[str, bytes]) -> str | None:
    """What is wrong with the values; None when nothing is."""
    if len(values.get(MESSAGE_ID, b"")) > MESSAGE_ID_LENGTH_MAX:
        return f"{MESSAGE_ID} has more than {MESSAGE_ID_LENGTH_MAX} bytes"
    sequence = values.get(EXPECTED_LAST_SEQUENCE)
    if sequence is not None and not (sequence.isdigit() and len(sequence) <= 19):
        return f"{EXPECTED_LAST_SEQUENCE} is not a number"
    key = values.get(KEY)
    if key is not None and not 0 < len(key) <= KEY_LENGTH_MAX:
        return f"{KEY} has {len(key)} bytes; 1 to {KEY_LENGTH_MAX} are taken"
    tombstone = values.get(TOMBSTONE)
    if tombstone is not None and tombstone != b"true":
        return f"{TOMBSTONE} is {tombstone[:40]!r}; it can only be true"
    if tombstone is not None and key is None:
        return f"{TOMBSTONE} needs a {KEY}"
    return None
