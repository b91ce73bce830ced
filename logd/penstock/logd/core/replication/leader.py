"""The leader of one partition for one epoch.

The high watermark is the offset of the last record that everybody who counts (`isr`) has durable.
Durable, not written: a power cut at all of them loses nothing acknowledged. What a follower said
under an earlier epoch does not count; under this one its log was compared first.

A leader acts by a lease. Acks of policy `all` are safe without, because nobody else's followers
answer to this epoch; the lease is what keeps those of policy `leader` honest, and two leaders from
being subscribed. Every event looks at it first, since a process may have slept through its end.
"""

from enum import Enum
from typing import Final

from penstock.logd.core.node import NodeId
from penstock.logd.core.replication.effects import (
    BeginEpoch,
    Effect,
    HighWatermark,
    Inherited,
    Lead,
    LeaderDurable,
    RefreshMetadata,
    Refuse,
    Refusing,
    Resign,
    SendAnswer,
    Stop,
    StopReason,
)
from penstock.logd.core.replication.events import (
    EpochSaved,
    Event,
    FetchCame,
    IsrAnswered,
    LeaseRenewed,
    NodeLost,
    Outcome,
    StepDown,
)
from penstock.logd.core.replication.isr import Isr
from penstock.logd.core.replication.log_state import LogState
from penstock.logd.core.replication.messages import (
    Answer,
    Diverged,
    Fetch,
    Frames,
    OutOfRange,
    Refusal,
    Refused,
)
from penstock.logd.core.replication.peer import Peer
from penstock.logd.core.replication.settings import ReplicationSettings
from penstock.logd.core.replication.view import View


class Stage(Enum):
    """How far a leadership has come.

    STARTING: the epoch's start is being made durable; nothing of the epoch is in the log.
    LEADING: takes writes, acks, raises the high watermark. Only here, and only under a lease.
    FENCED: has no lease. Followers are still served; nothing is acked or newly committed.
    RESIGNED: leads no more under this epoch, whatever lease may come.
    """

    STARTING = "starting"
    LEADING = "leading"
    FENCED = "fenced"
    RESIGNED = "resigned"


TRANSITIONS: Final = {
    Stage.STARTING: {Stage.LEADING, Stage.FENCED, Stage.RESIGNED},
    Stage.LEADING: {Stage.FENCED, Stage.RESIGNED},
    Stage.FENCED: {Stage.LEADING, Stage.RESIGNED},
    Stage.RESIGNED: set[Stage](),
}


class Leader:
    """Made when the view names this node and its log stands still; `begin` comes first.

    Args:
        node: This one; in the view's ISR.
        view: That names it.
        log: Its own.
        settings: Of the cluster.
        lease_until_ns: As last renewed.

    Attributes:
        stage: Changed by `_become` only.
    """

    def __init__(
        self,
        node: NodeId,
        view: View,
        log: LogState,
        settings: ReplicationSettings,
        *,
        lease_until_ns: int,
    ) -> None:
        assert not log.busy
        assert node in view.isr
        self.stage = Stage.STARTING
        self.view = view
        self._node = node
        self._log = log
        self._lease_until_ns = lease_until_ns
        self._start = log.submitted
        self._isr = Isr(node, view, settings, epoch_start=self._start)
        self._peers: dict[NodeId, Peer] = {}
        self._acked = log.high_watermark + 1
        self._refusing = Refusing.NOTHING
        self._begun = False

    def begin(self, now_ns: int) -> list[Effect]:
        """Begin the epoch."""
        self._log.epochs.begin(self.view.leader_epoch, self._start)
        self._log.beginning = self.view.leader_epoch
        self._log.agreed_epoch = self.view.leader_epoch
        self._meet_peers(now_ns)
        return [BeginEpoch(self.view.leader_epoch, self._start)]

    def viewed(self, view: View, now_ns: int) -> list[Effect]:
        """Take a later view that leaves this leadership as it is."""
        renewed = [n for n in self._peers if view.holds_since(n) != self.view.holds_since(n)]
        for node in renewed:  # removed and added again between two views: its log is another one
            del self._peers[node]
        self.view = view
        self._isr.viewed(view)
        self._meet_peers(now_ns)
        effects: list[Effect] = []
        self._settle(now_ns, effects)
        return effects

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """Take what happened; what is about the log has been noted there already."""
        effects: list[Effect] = []
        self._watch_lease(now_ns, effects)
        match event:
            case FetchCame(fetch, dedup_agrees):
                self._fetched(fetch, dedup_agrees, now_ns, effects)
            case LeaseRenewed(until_ns):
                self._lease_until_ns = max(self._lease_until_ns, until_ns)
                if self.stage is Stage.FENCED:
                    self._lead(now_ns, effects)
            case EpochSaved(epoch):
                if self.stage is Stage.STARTING and epoch == self.view.leader_epoch:
                    self._lead(now_ns, effects)
            case IsrAnswered():
                self._isr_answered(event, now_ns, effects)
            case NodeLost(node):
                if node in self._peers:
                    self._peers[node].lose(now_ns)
            case StepDown():
                self._resign("asked to", StopReason.RESIGNED, effects)
            case _:  # what is about the log, or about time, or a follower's and late
                pass
        self._settle(now_ns, effects)
        return effects

    def renew(self, until_ns: int) -> bool:
        """As `LeaseRenewed`, where nothing follows from that; False: it is to be handled."""
        if self.stage is not Stage.LEADING:
            return False
        self._lease_until_ns = max(self._lease_until_ns, until_ns)
        return True

    def next_deadline_ns(self, now_ns: int, *, lease: bool) -> int | None:
        """When the lease ends (if asked for), a follower is late, or a proposal is repeated."""
        if self.stage is not Stage.LEADING:
            return None
        isr_ns = self._isr.next_deadline_ns(self._peers, self._log, now_ns)
        if not lease:
            return isr_ns
        return self._lease_until_ns if isr_ns is None else min(isr_ns, self._lease_until_ns)

    def stop(self, reason: StopReason) -> list[Effect]:
        """End: another view, or the storage failed."""
        effects: list[Effect] = []
        self._become(Stage.RESIGNED, effects, reason)
        return effects

    def resign(self, reason: str) -> list[Effect]:
        """Ask for another election, for a reason of this node's own."""
        effects: list[Effect] = []
        self._resign(reason, StopReason.RESIGNED, effects)
        return effects

    def answer_for(self, node: NodeId) -> Answer | None:
        """What a follower's last wish is answered with as things stand now.

        For whoever holds wishes back until there is news; None if there is no wish to answer.
        """
        peer = self._peers.get(node)
        if peer is None or not peer.agreed or peer.wish < 0 or self.stage is Stage.RESIGNED:
            return None
        return self._frames(node, peer, peer.wish)

    # Parts.

    def _become(
        self, stage: Stage, effects: list[Effect], reason: StopReason = StopReason.RESIGNED
    ) -> None:
        if stage is self.stage:
            return
        assert stage in TRANSITIONS[self.stage], (self.stage, stage)
        if self.stage is Stage.LEADING or (self._begun and stage is Stage.RESIGNED):
            effects.append(Stop(reason))
        self.stage = stage

    def _resign(self, why: str, reason: StopReason, effects: list[Effect]) -> None:
        if self.stage is not Stage.RESIGNED:
            self._become(Stage.RESIGNED, effects, reason)
            effects.append(Resign(self.view.leader_epoch, why))

    def _watch_lease(self, now_ns: int, effects: list[Effect]) -> None:
        if self.stage is Stage.LEADING and now_ns >= self._lease_until_ns:
            self._become(Stage.FENCED, effects, StopReason.LEASE_ENDED)

    def _lead(self, now_ns: int, effects: list[Effect]) -> None:
        """Begin to lead, or go on; without a lease wait for one."""
        if now_ns >= self._lease_until_ns:
            self._become(Stage.FENCED, effects)
            return
        self._become(Stage.LEADING, effects)
        for peer in self._peers.values():
            peer.forgive(now_ns)
        effects.append(Lead(self.view.leader_epoch, self._log.submitted))
        self._refusing = Refusing.NOTHING
        first = self._log.high_watermark + 1
        if not self._begun and first < self._start:
            effects.append(Inherited(first, self._start))
        self._begun = True

    def _meet_peers(self, now_ns: int) -> None:
        nodes = {*self.view.replicas, *self.view.observers, *self.view.isr} - {self._node}
        self._peers = {node: self._peers.get(node) or Peer() for node in sorted(nodes)}
        for peer in self._peers.values():
            peer.watch(self._log.written, now_ns)

    def _fetched(
        self, fetch: Fetch, dedup_agrees: bool | None, now_ns: int, effects: list[Effect]
    ) -> None:
        refusal = self._refuse(fetch)
        if refusal is not None:
            refused = Refused(
                boot=fetch.boot,
                number=fetch.number,
                incarnation=self.view.incarnation,
                leader_epoch=self.view.leader_epoch,
                reason=refusal,
            )
            effects.append(SendAnswer(fetch.node, refused))
            if refusal is Refusal.NEWER_EPOCH:  # there is a newer leader: this one is deposed
                self._become(Stage.RESIGNED, effects, StopReason.DEPOSED)
                effects.append(RefreshMetadata())
            return
        peer = self._peers[fetch.node]
        if not peer.is_news(fetch):
            return
        disagreement = self._compare(fetch)
        differed = peer.remembers is False
        peer.fetched(
            fetch,
            agreed=disagreement is None,
            remembers=True if fetch.dedup is None else dedup_agrees,
        )
        peer.watch(self._log.written, now_ns)
        self._raise_high_watermark(effects)
        if fetch.wants:
            answer = disagreement or self._frames(fetch.node, peer, fetch.number)
            effects.append(SendAnswer(fetch.node, answer))
        elif differed is not (peer.remembers is False) and peer.agreed and peer.wish >= 0:
            effects.append(SendAnswer(fetch.node, self._frames(fetch.node, peer, peer.wish)))

    def _refuse(self, fetch: Fetch) -> Refusal | None:
        if fetch.leader_epoch < self.view.leader_epoch:
            return Refusal.OLDER_EPOCH
        if fetch.leader_epoch > self.view.leader_epoch:
            return Refusal.NEWER_EPOCH
        if self.stage is Stage.RESIGNED:
            return Refusal.NOT_LEADER
        if fetch.node not in self._peers or fetch.version < self.view.holds_since(fetch.node):
            return Refusal.NOT_REPLICA
        return None

    def _compare(self, fetch: Fetch) -> Diverged | OutOfRange | None:
        """Whether the follower's log is the beginning of this one.

        It is when this log has an epoch of the number of the follower's last record, that ends no
        earlier than the follower's log does.
        """
        log, epoch = self._log, self.view.leader_epoch
        begins_here = fetch.offset == log.start or (fetch.settled and fetch.offset <= log.written)
        elsewhere = not fetch.last_epoch and not begins_here  # it may lack what is kept here
        if fetch.offset < log.start or elsewhere:
            return OutOfRange(
                boot=fetch.boot,
                number=fetch.number,
                incarnation=self.view.incarnation,
                leader_epoch=epoch,
                log_start=log.start,
            )
        if not fetch.last_epoch:
            return None
        common, end_offset = log.epochs.end_offset_for(fetch.last_epoch, log.written)
        if common == fetch.last_epoch and fetch.offset <= end_offset:
            return None
        return Diverged(
            boot=fetch.boot,
            number=fetch.number,
            incarnation=self.view.incarnation,
            leader_epoch=epoch,
            epoch=common,
            end_offset=end_offset,
            log_start=log.start,
        )

    def _frames(self, node: NodeId, peer: Peer, number: int) -> Frames:
        log = self._log
        return Frames(
            boot=peer.boot,
            number=number,
            incarnation=self.view.incarnation,
            leader_epoch=self.view.leader_epoch,
            offset=peer.end,
            upto=max(log.written, peer.end),
            high_watermark=log.high_watermark,
            log_start=log.start,
            catching_up=node not in self._isr.counted,
            dedup_differs=peer.remembers is False,
        )

    def _isr_answered(self, event: IsrAnswered, now_ns: int, effects: list[Effect]) -> None:
        if not self._isr.answered(event, now_ns):
            return
        if event.outcome is Outcome.REFUSED:  # whoever was to be added is taken back, for a while
            for node, peer in self._peers.items():
                if self._isr.is_pending(node):
                    peer.lose(now_ns)
        if event.outcome is Outcome.DEPOSED:
            self._become(Stage.RESIGNED, effects, StopReason.DEPOSED)
        if event.outcome in (Outcome.DEPOSED, Outcome.COMMITTED, Outcome.STALE):
            effects.append(RefreshMetadata())

    def _settle(self, now_ns: int, effects: list[Effect]) -> None:
        """Draw the conclusions: watch followers, commit, propose, refuse or take writes."""
        for peer in self._peers.values():
            peer.watch(self._log.written, now_ns)
        self._isr.try_again(self._peers, now_ns)
        if self.stage is not Stage.LEADING:
            return
        self._raise_high_watermark(effects)
        if self._log.synced > max(self._acked, self._log.high_watermark + 1):
            self._acked = self._log.synced
            effects.append(LeaderDurable(self._acked))
        if self._peers or self.view.isr != {self._node}:
            proposal = self._isr.propose(self._peers, self._log, now_ns)
            if proposal is not None:
                effects.append(proposal)
        refusing = self._why_not(now_ns)
        if refusing is not self._refusing:
            self._refusing = refusing
            effects.append(Refuse(refusing))

    def _raise_high_watermark(self, effects: list[Effect]) -> None:
        if self.stage is not Stage.LEADING or len(self.view.isr) < self.view.min_isr:
            return
        committed = self._committed()
        if committed > self._log.high_watermark:
            self._log.high_watermark = committed
            effects.append(HighWatermark(committed))

    def _committed(self) -> int:
        """The last offset that everybody who counts has durable."""
        synced = self._log.synced
        for node in self._isr.counted:
            if node != self._node:
                peer = self._peers[node]
                synced = min(synced, peer.synced if peer.agreed else 0)
        return synced - 1

    def _why_not(self, now_ns: int) -> Refusing:
        view = self.view
        if view.read_only:
            return Refusing.READ_ONLY
        if view.min_isr > 1 and self._isr.in_sync(self._peers, now_ns) < view.min_isr:
            return Refusing.NOT_ENOUGH_REPLICAS
        return Refusing.NOTHING
