"""What tells one message from another, as it arrives and as a record of the log.

A standby compares what it heard with what the leader stored. A message with an id, or a producer's
batch, is what it says it is. Any other is what it consists of: subject, key, stored headers and
value, taken together in a digest, so that two equal messages have one identity and are counted.

    b"i" id                      a `Nats-Msg-Id`, where the stream remembers ids
    b"b" producer sequence       16 and 8 bytes, of a batch
    b"c" digest                  BLAKE2b of 16 bytes, of the content
"""

import hashlib
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from penstock.logd.core.dedup import Dedup
from penstock.logd.core.metadata import StreamConfig
from penstock.logd.core.publish_options import (
    Refusal,
    named_stream,
    read_options,
    read_unanswered,
    stored_message_id,
)
from penstock.logd.core.single import read_headers, refuse_subjects
from penstock.logd.core.turn import Message
from penstock.logd.envelope import COOKIE, TYPE_BATCH, decode_batch, decode_envelope
from penstock.logd.errors import CorruptError
from penstock.logd.frame import FrameHeader
from penstock.logd.nats.headers import Pairs

_ID: Final = b"i"
_BATCH: Final = b"b"
_CONTENT: Final = b"c"


def is_exact(identity: bytes) -> bool:
    """Whether no two messages that are to be stored have it."""
    return not identity.startswith(_CONTENT)


def identify(message: Message, config: StreamConfig) -> bytes | None:
    """The identity of a message that nobody sends again if it is missed.

    Returns:
        None for one that is answered, for then its publisher knows, and for one that every leader
        refuses.
    """
    subject, reply, _, payload = message
    if refuse_subjects(message) is not None:
        return None
    pairs = read_headers(
        message, 0, config, size_max=config.message_bytes_max, room=config.message_bytes_max
    )
    if isinstance(pairs, Refusal):
        return None
    asked = named_stream(pairs) in (None, config.name)
    if payload.startswith(COOKIE):
        identity = _identify_batch(payload)
        if identity is not None:
            return None if reply and asked else identity
    if pairs:
        return _identify_with_headers(message, pairs, config, asked=asked)
    if reply and _answers(config):
        return None
    return _digest(subject, payload)


def identities(
    header: FrameHeader, batch: pa.RecordBatch, config: StreamConfig
) -> Iterator[tuple[int, bytes]]:
    """Offset and identity of a frame's records, as `identify` gave them when they arrived.

    A batch is one message, whose offset is that of its last record. Records of messages that are
    answered are left out. A frame that compaction has made does not say what it was made of.
    """
    if header.compacted:
        return
    if header.producer_sequence:
        yield header.last_offset, _batch_identity(header.producer_id, header.producer_sequence)
        return
    answers = _answers(config)
    columns = [batch.column(name) for name in ("subject", "key", "headers", "reply", "value")]
    # Most frames have neither keys nor headers, and a list of nothing costs as much as any other.
    rows = zip(
        *(
            [None] * batch.num_rows if column.null_count == batch.num_rows else column.to_pylist()
            for column in columns
        ),
        strict=True,
    )
    for offset, (subject, key, pairs, reply, value) in enumerate(rows, header.base_offset):
        if reply and answers:
            continue
        message_id = stored_message_id(pairs) if pairs and config.dedup_window_s else None
        if message_id is not None:
            yield offset, _ID + message_id
        else:
            yield offset, _digest(subject.encode(), value, key, tuple(pairs or ()))


def stored_offset(identity: bytes, dedup: Dedup, now_ns: int) -> int | None:
    """Where a message is in the log by what is remembered of it; None: it is not known to be.

    Args:
        identity: An exact one.
        dedup: What the log's replica remembers.
        now_ns: Unix time.

    Returns:
        -1 if only so much is known that it was stored.
    """
    if identity.startswith(_ID):
        return dedup.message_ids.offset(identity[1:], now_ns)
    state = dedup.producers.last(identity[1:17])
    sequence = int.from_bytes(identity[17:], "little")
    if state is None or state.sequence < sequence:
        return None
    return state.offset if state.sequence == sequence else -1


def _answers(config: StreamConfig) -> bool:
    """Whether plain messages with a reply subject are answered."""
    return config.ack_on_reply and config.ack_policy != "none"


def _identify_batch(payload: bytes) -> bytes | None:
    """As a batch; None: it is a plain message that begins like one, or refused."""
    try:
        envelope = decode_envelope(payload)
        if envelope is None or envelope.type != TYPE_BATCH:
            return None
        batch = decode_batch(envelope.payload)
    except CorruptError:
        return None
    return _batch_identity(batch.producer_id, batch.sequence)


def _batch_identity(producer_id: bytes, sequence: int) -> bytes:
    return _BATCH + producer_id + sequence.to_bytes(8, "little")


def _identify_with_headers(
    message: Message, pairs: Pairs, config: StreamConfig, *, asked: bool
) -> bytes | None:
    """The identity of a message with headers; `asked`: it does not name another stream."""
    subject, reply, _, payload = message
    if asked and config.ack_on_reply:
        options = read_options(pairs, key_bytes_max=config.key_bytes_max)
        if isinstance(options, Refusal) or (options.tombstone and payload):
            return None
        if reply and _answers(config):
            return None
    else:
        most = config.key_bytes_max
        options = read_unanswered(pairs, key_bytes_max=most, tombstones=not payload)
    if options.message_id is not None and config.dedup_window_s:
        return _ID + options.message_id
    value = None if options.tombstone else payload
    return _digest(subject, value, options.key, options.stored(pairs))


def _digest(
    subject: bytes, value: bytes | None, key: bytes | None = None, pairs: Pairs = ()
) -> bytes:
    """Of parts with their lengths, so that no two contents run together to the same bytes."""
    if key is None and not pairs and value is not None:
        digest = hashlib.blake2b(b"%d %b" % (len(subject), subject), digest_size=16)
        digest.update(value)
        return _CONTENT + digest.digest()
    parts = [subject, b"" if key is None else b"k" + key, b"-" if value is None else b"v" + value]
    for name, content in pairs:
        parts += (name.encode(), content)
    digest = hashlib.blake2b(b"+", digest_size=16)
    for part in parts:
        digest.update(b"%d " % len(part))
        digest.update(part)
    return _CONTENT + digest.digest()
