"""What a publisher expects of a stream's end, against what it is: JetStream's `Nats-Expected-*`.

Nothing is kept for that but the last sequence and the last message's id. A stream that stores one
subject knows the last sequence of that subject by them: its own. One that stores many would have to
remember a sequence for each subject there ever was; it refuses the question.
"""

from penstock.logd.acks import Nack
from penstock.logd.core.metadata import StreamConfig
from penstock.logd.core.publish_options import (
    EXPECTED_LAST_SEQUENCE,
    EXPECTED_SUBJECT,
    EXPECTED_SUBJECT_SEQUENCE,
    PublishOptions,
    Refusal,
)
from penstock.logd.publish_envelope import is_literal


def refuse_position(
    options: PublishOptions,
    subject: bytes,
    config: StreamConfig,
    *,
    next_offset: int,
    last_message_id: bytes,
) -> Refusal | None:
    """Refuse a message whose publisher expects another end of the stream.

    Args:
        options: Of the message.
        subject: It came on.
        config: Of the stream.
        next_offset: Where the message would be stored.
        last_message_id: Of the last record; empty when it had none.
    """
    fault = None
    if options.subject_sequence is not None:
        fault = _subject_fault(options, subject, config)
    if fault is not None:
        return Refusal(Nack.BAD_HEADER, fault)
    for wanted in (options.subject_sequence, options.last_sequence):
        if wanted is not None and wanted != next_offset:
            return Refusal(Nack.WRONG_LAST_SEQUENCE, f"wrong last sequence: {next_offset}")
    last_id = options.last_message_id
    if last_id is not None and last_id != last_message_id:
        shown = last_message_id.decode("utf-8", "replace")
        return Refusal(Nack.WRONG_LAST_MESSAGE_ID, f"wrong last msg ID: {shown}")
    return None


def _subject_fault(options: PublishOptions, subject: bytes, config: StreamConfig) -> str | None:
    """Why the last sequence of a subject is not known; None: it is the stream's."""
    if not is_literal(config.subject):
        return (
            f"{EXPECTED_SUBJECT_SEQUENCE} is not offered by a stream of {config.subject!r}: only"
            f" one of a single subject knows it; {EXPECTED_LAST_SEQUENCE} is"
        )
    if options.subject not in (None, subject):
        return f"{EXPECTED_SUBJECT} names another subject than the stream stores"
    return None
