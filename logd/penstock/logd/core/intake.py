"""Sequencing: which messages a partition takes, at which offsets, and what publishers are told.

`Intake.handle` is given what arrived in one turn and the bytes the daemon has room for. It answers
with what to append, which acks to send once the high watermark has passed, and which refusals to
send now. Every record that arrives is counted as stored, duplicate or refused, never two of them.

An accepted record's ids and sequences count from then on, before it is on disk. If the disk then
fails, the partition takes nothing more until its state has been rebuilt from the log.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from penstock.logd.acks import Nack, PubAck
from penstock.logd.core.batch_check import describe_batch
from penstock.logd.core.dedup import Dedup
from penstock.logd.core.expectations import refuse_position
from penstock.logd.core.intake_counts import IntakeCounts
from penstock.logd.core.metadata import StreamConfig
from penstock.logd.core.producers import Accept, Duplicate, Gap
from penstock.logd.core.publish_options import (
    EXPECTED_STREAM,
    NO_OPTIONS,
    TOMBSTONE,
    PublishOptions,
    Refusal,
    named_stream,
    read_options,
    read_unanswered,
)
from penstock.logd.core.single import (
    BUSY,
    Single,
    open_published,
    published_fault,
    read_headers,
    refuse_subjects,
)
from penstock.logd.core.turn import (
    FRAME_OVERHEAD,
    OFFSET_MAX,
    RECORD_OVERHEAD,
    Effect,
    Message,
    PendingAck,
    Refuse,
    Turn,
    Whole,
)
from penstock.logd.envelope import (
    COOKIE,
    TYPE_BATCH,
    BatchPayload,
    Envelope,
    decode_batch,
    decode_envelope,
)
from penstock.logd.errors import CorruptError
from penstock.logd.nats.headers import Pairs, parse_headers
from penstock.logd.publish_envelope import TYPE_PUBLISH, Published, decode_publish, published_in


@dataclass(frozen=True, slots=True)
class Arrived:
    """Messages of one turn, in order of arrival.

    Attributes:
        room_bytes: What the daemon has room for.
        stream_bytes: What the stream has room for; None: its size has no limit.
        offset_max: Exclusive: the stream has room for records below it.
    """

    messages: Sequence[Message]
    room_bytes: int
    stream_bytes: int | None = None
    offset_max: int = OFFSET_MAX


@dataclass(frozen=True, slots=True)
class StorageFailed:
    """The partition's log refuses writes."""

    reason: str


@dataclass(frozen=True, slots=True)
class Led:
    """The partition is led here from now on, under this epoch, from this offset on."""

    epoch: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Declined:
    """Everything is refused with this from now on; None: no more."""

    refusal: Refusal | None


Event = Arrived | StorageFailed | Led | Declined

_BATCH_TYPE: Final = bytes([TYPE_BATCH])
_EXPECTED_STREAM: Final = EXPECTED_STREAM.encode()


class Intake:
    """The sequencer of one partition.

    Args:
        config: Of the stream.
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
        self._turn = Turn(0, 0)
        self.size_max = OFFSET_MAX

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """Take what happened; `now_ns` is Unix time and becomes the records' timestamp."""
        match event:
            case Arrived():
                return self._arrived(event, now_ns)
            case StorageFailed():
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
        length_max = self.config.message_bytes_max
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
        options = self._options(pairs, message, judged=asked and answers)
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

    def _options(self, pairs: Pairs, message: Message, *, judged: bool) -> PublishOptions | Refusal:
        """What a message's headers ask of this stream; whoever is not answered asks nothing."""
        most = self.config.key_bytes_max
        if judged:
            return read_options(pairs, key_bytes_max=most) if pairs else NO_OPTIONS
        return read_unanswered(pairs, key_bytes_max=most, tombstones=not message.payload)

    def _refuse_full(self, size: int, records: int = 1) -> Refusal | None:
        """Refuse what the stream itself has no room for; never a duplicate."""
        if size > self._turn.room:
            return Refusal(Nack.STREAM_FULL, "maximum bytes exceeded")
        if self.next_offset + records > self._turn.offset_max:
            return Refusal(Nack.STREAM_FULL, "maximum messages exceeded")
        return None

    def _is_wrong(self, message: Message, stream: str) -> bool:
        """Whether a stream of logd's own is named that does not store the message.

        Of a stream that is not known nothing is said: it may be one of a JetStream, or of another
        logd, on the same subject.
        """
        subject = message.subject.decode()
        return self._knows_stream(stream) and stream not in self._streams_for(subject)

    def _unwrap(self, message: Message) -> Envelope | Published | None:
        """What is in an envelope; None for a plain message, which may begin like one."""
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
                self._count_duplicates(min(batch.record_count, self.config.batch_rows_max))
                ack = PendingAck(
                    0, message.reply, offset, batch.record_count, duplicate=True, enveloped=True
                )
                if acked:
                    self._ack_when_durable(ack)
            case Gap() if not asked:  # the stream that is named has judged the sequence
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
        turn.put_whole(Whole(header, batch.body), size)
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
        self._tell(refusal, Refuse(reply, self._nack(refusal), enveloped, form), count)

    def _names_another(self, message: Message) -> bool:
        """Whether a message is for another stream, which answers; its headers may be unsound."""
        if _EXPECTED_STREAM not in message.headers:
            return False
        try:
            named = named_stream(parse_headers(message.headers, len(message.headers)))
        except CorruptError:
            return False
        return named not in (None, self.config.name)

    def _refuse_single(self, single: Single, refusal: Refusal) -> None:
        self._tell(refusal, Refuse(single.reply, self._nack(refusal), False, single.form), 1)

    def _nack(self, refusal: Refusal) -> PubAck:
        return PubAck(
            stream=self.config.name,
            nack=refusal.nack,
            description=refusal.description,
            sequence=refusal.sequence,
        )

    def _tell(self, refusal: Refusal, answer: Refuse, count: int) -> None:
        count = min(count, self.config.batch_rows_max)
        self.counts.received += count
        self.counts.refused[refusal.nack] += count
        if answer.reply:
            self._turn.refusals.append(answer)
        else:
            self.counts.untold[refusal.nack] += count


def _begin_turn(event: Arrived, now_ns: int, *, here: bool) -> Turn:
    room = event.room_bytes
    if event.stream_bytes is not None:
        room = min(room, event.stream_bytes)
    return Turn(now_ns, room - FRAME_OVERHEAD, event.room_bytes - room, event.offset_max, here)
