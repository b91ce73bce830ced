"""A follower of one partition's leader, for one epoch: it asks, appends and cuts.

It never cuts by a high watermark, and what it has seen committed it does not cut at all, unless it
learned of an unclean election since: it stands still and says so. The epochs decide how far back
two logs agree; see `epochs`.

One fetch is pending at a time, and the next one is sent only when the frames of the last are in the
log. What becomes durable meanwhile is reported without a fetch, so that the leader's high watermark
waits for no poll.
"""

from enum import Enum
from typing import Final

from penstock.logd.replication.events import (
    AnswerCame,
    AnswerLost,
    AppendFetched,
    AskDedup,
    BeginEpoch,
    DedupSaved,
    DeleteBefore,
    Diverged,
    Effect,
    Event,
    Fetch,
    Finding,
    Frames,
    HighWatermark,
    LeaderAndIsr,
    NodeId,
    OutOfRange,
    RefreshMetadata,
    Refusal,
    Refused,
    ReplicationSettings,
    Reset,
    SaveHighWatermark,
    SendFetch,
    Span,
    Synced,
    Tell,
    Truncate,
    Truncated,
    WasReset,
    Written,
)
from penstock.logd.replication.log_state import LogState


class Stage(Enum):
    """State of a follower.

    ASKING: a fetch is pending.
    APPENDING: frames are being written; no fetch is pending, so nothing can request a truncation.
    CUTTING: the log is being truncated or reset; the writer reports it.
    WAITING: it begins, or the leader does not serve this epoch yet: it retries at a time.
    PARKED: this node's metadata is behind; the next view makes another follower.
    DIVERGED: agreement would cost committed records. An operator must decide.
    """

    ASKING = "asking"
    APPENDING = "appending"
    CUTTING = "cutting"
    WAITING = "waiting"
    PARKED = "parked"
    DIVERGED = "diverged"


TRANSITIONS: Final = {
    Stage.ASKING: {Stage.APPENDING, Stage.CUTTING, Stage.WAITING, Stage.PARKED, Stage.DIVERGED},
    Stage.APPENDING: {Stage.ASKING},
    Stage.CUTTING: {Stage.ASKING},
    Stage.WAITING: {Stage.ASKING, Stage.CUTTING},
    Stage.PARKED: set[Stage](),
    Stage.DIVERGED: set[Stage](),
}


class Numbers:
    """Numbers of fetches: they rise as long as the process lives, whomever it follows."""

    def __init__(self, boot: str) -> None:
        self.boot = boot
        self._last = 0

    def next(self) -> int:
        """The next one."""
        self._last += 1
        return self._last


class Follower:
    """Made when the view names another leader and this node's log stands still; `begin` is first.

    Args:
        node: This one.
        view: A view with a leader.
        log: Its own.
        numbers: Numbers of its fetches.
        settings: Settings of retries.

    Attributes:
        stage: Changed by `_become` only.
        hole: First damaged offset of its log, set by the owner; nothing from there on counts as
            durable. None: there is none.
    """

    def __init__(
        self,
        node: NodeId,
        view: LeaderAndIsr,
        log: LogState,
        numbers: Numbers,
        settings: ReplicationSettings,
    ) -> None:
        assert not log.busy
        self.stage = Stage.WAITING
        self.view = view
        self.hole: int | None = None
        self._node = node
        self._log = log
        self._numbers = numbers
        self._settings = settings
        self._pending = -1
        self._reported = -1
        self._known = log.high_watermark
        self._has_answer = False
        self._leader_start = self._deleting = log.start
        self._retry_ns: int | None = None
        self._dedup_due_ns: int | None = None

    def begin(self) -> list[Effect]:
        """Ask for the first time.

        An epoch that this node began as a leader, and that has no record, is forgotten first: the
        next records may be of a smaller one.
        """
        if self._log.epochs.has_empty(self._log.written):
            return [self._truncate(self._log.written)]
        return [self._ask()]

    def viewed(self, view: LeaderAndIsr) -> None:
        """Take a later view that leaves epoch and leader as they are."""
        self.view = view

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """Take what happened; what is about the log has been noted there already."""
        effects = self._handle(event, now_ns)
        if self._dedup_due_ns is not None and now_ns >= self._dedup_due_ns:
            assert self.view.leader is not None
            self._dedup_due_ns = now_ns + self._settings.dedup_retry_ns
            effects.append(AskDedup(self.view.leader))
        return effects

    def _handle(self, event: Event, now_ns: int) -> list[Effect]:
        cut_done = isinstance(event, Truncated | WasReset) and not self._log.cutting
        lost = isinstance(event, AnswerLost)
        match self.stage:
            case Stage.ASKING if isinstance(event, AnswerCame):
                return self._answered(event, now_ns)
            case Stage.ASKING if lost:
                return [self._ask()]
            case Stage.CUTTING if cut_done:
                return [self._ask()]
            case Stage.WAITING if self._retry_ns is not None and now_ns >= self._retry_ns:
                return [self._ask()]
            case _ if isinstance(event, Written | Synced | DedupSaved):
                return self._progressed(report=isinstance(event, DedupSaved))
            case _:
                return []

    def next_deadline_ns(self) -> int | None:
        """Return when to ask again; None while an answer, the log or a view is awaited."""
        times = (self._retry_ns, self._dedup_due_ns)
        return min((time for time in times if time is not None), default=None)

    def report(self) -> list[Effect]:
        """Tell the leader at once how this replica is."""
        self._reported = self._log.synced
        assert self.view.leader is not None
        return [SendFetch(self.view.leader, self._fetch(wants=False))]

    # Parts.

    def _become(self, stage: Stage) -> None:
        if stage is not self.stage:
            assert stage in TRANSITIONS[self.stage], (self.stage, stage)
            self.stage = stage

    def _ask(self) -> Effect:
        self._become(Stage.ASKING)
        self._retry_ns = None
        fetch = self._fetch(wants=True)
        self._pending, self._reported = fetch.number, self._log.synced
        assert self.view.leader is not None
        return SendFetch(self.view.leader, fetch)

    def _fetch(self, *, wants: bool) -> Fetch:
        log = self._log
        return Fetch(
            node=self._node,
            boot=self._numbers.boot,
            number=self._numbers.next(),
            incarnation=self.view.incarnation,
            leader_epoch=self.view.leader_epoch,
            offset=log.written,
            last_epoch=log.epochs.epoch_at(log.written - 1) if log.written > log.start else 0,
            synced=log.synced if self.hole is None else min(log.synced, self.hole),
            whole=self.hole is None,
            wants=wants,
            known=self._known if self._has_answer else None,
            settled=self._is_settled(),
            version=self.view.version,
        )

    def _is_settled(self) -> bool:
        log = self._log
        empty = log.written == log.start and not log.is_short
        return empty and self.view.unclean_epoch <= log.agreed_epoch

    def _progressed(self, *, report: bool) -> list[Effect]:
        """The log has grown, or more of it is durable; or the leader is to hear at once."""
        effects: list[Effect] = []
        self._raise_high_watermark(effects)
        self._follow_start(effects)
        if self.stage is Stage.APPENDING and not self._log.busy:
            effects.append(self._ask())
        elif self.stage in (Stage.APPENDING, Stage.ASKING) and (
            report or self._log.synced > self._reported
        ):
            effects += self.report()
        return effects

    def _answered(self, event: AnswerCame, now_ns: int) -> list[Effect]:
        answer = event.answer
        if (answer.boot, answer.number) != (self._numbers.boot, self._pending):
            return []
        match answer:
            case Refused():
                return self._refused(answer, now_ns)
            case _ if answer.leader_epoch != self.view.leader_epoch:
                return []
            case Frames():
                return self._take(answer, event.spans, now_ns)
            case Diverged():
                return self._agree(answer, now_ns)
            case OutOfRange():
                return self._start_anew(answer.log_start)

    def _refused(self, answer: Refused, now_ns: int) -> list[Effect]:
        """Ask again, unless it is this node that is behind."""
        behind = answer.leader_epoch > self.view.leader_epoch
        if behind or answer.reason is Refusal.INCARNATION:
            self._become(Stage.PARKED)
            return [RefreshMetadata()]
        self._wait(now_ns)
        return []

    def _wait(self, now_ns: int) -> None:
        self._become(Stage.WAITING)
        self._retry_ns = now_ns + self._settings.retry_ns

    def _take(self, answer: Frames, spans: tuple[Span, ...], now_ns: int) -> list[Effect]:
        log = self._log
        effects: list[Effect] = []
        if log.is_short and self.view.unclean_epoch > log.agreed_epoch:
            self._give_up(log.written, effects)  # what it has yet to get is not what was committed
        self._known = max(self._known, answer.high_watermark)
        self._has_answer = True
        if not answer.dedup_differs:
            self._dedup_due_ns = None
        elif self._dedup_due_ns is None:
            self._dedup_due_ns = now_ns
        log.agreed_epoch = self.view.leader_epoch
        self._raise_high_watermark(effects)
        if spans and spans[0].base_offset < log.written < spans[0].next_offset:
            return effects + self._realign(spans[0])
        if not self._fits(spans):
            self._wait(now_ns)
            return [*effects, Tell(Finding.MISFIT, log.written, spans[-1].next_offset)]
        self._leader_start = max(self._leader_start, answer.log_start)
        self._follow_start(effects)
        if not spans:
            return effects
        for span in spans:
            if span.epoch > log.epochs.latest:
                log.epochs.begin(span.epoch, span.base_offset)
                effects.append(BeginEpoch(span.epoch, span.base_offset))
        log.submitted = spans[-1].next_offset
        self._become(Stage.APPENDING)
        return [*effects, AppendFetched(spans)]

    def _fits(self, spans: tuple[Span, ...]) -> bool:
        """Return whether frames follow the log and each other, in offsets and in epochs."""
        offset, epoch = self._log.written, self._log.last_epoch
        for span in spans:
            if span.base_offset != offset or not epoch <= span.epoch <= self.view.leader_epoch:
                return False
            offset, epoch = span.next_offset, span.epoch
        return True

    def _realign(self, span: Span) -> list[Effect]:
        """Go back to where a frame begins that compaction has made on the leader meanwhile.

        What is cut is fetched again with the next answer. The leader compacts only what the ISR
        has, so that this happens to replicas outside.
        """
        if span.base_offset < self._log.start:
            return [self._reset(span.base_offset)]
        return [self._truncate(span.base_offset)]

    def _agree(self, answer: Diverged, now_ns: int) -> list[Effect]:
        """Cut to where the logs may agree, and ask again: KIP-101 and KIP-279."""
        log = self._log
        cut = self._cut_for(answer)
        if cut >= log.written:
            self._wait(now_ns)
            return [Tell(Finding.MISFIT, log.written, cut + 1)]
        if cut < log.start or self._begins_later(answer):
            return self._start_anew(answer.log_start)
        effects: list[Effect] = []
        if cut <= log.high_watermark and not self._give_up(cut, effects):
            return effects
        return [*effects, self._truncate(cut)]

    def _begins_later(self, answer: Diverged) -> bool:
        """Return whether the leader's log begins after what is committed here, in later epochs.

        So no epoch tells whether the two agreed before. What was there was committed and has been
        deleted by retention; what this log has from there on is not known to be committed.
        """
        return not answer.epoch and answer.end_offset > max(self._log.high_watermark, 0)

    def _cut_for(self, answer: Diverged) -> int:
        """The lower end of the last epoch that both may have, here and there."""
        _, own_end = self._log.epochs.end_offset_for(answer.epoch, self._log.written)
        return min(answer.end_offset, own_end)

    def _start_anew(self, start: int) -> list[Effect]:
        """The leader has nothing where this log ends: begin where its log begins."""
        log = self._log
        effects: list[Effect] = []
        if start > log.written:
            effects.append(Tell(Finding.SKIPPED, log.written, start))
        elif log.written == log.start and self.view.unclean_epoch > log.agreed_epoch:
            self._lower_high_watermark(start - 1, effects)  # there is no record to give up
        elif start <= log.high_watermark and not self._give_up(start, effects):
            return effects
        return [*effects, self._reset(start)]

    def _give_up(self, cut: int, effects: list[Effect]) -> bool:
        """Give up what was committed, if an unclean election since allows it; tell in any case."""
        log = self._log
        if self.view.unclean_epoch <= log.agreed_epoch:
            self._become(Stage.DIVERGED)
            effects.append(Tell(Finding.DIVERGED, cut, log.high_watermark + 1))
            return False
        if cut <= log.high_watermark:
            effects.append(Tell(Finding.UNCLEAN_LOSS, cut, log.high_watermark + 1))
        self._lower_high_watermark(cut - 1, effects)
        return True

    def _lower_high_watermark(self, offset: int, effects: list[Effect]) -> None:
        log = self._log
        if offset < log.high_watermark:
            log.high_watermark = offset
            effects.append(SaveHighWatermark(offset, log.agreed_epoch))
        self._known = min(self._known, offset)

    def _truncate(self, upto: int) -> Effect:
        self._begin_cut()
        return Truncate(upto, self._log.cuts)

    def _reset(self, start: int) -> Effect:
        self._begin_cut()
        return Reset(start, self._log.cuts)

    def _begin_cut(self) -> None:
        assert not self._log.busy
        self._become(Stage.CUTTING)
        self._has_answer = False
        self._dedup_due_ns = None
        self._log.cuts += 1
        self._log.cutting = True

    def _follow_start(self, effects: list[Effect]) -> None:
        """Delete what the leader has deleted, below what is committed here."""
        upto = min(self._leader_start, self._log.high_watermark + 1)
        if upto > max(self._deleting, self._log.start):
            self._deleting = upto
            effects.append(DeleteBefore(upto))

    def _raise_high_watermark(self, effects: list[Effect]) -> None:
        committed = min(self._known, self._log.synced - 1)
        if committed > self._log.high_watermark and self.stage is not Stage.CUTTING:
            self._log.high_watermark = committed
            effects.append(HighWatermark(committed))
