"""One partition's replica on one node, in whatever role the controller's view gives it.

The role changes only while the log stands still: what a leader handed to its writer, and what a
follower is appending or cutting, is finished first (`Stopping`). A deposed leader that truncated
beside its own running append would put records of the old epoch behind those of the new one.

What the shell owes it:

- The log has one writer that does what effects say in their order, and reports in its order.
- Views come in order, none before the node has applied all that was committed when it started; a
  lease comes only after all that was committed when it was granted, and only if it answers a
  heartbeat of this very process.
- `log.high_watermark` and `log.agreed_epoch` are written down now and then, together, and at
  `SaveHighWatermark`; they are handed to `LogState.opened` at the next start. Losing what was
  written now and then costs time, never records. What `opened` has
  made of the epochs is written to their file before anything else.
- A fetch that may be lost is reported (`AnswerLost`); frames come to `AnswerCame` intact.
- `handle(Ticked())` when `next_deadline_ns` says so, asked again after each event.
"""

from typing import Final

from msgspec import Struct

from penstock.logd.replication.corrupt_ranges import CorruptRanges
from penstock.logd.replication.events import (
    Answer,
    AnswerCame,
    Effect,
    Electable,
    Event,
    Fetch,
    FetchCame,
    Finding,
    HighWatermark,
    LeaderAndIsr,
    LeaderAndIsrChanged,
    LeaseRenewed,
    NodeId,
    RangeAsked,
    RangeCame,
    RangeCorrupt,
    RangePatched,
    RefreshMetadata,
    Refusal,
    Refused,
    ReleaseLeadership,
    ReplicationSettings,
    SaveHighWatermark,
    SendAnswer,
    SendRange,
    StopReason,
    StorageFailed,
    Synced,
    Tell,
    Written,
)
from penstock.logd.replication.follower import Follower, Numbers
from penstock.logd.replication.follower import Stage as FollowerStage
from penstock.logd.replication.leader import Leader
from penstock.logd.replication.leader import Stage as LeaderStage
from penstock.logd.replication.log_state import LogState


class Idle(Struct, frozen=True):
    """Has no part to play: there is no leader, or this node is not to hold the partition."""


class Stopping(Struct, frozen=True):
    """The view gives another role; the log's writer has not finished."""


class Failed(Struct, frozen=True):
    """The log takes no writes. It is opened again as another `Replica`."""

    reason: str


State = Idle | Stopping | Failed | Leader | Follower

TRANSITIONS: Final[dict[type[State], set[type[State]]]] = {
    Idle: {Stopping, Leader, Follower, Failed, Idle},
    Stopping: {Leader, Follower, Failed, Idle},
    Leader: {Stopping, Leader, Follower, Failed, Idle},
    Follower: {Stopping, Leader, Follower, Failed, Idle},
    Failed: set(),
}


_ELECTABLE: Final = Electable()


class Replica:
    """A partition's replica.

    Args:
        node: This one.
        incarnation: Incarnation of the stream. Messages about another one are refused or ignored.
        log: State of the opened log.
        boot: Different with each start of the process.
        settings: Settings of the cluster.
        resigned_epoch: The last leadership that this process gave back before it opened this log.

    Attributes:
        state: Its role; changed by `_become` only.
        view: The last one; None before the first.
    """

    def __init__(
        self,
        node: NodeId,
        incarnation: str,
        log: LogState,
        *,
        boot: str,
        settings: ReplicationSettings | None = None,
        resigned_epoch: int = 0,
    ) -> None:
        self.state: State = Idle()
        self.view: LeaderAndIsr | None = None
        self.log = log
        self._node = node
        self._incarnation = incarnation
        self._resigned_epoch = resigned_epoch
        self._settings = settings or ReplicationSettings()
        self._numbers = Numbers(boot)
        self._holes = CorruptRanges(self._settings)
        self._lease_until_ns = 0
        self._electable = Electable()
        self._resignation: ReleaseLeadership | None = None
        self._resign_ns = 0
        self._cuts_seen = 0

    @property
    def leader_epoch(self) -> int:
        """The last that the controller reported; 0 before."""
        return self.view.leader_epoch if self.view else 0

    @property
    def high_watermark(self) -> int:
        """Offset of the last record that is committed and held here; -1 when there is none."""
        return min(self.log.high_watermark, self.log.synced - 1)

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """Take what happened. `now_ns` is the node's monotonic clock."""
        effects = self._note(event, now_ns)
        self._clip_holes()
        if isinstance(self.state, Stopping) and not self.log.busy:
            effects += self._enter(now_ns)
        self._look_at_holes(now_ns, effects)
        self._insist(now_ns, effects)
        return effects

    def renew(self, until_ns: int) -> bool:
        """Renew the lease if nothing else follows from that; False: handle `LeaseRenewed`.

        For a lease that has not ended since the last renewal, however long ago that is: a node that
        leads a thousand partitions renews its lease several times a second, and passes it to each
        of them when it has something for it. The end is passed at once (`Ticked`).
        """
        if not isinstance(self.state, Leader) or not self.state.renew(until_ns):
            return False
        self._lease_until_ns = max(self._lease_until_ns, until_ns)
        return True

    def note_submitted(self, upto: int) -> None:
        """Note `Submitted` of a leader; nothing follows from it until it is written."""
        self.log.submitted = max(self.log.submitted, upto)

    def note_written(self, upto: int, cuts: int, now_ns: int) -> bool:
        """Note `Written` if nothing follows from it here; its followers have something to fetch.

        Returns:
            Whether it is noted; if not, it has to be handled. `next_deadline_ns` may be earlier.
        """
        leads = isinstance(self.state, Leader) and self.state.stage is LeaderStage.LEADING
        if not leads or self._holes:
            return False
        self.log.note(Written(upto, cuts))
        assert isinstance(self.state, Leader)
        self.state.watch_peers(now_ns)
        return True

    def commit_alone(self, upto: int, cuts: int) -> bool:
        """Note `Synced` if only a higher high watermark follows from it.

        For a node whose lease holds now, however long ago it was renewed here: see `renew`.

        Returns:
            Whether it is noted, and committed; if not, it has to be handled.
        """
        alone = isinstance(self.state, Leader) and self.state.commits_alone
        if not alone or self._holes or cuts != self.log.cuts:
            return False
        self.log.note(Synced(upto, cuts))
        self.log.high_watermark = max(self.log.high_watermark, self.log.synced - 1)
        return True

    def next_deadline_ns(self, now_ns: int, *, lease: bool = True) -> int | None:
        """Return when `handle(Ticked())` is due without an event.

        Args:
            now_ns: The node's monotonic clock.
            lease: False if the owner itself ticks at the lease's end.
        """
        due_ns: int | None = None
        match self.state:
            case Leader() as leader:
                due_ns = leader.next_deadline_ns(now_ns, lease=lease)
            case Follower() as follower:
                due_ns = follower.next_deadline_ns()
            case _:
                pass
        if not self._holes and self._resignation is None:  # nearly always
            return due_ns
        resign_ns = self._resign_ns if self._resignation else None
        times = (due_ns, self._holes.next_deadline_ns(), resign_ns)
        return min((time for time in times if time is not None), default=None)

    def answer_for(self, node: NodeId) -> Answer | None:
        """Return the current answer to a follower's pending fetch; see `Leader.answer_for`."""
        return self.state.answer_for(node) if isinstance(self.state, Leader) else None

    # Parts.

    def _note(self, event: Event, now_ns: int) -> list[Effect]:
        match event:
            case LeaderAndIsrChanged(view):
                return self._viewed(view, now_ns)
            case FetchCame(fetch) if not self._serves(fetch):
                return self._refuse(fetch)
            case StorageFailed(reason):
                return self._fail(reason)
            case RangeCorrupt() | RangeAsked() | RangeCame() | RangePatched():
                return self._about_holes(event, now_ns)
            case _:
                return self._play(event, now_ns)

    def _play(self, event: Event, now_ns: int) -> list[Effect]:
        """Note what is about the log or the lease, and let the role draw its conclusions."""
        if isinstance(event, AnswerCame) and event.answer.incarnation != self._incarnation:
            return []
        if isinstance(event, LeaseRenewed):
            self._lease_until_ns = max(self._lease_until_ns, event.until_ns)
        self.log.note(event)
        if isinstance(self.state, Leader | Follower):
            return self.state.handle(event, now_ns)
        return []

    def _become(self, state: State) -> None:
        assert type(state) in TRANSITIONS[type(self.state)], (self.state, state)
        self.state = state

    def _viewed(self, view: LeaderAndIsr, now_ns: int) -> list[Effect]:
        known = self.view
        if view.incarnation != self._incarnation:
            return []
        if known is not None and view.version <= known.version:
            return []
        self.view = view
        if isinstance(self.state, Failed):
            leads = view.leader == self._node
            return [ReleaseLeadership(view.leader_epoch, self.state.reason)] if leads else []
        same = known is not None and (
            (known.leader_epoch, known.leader) == (view.leader_epoch, view.leader)
            and known.holds(self._node) == view.holds(self._node)
        )
        if same:
            return self._go_on(view, now_ns)
        effects: list[Effect] = []
        if isinstance(self.state, Leader):
            effects += self.state.stop(StopReason.DEPOSED)
        if not isinstance(self.state, Stopping):
            self._become(Stopping())
        return effects

    def _insist(self, now_ns: int, effects: list[Effect]) -> None:
        """Repeat a resignation until another epoch begins: it may have been lost."""
        for effect in effects:
            if isinstance(effect, ReleaseLeadership):
                self._resignation, self._resign_ns = effect, now_ns + self._settings.retry_ns
        wanted = self._resignation
        if wanted is None or self.view is None:
            return
        if (wanted.epoch, self._node) != (self.view.leader_epoch, self.view.leader):
            self._resignation = None
        elif now_ns >= self._resign_ns:
            self._resign_ns = now_ns + self._settings.retry_ns
            effects.append(wanted)

    def _go_on(self, view: LeaderAndIsr, now_ns: int) -> list[Effect]:
        match self.state:
            case Leader() as leader:
                return leader.viewed(view, now_ns)
            case Follower() as follower:
                follower.viewed(view)
                return []
            case Idle() | Stopping() | Failed():
                return []

    def _enter(self, now_ns: int) -> list[Effect]:
        """Take the role that the view gives; the log stands still."""
        view = self.view
        assert view is not None
        if view.leader is None or not view.holds(self._node):
            self._become(Idle())
            return []
        if max(self.log.epochs.latest, self.log.agreed_epoch) > view.leader_epoch:
            self._become(Idle())  # the log has seen more than this view knows
            return [RefreshMetadata()]
        if view.leader == self._node:
            return self._lead(view, now_ns)
        follower = Follower(self._node, view, self.log, self._numbers, self._settings)
        follower.hole = self._holes.first
        self._become(follower)
        return follower.begin()

    def _lead(self, view: LeaderAndIsr, now_ns: int) -> list[Effect]:
        reason = self._why_not_lead(view)
        if reason:
            self._become(Idle())
            return [ReleaseLeadership(view.leader_epoch, reason)]
        effects: list[Effect] = []
        if view.unclean_epoch == view.leader_epoch:
            self._lead_with_what_there_is(view, effects)
        leader = Leader(
            self._node, view, self.log, self._settings, lease_until_ns=self._lease_until_ns
        )
        self._become(leader)
        return effects + leader.begin(now_ns)

    def _why_not_lead(self, view: LeaderAndIsr) -> str:
        """Why this node must not lead; empty if it may."""
        if self._node not in view.isr:
            return "it is not in the ISR"
        if self._resigned_epoch >= view.leader_epoch:  # another node may lead by now
            return "it gave this epoch back before its log was opened again"
        if self.log.epochs.latest >= view.leader_epoch:
            # What that process had appended and not synced is lost here, and may be elsewhere: the
            # same epoch must not give the same offsets to other records.
            return "an earlier process of this node began this epoch"
        if view.unclean_epoch == view.leader_epoch:
            return ""
        return self._holds(view).reason

    def _holds(self, view: LeaderAndIsr | None) -> Electable:
        """Return whether others may rely on this log alone."""
        if not self._holes and not self.log.is_short:
            return _ELECTABLE
        if self._holes and (view is None or view.isr != {self._node}):
            return Electable("hole", "its log has a damaged range")
        above = self._holes.end > self.log.high_watermark + 1
        if above and view is not None and len(view.replicas) > 1:
            return Electable("hole", "its log has a damaged range that may not be committed")
        if self.log.is_short:
            return Electable("diverged", "its log ends below what was committed")
        return _ELECTABLE

    def _lead_with_what_there_is(self, view: LeaderAndIsr, effects: list[Effect]) -> None:
        """Take the loss that an unclean election has been ordered to take."""
        log, holes = self.log, self._holes
        if log.is_short:
            effects.append(Tell(Finding.UNCLEAN_LOSS, log.submitted, log.high_watermark + 1))
            log.high_watermark = log.submitted - 1
            effects.append(SaveHighWatermark(log.high_watermark, log.agreed_epoch))
        elif self._holds(view).ineligible:  # what lies behind the hole is kept
            assert holes.first is not None
            effects.append(Tell(Finding.HOLE_TAKEN, holes.first, holes.end))
            log.high_watermark = holes.end - 1
            effects.append(SaveHighWatermark(log.high_watermark, log.agreed_epoch))
            effects.append(HighWatermark(log.high_watermark))

    def _fail(self, reason: str) -> list[Effect]:
        effects: list[Effect] = []
        if isinstance(self.state, Failed):
            return effects
        if isinstance(self.state, Leader):
            effects += self.state.stop(StopReason.STORAGE_FAILED)
            effects.append(ReleaseLeadership(self.leader_epoch, reason))
        self._become(Failed(reason))
        return effects

    def _serves(self, fetch: Fetch) -> bool:
        return isinstance(self.state, Leader) and fetch.incarnation == self._incarnation

    def _refuse(self, fetch: Fetch) -> list[Effect]:
        reason = Refusal.NOT_LEADER
        effects: list[Effect] = []
        if fetch.incarnation != self._incarnation:
            reason = Refusal.INCARNATION
        elif fetch.leader_epoch < self.leader_epoch:
            reason = Refusal.OLDER_EPOCH
        elif fetch.leader_epoch > self.leader_epoch:
            reason = Refusal.NEWER_EPOCH
            effects.append(RefreshMetadata())
        refused = Refused(
            boot=fetch.boot,
            number=fetch.number,
            incarnation=self._incarnation,
            leader_epoch=self.leader_epoch,
            reason=reason,
        )
        return [*effects, SendAnswer(fetch.node, refused)]

    # Holes, and whether this replica may be elected.

    def _about_holes(
        self, event: RangeCorrupt | RangeAsked | RangeCame | RangePatched, now_ns: int
    ) -> list[Effect]:
        match event:
            case RangeCorrupt():
                return self._holes.found(event)
            case RangeAsked(node, first, upto):
                return [SendRange(node, first, self._sound_upto(first, upto))]
            case RangeCame():
                return self._holes.came(event, self.log, now_ns)
            case RangePatched():
                if event.cuts == self.log.cuts:
                    self._holes.patched(event)
                return []

    def _sound_upto(self, first: int, upto: int) -> int:
        """Return the end of the part of a range that this log has intact."""
        if isinstance(self.state, Failed) or first < self.log.start:
            return first
        return max(first, self._holes.sound_upto(first, min(upto, self.log.written)))

    def _clip_holes(self) -> None:
        if self._holes:
            cut = self._cuts_seen != self.log.cuts
            self._cuts_seen = self.log.cuts
            self._holes.clip(self.log.start, self.log.submitted, cut=cut)

    def _look_at_holes(self, now_ns: int, effects: list[Effect]) -> None:
        if self._holes and isinstance(self.state, Leader):
            held = self._holds(self.state.view)
            effects += self.state.resign(held.reason) if held.ineligible else []
        if isinstance(self.state, Follower) and self.state.hole != self._holes.first:
            self.state.hole = self._holes.first
            effects += self.state.report()
        if self._holes and self.view is not None and not isinstance(self.state, Failed):
            effects += self._holes.ask(self._helpers(), now_ns)
        electable = self._is_electable()
        if electable != self._electable:
            self._electable = electable
            effects.append(self._electable)
            if self.log.is_short and not self.log.cuts:  # what was cut will be fetched again
                end, lost = self.log.submitted, self.log.high_watermark + 1
                effects.append(Tell(Finding.COMMITTED_LOST, end, lost))

    def _helpers(self) -> list[NodeId]:
        """Whom to ask for a damaged range: the leader first, then the others in order."""
        assert self.view is not None
        others = [self.view.leader, *self.view.replicas, *sorted(self.view.observers)]
        return [node for node in dict.fromkeys(others) if node not in (None, self._node)]

    def _is_electable(self) -> Electable:
        if isinstance(self.state, Failed):
            return Electable("failed", self.state.reason)
        if isinstance(self.state, Follower) and self.state.stage is FollowerStage.DIVERGED:
            return Electable("diverged", "its log has diverged below what was committed")
        return self._holds(self.view)
