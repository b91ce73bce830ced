"""Sequencing: which messages a partition takes or refuses (`Nats-Expected-*` too), and offsets.

`Intake.handle` is given what arrived in one turn and the bytes the daemon has room for. It answers
with what to append, which acks to send once the high watermark has passed, and which refusals to
send now. Every record that arrives is counted as stored, duplicate or refused, never two of them.

An accepted record's ids and sequences count from then on, before it is on disk. If the disk then
fails, the partition takes nothing more until its state has been rebuilt from the log.

What a publisher expects of a stream's end, against what it is: JetStream's `Nats-Expected-*`.

Nothing is kept for that but the last sequence and the last message's id. A stream that stores one
subject knows the last sequence of that subject by them: its own. One that stores many would have to
keep a sequence for each subject there ever was; it refuses the question.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple, assert_never

import msgspec
from msgspec import Struct

from penstock.logd.errors import CorruptError
from penstock.logd.format.acks import Nack, PubAck
from penstock.logd.format.envelope import (
    COOKIE,
    TYPE_BATCH,
    BatchPayload,
    Envelope,
    decode_batch,
    decode_envelope,
)
from penstock.logd.format.headers import Pairs, parse_headers
from penstock.logd.format.publish_envelope import (
    ANY_OFFSET,
    HEADER_OVERHEAD,
    TYPE_PUBLISH,
    Published,
    decode_publish,
    is_literal,
    published_in,
)
from penstock.logd.intake.batch_check import describe_batch
from penstock.logd.intake.dedup import Accept, Dedup, Duplicate, Gap
from penstock.logd.intake.options import (
    EXPECTED_LAST_SEQUENCE,
    EXPECTED_STREAM,
    EXPECTED_SUBJECT,
    EXPECTED_SUBJECT_SEQUENCE,
    MESSAGE_ID,
    NO_OPTIONS,
    TOMBSTONE,
    PublishOptions,
    Refusal,
    named_stream,
    read_options,
    read_unanswered,
    stored_message_id,
)
from penstock.logd.intake.turn import (
    FRAME_OVERHEAD,
    OFFSET_MAX,
    RECORD_OVERHEAD,
    Effect,
    EventLoopBatch,
    Message,
    PendingAck,
    PrebuiltBatch,
    Refuse,
    RowExtras,
)
from penstock.logd.limits import MESSAGE_ID_LENGTH_MAX
from penstock.logd.metadata.streams import AckPolicy, StreamConfig


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
        options: Options of the message.
        subject: It came on.
        config: Configuration of the stream.
        next_offset: Offset that the message would get.
        last_message_id: Id of the last record; empty when it had none.
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


class IntakeCounts(Struct):
    """Records since the start: received = stored + duplicates + the sum of refused.

    `untold` are those of `refused` whose publishers left no subject for an answer.
    """

    received: int = 0
    received_bytes: int = 0
    stored: int = 0
    duplicates: int = 0
    malformed_envelopes: int = 0
    refused: Counter[Nack] = msgspec.field(default_factory=Counter)
    untold: Counter[Nack] = msgspec.field(default_factory=Counter)

    @property
    def refused_total(self) -> int:
        """Records refused for any reason."""
        return self.received - self.stored - self.duplicates


BUSY: Final = "too many bytes wait to be stored; try again later"


class Single(NamedTuple):
    """A message before its offset is known.

    Attributes:
        message: The stored message, without `pairs`.
        size: The same as `Message.size_bytes`.
        pairs: Headers, those included that mean something to logd.
        options: The options in the headers.
        reply: Subject of the ack or nack; empty: none is sent.
        form: First bytes of the ack of a publish envelope.
    """

    message: Message
    size: int
    pairs: Pairs
    options: PublishOptions
    reply: bytes
    form: bytes = b""

    def extras(self) -> RowExtras | None:
        """Return the parts of its row that come from headers."""
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
        message: The received message.
        size: The same as `Message.size_bytes`.
        config: Configuration of the stream.
        size_max: Bytes of the largest message for which there can be room.
        room: Bytes of room for a message now.
    """
    length = len(message.headers)
    if (
        size > min(room, size_max)
        or length > config.max_header_bytes
        or len(message.payload) + length > config.max_message_bytes
    ):
        return _refuse_size(message, size, config, size_max=size_max)
    if not length:
        return ()
    try:
        return parse_headers(message.headers, config.max_header_pairs)
    except CorruptError as error:
        return Refusal(Nack.BAD_HEADER, str(error))


def _refuse_size(message: Message, size: int, config: StreamConfig, *, size_max: int) -> Refusal:
    limit = config.max_message_bytes
    if len(message.payload) + len(message.headers) > limit:
        return Refusal(Nack.MESSAGE_TOO_LARGE, f"message size exceeds maximum of {limit} bytes")
    if len(message.headers) > config.max_header_bytes:
        text = f"header size exceeds maximum of {config.max_header_bytes} bytes"
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
        single: The message, with the headers of NATS.
        published: Content of its payload.
        config: Configuration of the stream.
        asked: Whether this stream is to answer, and to have what the publisher expects.
    """
    # Of the message's own headers only the id is kept, for rebuilding the window of ids.
    own = tuple(pair for pair in single.pairs if pair[0] == MESSAGE_ID)
    pairs = own[:1] + published.headers
    options = single.options._replace(
        message_id=stored_message_id(pairs),  # as a reader of the log will see it
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
    if len(published.key or b"") > config.max_key_bytes:
        return Refusal(Nack.BAD_HEADER, f"a key of more than {config.max_key_bytes} bytes")
    if len(headers) > config.max_header_pairs:
        return Refusal(Nack.BAD_HEADER, f"more than {config.max_header_pairs} headers")
    if sum(len(name) + len(value) for name, value in headers) > config.max_header_bytes:
        return Refusal(Nack.BAD_HEADER, f"headers of more than {config.max_header_bytes} bytes")
    return None


def _policy(published: Published, config: StreamConfig) -> AckPolicy | None:
    """The publisher's; `leader` for one that says nothing where the stream would not answer."""
    if published.ack_policy is None and config.ack_policy == "none":
        return "leader"
    return published.ack_policy


class Arrived(Struct, frozen=True):
    """Messages of one turn, in order of arrival.

    Attributes:
        room_bytes: Bytes of room in the daemon.
        stream_bytes: Bytes of room in the stream; None: unlimited.
        offset_max: Exclusive: the stream has room for records below it.
    """

    messages: Sequence[Message]
    room_bytes: int
    stream_bytes: int | None = None
    offset_max: int = OFFSET_MAX


class LogFailed(Struct, frozen=True):
    """The partition's log refuses writes."""

    reason: str


class Led(Struct, frozen=True):
    """The partition is led here from now on, under this epoch, from this offset on."""

    epoch: int
    next_offset: int


class Declined(Struct, frozen=True):
    """Everything is refused with this from now on; None: no more."""

    refusal: Refusal | None


Event = Arrived | LogFailed | Led | Declined

_BATCH_TYPE: Final = bytes([TYPE_BATCH])
_EXPECTED_STREAM: Final = EXPECTED_STREAM.encode()


class Intake:
    """The sequencer of one partition.

    Args:
        config: Configuration of the stream.
        next_offset: The log's end.
        epoch: The leader epoch of what is appended.
        streams_for: Names of the streams that store a subject.
        knows_stream: Whether there is a stream of a name.

    Attributes:
        size_max: Bytes of the largest message that there can ever be room for.
    """

    def __init__(
        self,
        config: StreamConfig,
        *,
        next_offset: int,
        epoch: int,
        streams_for: Callable[[str], Collection[str]],
        knows_stream: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.config = config
        self.next_offset = next_offset
        self.epoch = epoch
        self.counts = IntakeCounts()
        self.dedup = Dedup(config)
        self._streams_for = streams_for
        self._knows_stream = knows_stream
        self._acks_plain = config.ack_on_reply and config.ack_policy != "none"
        self._acks_here = config.ack_policy == "leader"
        self._refusal: Refusal | None = None
        self._turn = EventLoopBatch(0, 0)
        self.size_max = OFFSET_MAX

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """Take what happened; `now_ns` is Unix time and becomes the records' timestamp."""
        match event:
            case Arrived():
                return self._arrived(event, now_ns)
            case LogFailed():
                text = "the stream's storage failed; it takes no writes"
                self._refusal = Refusal(Nack.STORAGE_FAILED, text)
                return []
            case Led(epoch, next_offset):
                self.epoch, self.next_offset = epoch, next_offset
                return []
            case Declined(refusal):
                self._refusal = refusal
                return []
            case _:
                assert_never(event)

    def _arrived(self, event: Arrived, now_ns: int) -> list[Effect]:
        turn = self._turn = _begin_turn(event, now_ns, here=self._acks_here)
        messages = event.messages
        taking = self._refusal is None
        position = 0
        while position < len(messages):
            if taking:
                position += self._take_stretch(messages, position)
            if position < len(messages):
                self._inspect(messages[position], now_ns)
                position += 1
        self.counts.received_bytes += sum([len(message[3]) for message in messages])
        return turn.effects()

    def _take_stretch(self, messages: Sequence[Message], start: int) -> int:
        """Take the simply plain messages from `start` on that there is room for; returns how many.

        This is where most messages pass, so it looks at each of them once. What it leaves is not
        refused by that: `_inspect` decides.
        """
        if messages[start][2]:
            return 0
        turn = self._turn
        room, rows = turn.stretch()
        stop = start + min(rows, turn.offset_max - self.next_offset)
        length_max = self.config.max_message_bytes
        size = 0
        count = 0
        for subject, reply, headers, payload in messages[start:stop]:
            length = len(payload)
            if headers or length > length_max or payload.startswith(COOKIE):
                break
            if not (subject.isascii() and reply.isascii()):
                break
            length += len(subject) + len(reply) + RECORD_OVERHEAD
            if size + length > room:
                break
            size += length
            count += 1
        if count:
            taken = messages[start : start + count]
            replies = [message[1] for message in taken] if self._acks_plain else [b""] * count
            turn.put(taken, replies, size, self.next_offset)
            self._count_stored(count)
        return count

    def _count_stored(self, count: int) -> None:
        self.next_offset += count
        self.dedup.last_message_id = b""
        self.counts.received += count
        self.counts.stored += count

    def _inspect(self, message: Message, now_ns: int) -> None:
        """Take or refuse a message that is not simply plain."""
        size, room = message.size_bytes(), self._turn.room + self._turn.spare
        pairs = (
            self._refusal
            or refuse_subjects(message)
            or read_headers(message, size, self.config, size_max=self.size_max, room=room)
        )
        if isinstance(pairs, Refusal):
            self._refuse(message, pairs)
            return
        envelope = self._unwrap(message)
        answers = self.config.ack_on_reply or envelope is not None
        named = named_stream(pairs)
        asked = named in (None, self.config.name)
        if not asked and answers and self._is_wrong(message, str(named)):
            self._refuse(message, Refusal(Nack.WRONG_STREAM, "expected stream does not match"))
            return
        if not asked and self.config.ack_on_reply:
            # Who is named answers: no leader after this one may answer what it finds in the log.
            message = message._replace(reply=b"")
        options = self._options(pairs, message, strict=asked and answers)
        if isinstance(options, Refusal):
            self._refuse(message, options)
            return
        reply = message.reply if self.config.ack_on_reply else b""
        single = Single(message, size, pairs, options, reply)
        self._take(single, envelope, now_ns, asked=asked, room=room)

    def _take(
        self,
        single: Single,
        envelope: Envelope | Published | None,
        now_ns: int,
        *,
        asked: bool,
        room: int,
    ) -> None:
        """Take what a message brings; `asked`: its publisher did not name another stream."""
        message, options = single.message, single.options
        match envelope:
            case None:
                self._take_plain(single, now_ns)
            case Published():
                opened = open_published(single, envelope, self.config, asked=asked)
                fault = published_fault(options, envelope, self.config)
                if fault is None and opened.size > room:
                    fault = Refusal(Nack.BUSY, BUSY)
                if fault is None:
                    self._take_plain(opened, now_ns)
                else:
                    self._refuse_single(opened, fault)
            case _ if asked and options.for_one_record:
                text = (
                    "a batch's records have their own keys, and its producer's sequence is its id"
                )
                self._refuse(message, Refusal(Nack.BAD_HEADER, text))
            case _:
                # Only its own header silences a batch: its producer goes on from the answer.
                acked = asked and bool(message.reply) and options.ack_policy != "none"
                self._take_batch(message, envelope.payload, single.size, asked=asked, acked=acked)

    def _options(self, pairs: Pairs, message: Message, *, strict: bool) -> PublishOptions | Refusal:
        """Read the options in a message's headers; those of an unanswered one cannot be refused."""
        most = self.config.max_key_bytes
        if strict:
            return read_options(pairs, max_key_bytes=most) if pairs else NO_OPTIONS
        return read_unanswered(pairs, max_key_bytes=most, tombstones=not message.payload)

    def _refuse_full(self, size: int, records: int = 1) -> Refusal | None:
        """Refuse what the stream itself has no room for; never a duplicate."""
        if size > self._turn.room:
            return Refusal(Nack.STREAM_FULL, "maximum bytes exceeded")
        if self.next_offset + records > self._turn.offset_max:
            return Refusal(Nack.STREAM_FULL, "maximum messages exceeded")
        return None

    def _is_wrong(self, message: Message, stream: str) -> bool:
        """Return whether the named stream is logd's and does not store the message.

        An unknown stream is not reported: it may be one of a JetStream, or of another logd, on the
        same subject.
        """
        subject = message.subject.decode()
        return self._knows_stream(stream) and stream not in self._streams_for(subject)

    def _unwrap(self, message: Message) -> Envelope | Published | None:
        """Decode an envelope; None for a plain message, which may begin like one."""
        if not message.payload.startswith(COOKIE):
            return None
        try:
            envelope = decode_envelope(message.payload)
            assert envelope is not None
            if envelope.type == TYPE_PUBLISH:
                return decode_publish(envelope.payload, message.subject, self._turn.now_ns)
        except CorruptError:
            envelope = None
        if envelope is None or envelope.type != TYPE_BATCH:
            self.counts.malformed_envelopes += 1
            return None
        return envelope

    def _take_plain(self, single: Single, now_ns: int) -> None:
        options, form = single.options, single.form
        if options.tombstone and single.message.payload:
            text = f"a message with {TOMBSTONE} has a payload; its value would be lost"
            self._refuse_single(single, Refusal(Nack.BAD_HEADER, text))
            return
        policy = options.ack_policy or self.config.ack_policy
        reply = single.reply if policy != "none" else b""
        if options.message_id is not None:
            known = self.dedup.message_ids.offset(options.message_id, now_ns)
            if known is not None:
                self._count_duplicates(1)
                if reply:
                    self._ack_when_durable(PendingAck(0, reply, known, duplicate=True, form=form))
                return
        # After that: what a repeat expects has passed already, and it takes no room.
        refusal = refuse_position(
            options,
            single.message.subject,
            self.config,
            next_offset=self.next_offset,
            last_message_id=self.dedup.last_message_id,
        ) or self._refuse_full(single.size)
        if refusal is not None:
            self._refuse_single(single, refusal)
            return
        if options.message_id is not None:
            self.dedup.record_id(options.message_id, self.next_offset, now_ns)
        here = policy == "leader"
        if reply and (form or here is not self._acks_here):  # unlike its run's others
            offset = self.next_offset
            self._turn.acks.append(PendingAck(offset, reply, offset, here=here, form=form))
            reply = b""
        extras = single.extras()
        self._turn.put([single.message], [reply], single.size, self.next_offset, extras)
        self._count_stored(1)
        self.dedup.last_message_id = options.message_id or b""

    def _take_batch(
        self, message: Message, payload: memoryview, size: int, *, asked: bool, acked: bool
    ) -> None:
        try:
            batch = decode_batch(payload)
        except CorruptError as error:
            self._refuse(message, Refusal(Nack.BAD_BATCH, str(error)))
            return
        verdict = self.dedup.producers.check(
            batch.producer_id, batch.previous_sequence, batch.sequence, self._turn.now_ns
        )
        match verdict:
            case Accept():
                self._place_batch(message, batch, size, acked=acked)
            case Duplicate(offset):
                self._count_duplicates(min(batch.record_count, self.config.max_batch_rows))
                ack = PendingAck(
                    0, message.reply, offset, batch.record_count, duplicate=True, enveloped=True
                )
                if acked:
                    self._ack_when_durable(ack)
            case Gap() if not asked:  # the stream that is named has answered the sequence
                self._place_batch(message, batch, size, acked=False)
            case Gap(last):
                nack = Nack.SEQUENCE_GAP if last else Nack.UNKNOWN_PRODUCER
                text = f"the last sequence stored is {last}, not {batch.previous_sequence}"
                refusal = Refusal(nack, text, sequence=last)
                self._refuse(message, refusal, count=batch.record_count)
            case _:
                assert_never(verdict)

    def _place_batch(
        self, message: Message, batch: BatchPayload, size: int, *, acked: bool
    ) -> None:
        try:
            header = describe_batch(batch, message.subject.decode(), self.config)
            header = header.at(base_offset=self.next_offset, leader_epoch=self.epoch)
        except CorruptError as error:
            refusal = Refusal(Nack.BAD_BATCH, str(error))
            self._refuse(message, refusal, count=batch.record_count)
            return
        full = self._refuse_full(size, batch.record_count)
        if full is not None:
            self._refuse(message, full, count=batch.record_count)
            return
        turn = self._turn
        turn.put_whole(PrebuiltBatch(header, batch.body), size)
        self.dedup.record_batch(batch.producer_id, batch.sequence, header.last_offset, turn.now_ns)
        self._count_stored(batch.record_count)
        if acked:
            last, count = header.last_offset, header.record_count
            turn.acks.append(PendingAck(last, message.reply, last, count, enveloped=True))

    def _ack_when_durable(self, ack: PendingAck) -> None:
        """Ack what was stored before, once everything accepted so far is committed."""
        self._turn.acks.append(ack._replace(release=self.next_offset - 1))

    def _count_duplicates(self, count: int) -> None:
        self.counts.received += count
        self.counts.duplicates += count

    def _refuse(self, message: Message, refusal: Refusal, *, count: int = 1) -> None:
        """Refuse a message; a batch counts as many as it says and may; one refused unread, one."""
        enveloped = message.payload.startswith(COOKIE) and message.payload[7:8] == _BATCH_TYPE
        reply = message.reply if self.config.ack_on_reply or enveloped else b""
        form = b""
        if message.payload.startswith(COOKIE):
            published = published_in(message.payload, message.subject, self._turn.now_ns)
            if published is not None:
                reply, form = published.ack_inbox, published.form
        if refusal.nack is not Nack.WRONG_STREAM and self._names_another(message):
            reply = b""
        self._decline(refusal, Refuse(reply, self._nack(refusal), enveloped, form), count)

    def _names_another(self, message: Message) -> bool:
        """Return whether a message is for another stream, which then answers."""
        if _EXPECTED_STREAM not in message.headers:
            return False
        try:
            named = named_stream(parse_headers(message.headers, len(message.headers)))
        except CorruptError:
            return False
        return named not in (None, self.config.name)

    def _refuse_single(self, single: Single, refusal: Refusal) -> None:
        self._decline(refusal, Refuse(single.reply, self._nack(refusal), False, single.form), 1)

    def _nack(self, refusal: Refusal) -> PubAck:
        return PubAck(
            stream=self.config.name,
            nack=refusal.nack,
            description=refusal.description,
            sequence=refusal.sequence,
        )

    def _decline(self, refusal: Refusal, answer: Refuse, count: int) -> None:
        count = min(count, self.config.max_batch_rows)
        self.counts.received += count
        self.counts.refused[refusal.nack] += count
        if answer.reply:
            self._turn.refusals.append(answer)
        else:
            self.counts.untold[refusal.nack] += count


def _begin_turn(event: Arrived, now_ns: int, *, here: bool) -> EventLoopBatch:
    room = event.room_bytes
    if event.stream_bytes is not None:
        room = min(room, event.stream_bytes)
    return EventLoopBatch(
        now_ns, room - FRAME_OVERHEAD, event.room_bytes - room, event.offset_max, here
    )
