"""What a publisher may ask of a stream in the headers of a message, as for JetStream."""

from dataclasses import dataclass
from typing import Final

from penstock.logd.acks import Nack
from penstock.logd.limits import MESSAGE_ID_LENGTH_MAX
from penstock.logd.nats_headers import Pairs

MESSAGE_ID: Final = "Nats-Msg-Id"
EXPECTED_STREAM: Final = "Nats-Expected-Stream"
EXPECTED_LAST_SEQUENCE: Final = "Nats-Expected-Last-Sequence"
EXPECTED_LAST_MESSAGE_ID: Final = "Nats-Expected-Last-Msg-Id"

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
class Expectations:
    """What one message's headers ask for; None where they are silent.

    Attributes:
        last_sequence: One more than the offset of the stream's last record.
    """

    message_id: bytes | None = None
    stream: str | None = None
    last_sequence: int | None = None
    last_message_id: bytes | None = None


NOTHING_EXPECTED: Final = Expectations()


def read_expectations(pairs: Pairs) -> Expectations | Refusal:
    """Read the headers that mean something to logd; the first of a repeated name counts."""
    values: dict[str, bytes] = {}
    for name, value in pairs:
        if name in _NOT_OFFERED:
            return Refusal(Nack.BAD_HEADER, f"header {name} is not offered")
        values.setdefault(name, value)
    message_id = values.get(MESSAGE_ID) or None
    if message_id is not None and len(message_id) > MESSAGE_ID_LENGTH_MAX:
        return Refusal(Nack.BAD_HEADER, f"{MESSAGE_ID} has more than {MESSAGE_ID_LENGTH_MAX} bytes")
    sequence = values.get(EXPECTED_LAST_SEQUENCE)
    if sequence is not None and not (sequence.isdigit() and len(sequence) <= 19):
        return Refusal(Nack.BAD_HEADER, f"{EXPECTED_LAST_SEQUENCE} is not a number")
    stream = values.get(EXPECTED_STREAM)
    return Expectations(
        message_id=message_id,
        stream=None if stream is None else stream.decode("utf-8", "replace"),
        last_sequence=None if sequence is None else int(sequence),
        last_message_id=values.get(EXPECTED_LAST_MESSAGE_ID),
    )
