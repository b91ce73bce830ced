"""A message that is to become one record: plain, or out of a publish envelope."""

from typing import Final, NamedTuple

from penstock.logd.acks import Nack
from penstock.logd.core.metadata import AckPolicy, StreamConfig
from penstock.logd.core.publish_options import (
    MESSAGE_ID,
    PublishOptions,
    Refusal,
    stored_message_id,
)
from penstock.logd.core.turn import Message, RowExtras
from penstock.logd.errors import CorruptError
from penstock.logd.limits import MESSAGE_ID_LENGTH_MAX
from penstock.logd.nats.headers import Pairs, parse_headers
from penstock.logd.publish_envelope import ANY_OFFSET, HEADER_OVERHEAD, Published

BUSY: Final = "too many bytes wait to be stored; try again later"


class Single(NamedTuple):
    """What is known of it before its place is.

    Attributes:
        message: What is stored of it, but for `pairs`.
        size: As `Message.size_bytes`.
        pairs: Headers, those included that mean something to logd.
        options: What they ask for.
        reply: Who is told that it is stored, or not; empty: nobody.
        form: Of a publish envelope: what its ack begins with.
    """

    message: Message
    size: int
    pairs: Pairs
    options: PublishOptions
    reply: bytes
    form: bytes = b""

    def extras(self) -> RowExtras | None:
        """What its headers put into its row."""
        pairs, options = self.pairs, self.options
        if not pairs and options.key is None:
            return None
        if not self.form:
            pairs = options.stored(pairs)
        return RowExtras(pairs or None, options.key, options.tombstone)


def refuse_subjects(message: Message) -> Refusal | None:
    """Refuse what cannot be stored as it is: a subject or a reply subject that is not UTF-8."""
    for name, subject in (("subject", message.subject), ("reply subject", message.reply)):
        try:
            subject.decode()
        except UnicodeDecodeError:
            return Refusal(Nack.BAD_SUBJECT, f"{name} {subject[:80]!r} is not UTF-8")
    return None


def read_headers(
    message: Message, size: int, config: StreamConfig, *, size_max: int, room: int
) -> Pairs | Refusal:
    """A message's headers, unless it is refused whatever they say.

    Args:
        message: As it came.
        size: As `Message.size_bytes`.
        config: Of the stream.
        size_max: Of the largest message that there can ever be room for.
        room: For a message now.
    """
    length = len(message.headers)
    if (
        size > min(room, size_max)
        or length > config.header_bytes_max
        or len(message.payload) + length > config.message_bytes_max
    ):
        return _refuse_size(message, size, config, size_max=size_max)
    if not length:
        return ()
    try:
        return parse_headers(message.headers, config.header_pairs_max)
    except CorruptError as error:
        return Refusal(Nack.BAD_HEADER, str(error))


def _refuse_size(message: Message, size: int, config: StreamConfig, *, size_max: int) -> Refusal:
    limit = config.message_bytes_max
    if len(message.payload) + len(message.headers) > limit:
        return Refusal(Nack.MESSAGE_TOO_LARGE, f"message size exceeds maximum of {limit} bytes")
    if len(message.headers) > config.header_bytes_max:
        text = f"header size exceeds maximum of {config.header_bytes_max} bytes"
        return Refusal(Nack.HEADERS_TOO_LARGE, text)
    if size > size_max:
        text = f"message takes {size} bytes while it waits; there is room for {size_max}"
        return Refusal(Nack.MESSAGE_TOO_LARGE, text)
    return Refusal(Nack.BUSY, BUSY)


def open_published(
    single: Single, published: Published, config: StreamConfig, *, asked: bool
) -> Single:
    """The record in a publish envelope; `single` is the message that brought it.

    Args:
        single: With the headers of the NATS message.
        published: What is in its payload.
        config: Of the stream.
        asked: Whether this stream is to answer, and to have what the publisher expects.
    """
    # Of the message's own headers only the id is kept, for whoever rebuilds the window of ids.
    own = tuple(pair for pair in single.pairs if pair[0] == MESSAGE_ID)
    pairs = own[:1] + published.headers
    options = single.options._replace(
        message_id=stored_message_id(pairs),  # as whoever reads it from the log will see it
        key=published.key,
        ack_policy=single.options.ack_policy or _policy(published, config),
    )
    if asked and config.expected_offset and published.expected_offset != ANY_OFFSET:
        options = options._replace(last_sequence=max(published.expected_offset, 0))
    return Single(
        # No reply subject: what a leader after this one would send there is not for its publisher.
        single.message._replace(payload=published.value, reply=b"", headers=b""),
        single.size + len(published.headers) * HEADER_OVERHEAD,
        pairs,
        options,
        published.ack_inbox if asked else b"",
        published.form,
    )


def published_fault(
    options: PublishOptions, published: Published, config: StreamConfig
) -> Refusal | None:
    """Why the record of a publish envelope cannot be stored; `options` are its message's."""
    headers = published.headers
    ids = [value for name, value in headers if name == MESSAGE_ID]
    if ids and len(ids[0]) > MESSAGE_ID_LENGTH_MAX:
        return Refusal(Nack.BAD_HEADER, f"{MESSAGE_ID} of more than {MESSAGE_ID_LENGTH_MAX} bytes")
    if options.key is not None:
        return Refusal(Nack.BAD_HEADER, "a publish envelope has its own key")
    if len(published.key or b"") > config.key_bytes_max:
        return Refusal(Nack.BAD_HEADER, f"a key of more than {config.key_bytes_max} bytes")
    if len(headers) > config.header_pairs_max:
        return Refusal(Nack.BAD_HEADER, f"more than {config.header_pairs_max} headers")
    if sum(len(name) + len(value) for name, value in headers) > config.header_bytes_max:
        return Refusal(Nack.BAD_HEADER, f"headers of more than {config.header_bytes_max} bytes")
    return None


def _policy(published: Published, config: StreamConfig) -> AckPolicy | None:
    """The publisher's; `leader` for one that says nothing where the stream would not answer."""
    if published.ack_policy is None and config.ack_policy == "none":
        return "leader"
    return published.ack_policy
