"""The leader's side of a partition: it has messages written and acked, and restores backups.

Every replica has one, for a follower keeps in mind what a leader has to know (`Dedup`), so that it
can lead at once. Messages are taken between `lead` and `stop` only.

A stream that is made from a backup: where it begins, and which frames it takes.

Its configuration says from where to where each of its partitions is restored (`restore_from`,
`restore_upto`). The log begins at the first of them, on every replica. Below the second its leader
takes nothing but frames as they were fetched when the backup was made, each at the offset that it
had there; then publishers are accepted. So a restore continues where it stopped, under any leader.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, assert_never

import pyarrow as pa

from penstock.logd.errors import CorruptError, CorruptFrameError, RefusedError, UnavailableError
from penstock.logd.format.acks import Nack, PubAck
from penstock.logd.format.batch import SCHEMA_VERSION, decode_body
from penstock.logd.format.body_claims import read_claims
from penstock.logd.format.frame import NO_PRODUCER, FrameHeader, parse_frames
from penstock.logd.intake.intake import Arrived, Declined, Intake, Led, LogFailed
from penstock.logd.intake.options import Refusal
from penstock.logd.intake.turn import (
    FRAME_OVERHEAD,
    OFFSET_MAX,
    Ack,
    AckLater,
    AckRun,
    Append,
    Effect,
    Message,
    PendingAck,
    PrebuiltBatch,
    Refuse,
    ack_count,
)
from penstock.logd.metadata.streams import Stream, StreamConfig, is_internal
from penstock.logd.partition.context import PartitionContext
from penstock.logd.partition.log_writer import Frame
from penstock.logd.partition.rebuild import recall_frames
from penstock.logd.storage import CommitLog, EpochFile
from penstock.service.tracing import trace_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from penstock.service.tracing.spans import Tracer

OPEN_MAX: Final = 64
"""Spans at a time of one partition whose records are not committed; others are not begun."""


class AppendSpans:
    """Spans of one partition's appends. Used on the event loop.

    A span is linked with those of the producers whose batches were accepted: it knows them by the
    producer's id and the sequence.
    """

    def __init__(self, tracer: "Tracer", stream: str) -> None:
        self._tracer = tracer
        self._stream = stream
        self._open: deque[tuple[int, Span]] = deque()

    def begin(self, messages: Sequence[Message]) -> "Span | None":
        """A span for a turn, if there is more in it than Penstock's own spans."""
        is_own = self._tracer.is_own
        if len(self._open) >= OPEN_MAX or all(is_own(message.subject) for message in messages):
            return None
        return self._tracer.start("append", kind="CONSUMER")

    def took(self, span: "Span", effects: Sequence[Effect], messages: int) -> None:
        """Set the result of a turn; the commit of the last of several frames ends the span."""
        items = [item for one in effects if isinstance(one, Append) for item in one.items]
        span.set_attributes({"penstock.stream": self._stream, "penstock.messages": messages})
        if not items:
            self._tracer.end(span, error="nothing was stored: refused, or there before")
            return
        for item in items:
            if isinstance(item, PrebuiltBatch) and item.header.producer_id != NO_PRODUCER:
                header = item.header
                trace_id = trace_of(header.producer_id, header.producer_sequence)
                self._tracer.link(span, trace_id)
        size = sum(one.size_bytes for one in effects if isinstance(one, Append))
        span.set_attributes({"penstock.frames": len(items), "penstock.bytes": size})
        self._open.append((items[-1].next_offset, span))

    def committed(self, high_watermark: int) -> None:
        """Everything up to the high watermark is committed."""
        while self._open and self._open[0][0] <= high_watermark + 1:
            next_offset, span = self._open.popleft()
            self._tracer.end(span, attributes={"penstock.offset": next_offset - 1})

    def given_up(self) -> None:
        """End the open spans: uncommitted records are up to other leaders, or lost."""
        while self._open:
            _, span = self._open.popleft()
            self._tracer.end(span, error="not committed under this leadership")


def append_spans(tracer: "Tracer | None", stream: str) -> AppendSpans | None:
    """None where nothing is traced; so it is with logd's own streams.

    Cursors among these are committed because something was read: of Penstock's own spans, too.
    """
    return None if tracer is None or is_internal(stream) else AppendSpans(tracer, stream)


BEING_RESTORED: Final = Refusal(Nack.READ_ONLY, "the stream is being restored from a backup")


def begin(log: CommitLog, epochs: EpochFile, config: StreamConfig, partition: int) -> None:
    """Have a log that was just made begin where the backup does.

    Raises:
        LogFailedError: The disk failed.
    """
    start, _ = config.restored_range(partition)
    if start and log.end_offset == 0 and not epochs.entries:
        log.reset(start)


def read_frames(data: bytes, config: StreamConfig) -> list[Frame]:
    """Frames that a client sends, checked as those of a publisher are.

    Raises:
        RefusedError: `BAD_BACKUP`.
    """
    try:
        frames = parse_frames(data)
        for header, body in frames:
            _check_frame(header, body, config.max_batch_decoded_bytes)
    except CorruptError as error:
        message = f"these are no frames of a backup: {error}"
        raise RefusedError("BAD_BACKUP", message, stream=config.name) from None
    if not frames:
        raise RefusedError("BAD_BACKUP", "there is no frame", stream=config.name)
    return frames


def _check_frame(header: FrameHeader, body: bytes, decoded_bytes_max: int) -> None:
    rows, size = read_claims(body)
    if size > decoded_bytes_max:
        raise CorruptError(f"it claims {size} bytes; at most {decoded_bytes_max} are taken")
    if header.schema_version != SCHEMA_VERSION or rows != header.record_count:
        raise CorruptError("its header speaks of other records")
    batch = decode_body(body)
    for name in ("offset_delta", "timestamp", "subject"):
        if batch.column(name).null_count:
            raise CorruptError(f"its column {name} holds nulls")
    deltas = batch.column("offset_delta").to_pylist()
    rising = all(a < b for a, b in pairwise(deltas))
    if deltas and not (rising and deltas[0] >= 0 and deltas[-1] <= header.last_offset_delta):
        raise CorruptError("its offsets are not in its range")


def check_wanted(config: StreamConfig, partition: int, frames: list[Frame], wanted: int) -> None:
    """Refuse frames that are not the next ones.

    Raises:
        RefusedError: `NOT_RESTORING`, `WRONG_OFFSET`.
    """
    _, upto = config.restored_range(partition)
    name = config.name
    if wanted >= upto:
        message = f"partition {partition} of stream {name!r} is not being restored"
        raise RefusedError("NOT_RESTORING", message, stream=name, next_offset=wanted)
    first, last = frames[0][0].base_offset, frames[-1][0].last_offset
    if first != wanted or last >= upto:
        message = f"offsets {first} to {last} of {name!r}: wanted is {wanted}, below {upto}"
        raise RefusedError("WRONG_OFFSET", message, stream=name, next_offset=wanted)


class PublishQueue:
    """Takes messages into one partition. Used on the event loop.

    Args:
        stream: Stream of the partition.
        number: Number of the partition.
        log: Its log, for how full it is.
        intake: Sequences messages, and deduplicates.
        submit: Has something written; True: nothing came for other partitions with it.
        context: The budget that its own is a share of, the way back to publishers, the time.

    Attributes:
        stream, intake: The arguments.
        budget: Bytes it may hold, and does.
        leads: Whether messages are taken.
        declined: Why everything is refused though it leads; None: it is not.
        pending_acks: Acks that wait.
        skipped: Messages on reserved subjects that the stream's filter matched.
        ignored: Messages that came while it did not lead; nothing reports them.
        alone: Whether no other node has a replica: none but this one ever answers publishers.
        refuses: Whether everything is refused though it does not lead: its log has failed, alone.
        lost: Records that were accepted and then not stored, because the storage failed.
        undecided: Records that were accepted under a leadership that ended before they were
            committed: the leaders after it decide, and their publishers are not answered here.
    """

    def __init__(
        self,
        stream: Stream,
        number: int,
        log: CommitLog,
        intake: Intake,
        submit: Callable[[list[Append], bool], None],
        context: PartitionContext,
    ) -> None:
        self.intake = intake
        self.number = number
        self.budget = context.budget.share(stream.config.max_intake_bytes)
        self.stream = stream
        self.leads = False
        self.declined: Refusal | None = None
        self._space = context.space
        self.alone = self.refuses = False
        self.pending_acks = 0
        self.skipped = self.ignored = 0
        self.lost = self.undecided = 0
        intake.size_max = self.budget.bytes_max - FRAME_OVERHEAD
        self._log = log
        self._submit = submit
        self._acks = context.acks
        self._clock = context.clock
        self._pending: deque[Ack] = deque()
        self._pending_here: deque[Ack] = deque()
        self._held: deque[tuple[int, int]] = deque()
        self._high_watermark = -1
        self._first = 0
        self._open = False
        self._committed_before = 0
        self._spans = append_spans(context.tracer, stream.config.name)

    @property
    def name(self) -> str:
        return self.stream.config.name

    @property
    def label(self) -> str:
        """Name of the partition; the first one has the stream's name."""
        return f"{self.name}/{self.number}" if self.number else self.name

    @property
    def subject(self) -> str:
        """Subject of the partition; the first one is on the stream's own subject."""
        subject = self.stream.config.subject
        return f"{subject}.{self.number}" if self.number else subject

    @property
    def uncommitted(self) -> int:
        """Records accepted and not committed yet."""
        return self.intake.next_offset - self._reached if self._open else 0

    @property
    def committed(self) -> int:
        """Records that were accepted here and are committed."""
        return self._committed_before + (self._reached - self._first if self._open else 0)

    @property
    def _reached(self) -> int:
        return max(self._high_watermark + 1, self._first)

    def lead(self, epoch: int, next_offset: int, high_watermark: int) -> None:
        """Take messages, from this offset on; also again under an epoch whose lease had ended."""
        if not self._open:
            self._high_watermark = high_watermark
            self._first = next_offset
            self._open = True
        self.leads = True
        self.intake.handle(Led(epoch, next_offset), self._clock.unix_ns())
        self._apply_refusal()

    def decline(self, refusal: Refusal | None) -> None:
        """Refuse everything with this, or (None) refuse nothing any more."""
        self.declined = refusal
        self._apply_refusal()

    def space_changed(self) -> None:
        """Note that the disk has no space for publishers any more, or has some again."""
        self._apply_refusal()

    @property
    def _refusal(self) -> Refusal | None:
        """Why everything is refused; what logd itself publishes is little, and is always taken."""
        return self.declined or (None if is_internal(self.name) else self._space.refusal)

    def restore(self, frames: list[Frame]) -> int:
        """Take frames of a backup, at the offsets they have; the offset after them.

        Raises:
            RefusedError: `NOT_RESTORING`, `WRONG_OFFSET`.
            UnavailableError: They are not taken now.
        """
        self.check_takes()
        check_wanted(self.stream.config, self.number, frames, self.intake.next_offset)
        size = sum(header.frame_length + FRAME_OVERHEAD for header, _ in frames)
        if size > self.budget.room and self.budget.held:  # alone, even the largest frame is taken
            raise UnavailableError(f"stream {self.name}: too many bytes wait for the disk")
        epoch = self.intake.epoch
        placed = [(one.at(base_offset=one.base_offset, leader_epoch=epoch), b) for one, b in frames]
        recall_frames(self.intake, placed, self._clock.unix_ns())
        self._execute([Append([PrebuiltBatch(header, body) for header, body in placed], size)])
        self._apply_refusal()
        return self.intake.next_offset

    @property
    def refusal(self) -> Refusal | None:
        """Why all publishers are refused here, as in a restore; None: they are not, or not here."""
        return self._refusal_of_publishers if self.leads else None

    @property
    def _refusal_of_publishers(self) -> Refusal | None:
        _, upto = self.stream.config.restored_range(self.number)
        return self._refusal or (BEING_RESTORED if self.intake.next_offset < upto else None)

    def _apply_refusal(self) -> None:
        self.intake.handle(Declined(self._refusal_of_publishers), self._clock.unix_ns())

    def pause(self) -> None:
        """Take no messages; what waits for an ack goes on to wait, for it may yet be committed."""
        self.leads = False

    def stop(self) -> None:
        """Take no messages, and answer none of those that wait: others decide about them."""
        self.pause()
        if self._open:
            self.undecided += self.uncommitted
            self._committed_before = self.committed
            self._open = False
        self._forget_waiting()

    def check_takes(self) -> None:
        """Look whether messages are taken now.

        Raises:
            UnavailableError: They are not.
        """
        if not self.leads:
            raise UnavailableError(f"stream {self.name}: it is not led here any more")
        if (refusal := self._refusal) is not None:
            raise UnavailableError(f"stream {self.name}: {refusal.description}")

    def take(self, messages: list[Message], *, alone: bool = False) -> None:
        """Take what arrived in one turn.

        Args:
            messages: In the order in which they came.
            alone: Whether nothing came for other partitions.

        What comes while it does not lead is neither taken nor answered: the leader does that,
        or the publisher sends it again.
        """
        if not self.leads and not self.refuses:
            self.ignored += len(messages)
            return
        arrived = Arrived(messages, self.budget.room, *self._stream_room())
        span = None if self._spans is None else self._spans.begin(messages)
        effects = self.intake.handle(arrived, self._clock.unix_ns())
        if self._spans is not None and span is not None:
            self._spans.took(span, effects, len(messages))
        self._execute(effects, alone=alone)
        self._send_acks(self._pending, self._high_watermark)

    def follow(self, frames: list[Frame]) -> None:
        """Keep in mind what a leader has to know of frames that the log gets next."""
        recall_frames(self.intake, frames, self._clock.unix_ns())

    def inherited(self, acks: Iterable[PendingAck]) -> None:
        """Answer publishers of records that came from leaders before, as they are committed.

        Args:
            acks: In the order of offsets, below all that was taken here.
        """
        older = list(acks)
        self._pending.extendleft(reversed(older))
        self.pending_acks += len(older)
        self._send_acks(self._pending, self._high_watermark)

    def durable_here(self, upto: int) -> None:
        """Everything below is durable on the leader, if nowhere else: some acks are due."""
        self._send_acks(self._pending_here, upto - 1)

    def committed_upto(self, high_watermark: int) -> None:
        """Everything up to the high watermark is committed: acks are due."""
        self._high_watermark = high_watermark
        if self._spans is not None:
            self._spans.committed(high_watermark)
        while self._held and self._held[0][0] <= high_watermark + 1:
            self.budget.release(self._held.popleft()[1])
        self._send_acks(self._pending, high_watermark)
        if self._pending_here:
            self._send_acks(self._pending_here, high_watermark)

    def fail(self, reason: str) -> None:
        """The storage failed: nothing more is taken, and what waits is refused."""
        self.refuses = self.alone
        self.lost += self.uncommitted
        self._committed_before = self.committed
        self._open = False
        self._execute(self.intake.handle(LogFailed(reason), self._clock.unix_ns()))
        description = "the stream's storage failed; it takes no writes"
        ack = PubAck(stream=self.name, nack=Nack.STORAGE_FAILED, description=description)
        for pending in (*self._pending_here, *self._pending):
            replies = pending.replies if isinstance(pending, AckRun) else [pending.reply]
            enveloped = not isinstance(pending, AckRun) and pending.enveloped
            form = b"" if isinstance(pending, AckRun) else pending.form
            for reply in filter(None, replies):
                self._acks.send_refusal(Refuse(reply, ack, enveloped, form))
        self._forget_waiting()

    def count_on(self, before: "PublishQueue") -> None:
        """Go on with the counts of the one that this one takes the place of."""
        self._committed_before += before.committed
        self.intake.counts = before.intake.counts
        self.lost += before.lost
        self.undecided += before.undecided
        self.skipped += before.skipped
        self.ignored += before.ignored
        self.intake.dedup.count_on(before.intake.dedup)

    def _forget_waiting(self) -> None:
        if self._spans is not None:
            self._spans.given_up()
        self._pending.clear()
        self._pending_here.clear()
        self.pending_acks = 0
        while self._held:
            self.budget.release(self._held.popleft()[1])

    def _stream_room(self) -> tuple[int | None, int]:
        """Bytes the stream itself has room for (None: no limit), and below which offset."""
        config = self.stream.config
        if config.discard == "old":
            return None, OFFSET_MAX
        limit, room, offset_max = config.retention, None, OFFSET_MAX
        if limit.bytes is not None:
            written = self._log.end_offset
            waiting = sum(size for next_offset, size in self._held if next_offset > written)
            room = limit.bytes - self._log.size_bytes - waiting
        if limit.messages is not None:
            offset_max = self._log.start_offset + limit.messages
        return room, offset_max

    def _execute(self, effects: list[Effect], *, alone: bool = False) -> None:
        appends: list[Append] = []
        for effect in effects:
            match effect:
                case Refuse():
                    self._acks.send_refusal(effect)
                case Append():
                    self.budget.take(effect.size_bytes)
                    self._held.append((effect.items[-1].next_offset, effect.size_bytes))
                    appends.append(effect)
                case AckLater():
                    for ack in effect.acks:
                        (self._pending_here if ack.here else self._pending).append(ack)
                        self.pending_acks += ack_count(ack)
                case _:
                    assert_never(effect)
        if appends:
            self._submit(appends, alone)

    def _send_acks(self, pending: deque[Ack], upto: int) -> None:
        """Send every ack that is due when everything up to `upto` is what it waits for."""
        if not pending or pending[0].release > upto:
            return
        due = []
        while pending and pending[0].release <= upto:
            due.append(ack := pending.popleft())
            self.pending_acks -= ack_count(ack)
        self._acks.send_acks(self.name, self.intake.epoch, due)


def inherited_acks(log: CommitLog, first: int, upto: int, config: StreamConfig) -> list[PendingAck]:
    """Acks of plain messages in [first, upto), in order; their reply subjects lie in the log.

    Producers of batches are not answered: they ask again, and learn of the duplicate.
    """
    acks: list[PendingAck] = []
    if not config.ack_on_reply or config.ack_policy == "none":
        return acks
    first = max(first, log.start_offset)
    while first < upto:
        try:
            for header, body in log.frames(first, upto=upto):
                if not header.producer_sequence:
                    acks += _acks(header.base_offset, decode_body(body), first)
                first = header.next_offset
        except CorruptFrameError as error:
            first = error.next_offset
        else:
            break
    return acks


def _acks(base_offset: int, batch: pa.RecordBatch, first: int) -> list[PendingAck]:
    replies = batch.column("reply")
    if replies.null_count == batch.num_rows:
        return []
    deltas = batch.column("offset_delta").to_pylist()
    return [
        PendingAck(base_offset + delta, reply.encode(), base_offset + delta)
        for delta, reply in zip(deltas, replies.to_pylist(), strict=True)
        if reply and base_offset + delta >= first
    ]
