"""The leader of one partition for one epoch, and which replicas it counts as in sync.

The high watermark is the offset of the last record that everybody who counts (`isr`) has durable.
Durable, not written: a power cut at all of them loses nothing acknowledged. What a follower said
under an earlier epoch does not count; under this one its log was compared first.

A leader acts by a lease. Acks of policy `all` are safe without, because no other leader's followers
answer to this epoch; the lease is what keeps those of policy `leader` honest, and two leaders from
being subscribed. Every event looks at it first, since a process may have slept through its end.

Who is in sync: what the leader proposes, and who counts meanwhile.

A record is committed when everybody has it who is in the ISR *or may be in it without the leader
knowing yet*. The controller applies a proposal only if the partition's version is still the one it
was based on. So:

- A shrink counts when the controller's view comes, never before.
- An addition counts from the moment it is proposed, until a view of a higher version comes. That
  the proposal was refused or got no answer does not end it: a copy of it may still be under way.
  If the addition is not wanted any more, the ISR as it is is proposed: that raises the version.

No replica enters that does not know, as the leader does, which ids and sequences were stored: as a
leader it would store repeats. Who is in and turns out not to has to leave until it does; but a
member that is needed for the minimum stays meanwhile.

The ISR is not made smaller than the stream's minimum because of slowness. Nothing can be committed
then anyhow, and a replica that stays in it has everything committed and may be elected (as
KIP-966 aims at). Only a member that lost committed records must leave.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from msgspec import Struct

from penstock.logd.replication.events import (
    Answer,
    BeginEpoch,
    Diverged,
    Effect,
    EpochSaved,
    Event,
    Fetch,
    FetchCame,
    Frames,
    HighWatermark,
    InheritedAcks,
    IsrAnswered,
    Lead,
    LeaderAndIsr,
    LeaderDurable,
    LeaseRenewed,
    NodeId,
    NodeLost,
    Outcome,
    OutOfRange,
    ProposeIsr,
    RefreshMetadata,
    Refusal,
    Refuse,
    Refused,
    Refusing,
    ReleaseLeadership,
    ReplicationSettings,
    SendAnswer,
    StepDown,
    Stop,
    StopReason,
)
from penstock.logd.replication.log_state import LogState


class Peer(Struct):
    """A follower as its fetches under the present epoch show it.

    It is behind since the last time at which it is known to have had all of the leader's log.
    So there is a goal: an end that the leader's log had at a certain time. When the follower has
    synced that far, it had everything then, and the next goal is the end as it is now.

    Attributes:
        agreed: Its log is the beginning of the leader's. Nothing else here counts without.
        end: End of its log.
        synced: Everything below is durable there.
        pending: Number of the fetch that wants frames; answers carry it.
        whole: It has no damaged range.
        lost: The controller took it for dead, or out of the ISR, and it has not fetched since.
        lost_ns: Time of the loss.
        behind_ns: Since when it is behind; None: it has everything.
        dedup_agrees: Whether it would find the repeats that this leader finds; None: not known.
    """

    boot: str = ""
    number: int = -1
    agreed: bool = False
    end: int = 0
    synced: int = 0
    pending: int = -1
    whole: bool = True
    lost: bool = False
    lost_ns: int = 0
    behind_ns: int | None = None
    dedup_agrees: bool | None = None
    goal: int = 0
    goal_ns: int = 0

    def is_news(self, fetch: Fetch) -> bool:
        """Return whether a fetch is later than those before; a restarted process counts from 0."""
        return fetch.boot != self.boot or fetch.number > self.number

    def fetched(self, fetch: Fetch, *, agreed: bool, dedup_agrees: bool | None) -> None:
        """Take what a fetch says."""
        self.dedup_agrees = dedup_agrees if agreed else None
        self.boot, self.number = fetch.boot, fetch.number
        self.agreed, self.whole, self.lost = agreed, fetch.whole, False
        self.end = fetch.offset
        self.synced = min(fetch.synced, fetch.offset) if agreed else 0
        if fetch.wants:
            self.pending = fetch.number

    def watch(self, log_end: int, now_ns: int) -> None:
        """Compare with where the leader's log ends; called whenever either moves."""
        if self.agreed and self.synced >= log_end:
            self.behind_ns = None
        elif self.behind_ns is None:
            self.behind_ns, self.goal, self.goal_ns = now_ns, log_end, now_ns
        elif self.agreed and self.synced >= self.goal:
            self.behind_ns, self.goal, self.goal_ns = self.goal_ns, log_end, now_ns

    def lose(self, now_ns: int) -> None:
        """The controller does not want it in the ISR."""
        self.lost, self.lost_ns = True, now_ns

    def forgive(self, now_ns: int) -> None:
        """Begin to wait for it again: it was the leader that did not listen."""
        self.behind_ns = None if self.behind_ns is None else now_ns
        self.goal_ns = now_ns

    def is_late(self, now_ns: int, lag_ns: int) -> bool:
        """Return whether it has been behind for too long."""
        return self.lost or (self.behind_ns is not None and now_ns - self.behind_ns >= lag_ns)


Peers = Mapping[NodeId, Peer]


class Isr:
    """The ISR as its leader sees it.

    Args:
        node: The leader.
        view: The present one; `viewed` brings the next.
        settings: Settings of the lag and of retries.
        epoch_start: No replica enters that has not everything that the epoch began with.
    """

    def __init__(
        self, node: NodeId, view: LeaderAndIsr, settings: ReplicationSettings, *, epoch_start: int
    ) -> None:
        self._node = node
        self._view = view
        self._settings = settings
        self._epoch_start = epoch_start
        self._added: frozenset[NodeId] = frozenset()
        self._waiting = False
        self._number = 0
        self._not_before_ns: int | None = None
        self.counted = view.isr

    def viewed(self, view: LeaderAndIsr) -> None:
        """Take a later view of the same epoch."""
        if view.version > self._view.version:
            self._added = frozenset()
            self._waiting = False
            self._not_before_ns = None
        self._view = view
        self.counted = view.isr

    def is_pending(self, node: NodeId) -> bool:
        """Return whether a follower has been proposed and is not in the ISR yet."""
        return node in self._added

    def in_sync(self, peers: Peers, now_ns: int) -> int:
        """Return how many members keep up, the leader included."""
        lag_ns, isr = self._settings.replica_lag_ns, self._view.isr
        found = 1 if self._node in isr else 0
        for node, peer in peers.items():
            if node in isr and not peer.is_late(now_ns, lag_ns):
                found += 1
        return found

    def try_again(self, peers: Peers, now_ns: int) -> None:
        """Take a replica into account again that the controller took out some time ago.

        One that lives and has nothing to fetch would else stay out until the next record.
        """
        until_ns = now_ns - self._settings.replica_lag_ns
        for node, peer in peers.items():
            if peer.lost and node not in self._view.isr and peer.lost_ns <= until_ns:
                peer.lost = False

    def _waits_since(self, node: NodeId, peer: Peer) -> int | None:
        """Since when time runs for a peer: behind as a member, or lost and outside."""
        if node in self._view.isr:
            return peer.behind_ns
        return peer.lost_ns if peer.lost else None

    def target(self, peers: Peers, log: LogState, now_ns: int) -> frozenset[NodeId]:
        """Return the ISR that the leader wants."""
        view, lag_ns = self._view, self._settings.replica_lag_ns
        target = {
            node for node in view.isr if node == self._node or self._may_stay(node, peers, log)
        }
        late = [n for n in target if n != self._node and peers[n].is_late(now_ns, lag_ns)]
        late.sort(key=lambda node: (peers[node].synced, node))
        forgetful = [n for n in sorted(target) if n in peers and peers[n].dedup_agrees is False]
        for node in (*forgetful, *late):
            if len(target) > view.min_isr:
                target.discard(node)
        for node, peer in peers.items():
            if node not in view.isr and self.may_join(node, peer, log):
                target.add(node)
        return frozenset(target)

    def _is_right(self, peers: Peers, log: LogState, now_ns: int) -> bool:
        """Return whether each member may stay and no other replica may join: the usual case.

        `target` says the same with sets, and takes three times as long, which each event would pay.
        """
        isr, lag_ns, found = self._view.isr, self._settings.replica_lag_ns, 1
        for node, peer in peers.items():
            if node in isr:
                found += 1
                forgetful = peer.dedup_agrees is False
                if (
                    forgetful
                    or peer.is_late(now_ns, lag_ns)
                    or not self._may_stay(node, peers, log)
                ):
                    return False
            elif self.may_join(node, peer, log):
                return False
        return found == len(isr)

    def _may_stay(self, node: NodeId, peers: Peers, log: LogState) -> bool:
        """It has not lost what was committed, so far as is known."""
        peer = peers.get(node)
        if peer is None or not peer.whole:
            return False
        return not peer.agreed or peer.synced > log.high_watermark

    def may_join(self, node: NodeId, peer: Peer, log: LogState) -> bool:
        """It has what is committed, and what the epoch began with (KAFKA-7128); dedup state, too.

        The second part is needed because a new leader's high watermark may be lower than that of
        the leader before it: among what it inherited may be more that was acknowledged.
        """
        return (
            node in self._view.replicas
            and node not in self._view.observers
            and peer.agreed
            and peer.whole
            and peer.dedup_agrees is True
            and not peer.lost
            and peer.synced > log.high_watermark
            and peer.synced >= self._epoch_start
        )

    def propose(self, peers: Peers, log: LogState, now_ns: int) -> ProposeIsr | None:
        """The next proposal, if one is due."""
        if self._not_before_ns is not None and now_ns < self._not_before_ns:
            return None
        if not self._added and self._is_right(peers, log, now_ns):
            return None
        target = self.target(peers, log, now_ns)
        if target == self._view.isr and not self._added:
            return None
        view = self._view
        self._added |= target - view.isr
        self.counted = view.isr | self._added
        self._waiting = True
        self._number += 1
        self._not_before_ns = now_ns + self._settings.retry_ns
        return ProposeIsr(self._number, view.incarnation, view.leader_epoch, view.version, target)

    def answered(self, event: IsrAnswered, now_ns: int) -> bool:
        """Take an answer; False if it is not to the last proposal.

        Whatever it says, who counts is decided by the next view.
        """
        mine = (self._view.leader_epoch, self._number)
        if not self._waiting or (event.leader_epoch, event.number) != mine:
            return False
        self._waiting = False
        self._not_before_ns = now_ns + self._settings.retry_ns
        return True

    def next_deadline_ns(self, peers: Peers, log: LogState, now_ns: int) -> int | None:
        """Return when a member will be late, or a proposal may be repeated."""
        lag_ns = self._settings.replica_lag_ns
        due_ns: int | None = None
        for node, peer in peers.items():  # without lists: each event asks
            since_ns = self._waits_since(node, peer)
            if since_ns is not None and since_ns + lag_ns > now_ns:
                late_ns = since_ns + lag_ns
                due_ns = late_ns if due_ns is None or late_ns < due_ns else due_ns
        waiting_ns = self._not_before_ns
        if waiting_ns is None or waiting_ns <= now_ns:  # nearly always: the target is not needed
            return due_ns
        if self._added or self.target(peers, log, now_ns) != self._view.isr:
            return waiting_ns if due_ns is None else min(due_ns, waiting_ns)
        return due_ns


class Stage(Enum):
    """State of a leadership.

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
        view: View that names it as leader.
        log: Its own.
        settings: Settings of the cluster.
        lease_until_ns: End of the lease, by the last renewal.

    Attributes:
        stage: Changed by `_become` only.
    """

    def __init__(
        self,
        node: NodeId,
        view: LeaderAndIsr,
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

    def viewed(self, view: LeaderAndIsr, now_ns: int) -> list[Effect]:
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
        """Renew the lease if nothing else follows from that; False: handle `LeaseRenewed`."""
        if self.stage is not Stage.LEADING:
            return False
        self._lease_until_ns = max(self._lease_until_ns, until_ns)
        return True

    @property
    def commits_alone(self) -> bool:
        """True if what is durable here is committed, and no other node needs to know."""
        return self.stage is Stage.LEADING and not self._peers and self.view.min_isr <= 1

    def next_deadline_ns(self, now_ns: int, *, lease: bool) -> int | None:
        """Return when the lease ends (if wanted), a follower is late, or a proposal is repeated."""
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

    def watch_peers(self, now_ns: int) -> None:
        """Note that the log has grown: followers are behind until they have it."""
        for peer in self._peers.values():
            peer.watch(self._log.written, now_ns)

    def answer_for(self, node: NodeId) -> Answer | None:
        """Return the current answer to a follower's last fetch; None without a pending fetch.

        For the code that holds pending fetches until there is news.
        """
        peer = self._peers.get(node)
        if peer is None or not peer.agreed or peer.pending < 0 or self.stage is Stage.RESIGNED:
            return None
        return self._frames(node, peer, peer.pending)

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
            effects.append(ReleaseLeadership(self.view.leader_epoch, why))

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
            effects.append(InheritedAcks(first, self._start))
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
        differed = peer.dedup_agrees is False
        peer.fetched(
            fetch,
            agreed=disagreement is None,
            dedup_agrees=True if fetch.dedup is None else dedup_agrees,
        )
        peer.watch(self._log.written, now_ns)
        self._raise_high_watermark(effects)
        if fetch.wants:
            answer = disagreement or self._frames(fetch.node, peer, fetch.number)
            effects.append(SendAnswer(fetch.node, answer))
        elif differed is not (peer.dedup_agrees is False) and peer.agreed and peer.pending >= 0:
            effects.append(SendAnswer(fetch.node, self._frames(fetch.node, peer, peer.pending)))

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
        """Compare the follower's log with this one; None: it is a prefix of this one.

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
            dedup_differs=peer.dedup_agrees is False,
        )

    def _isr_answered(self, event: IsrAnswered, now_ns: int, effects: list[Effect]) -> None:
        if not self._isr.answered(event, now_ns):
            return
        if event.outcome is Outcome.REFUSED:  # the replica to be added is taken back, for a while
            for node, peer in self._peers.items():
                if self._isr.is_pending(node):
                    peer.lose(now_ns)
        if event.outcome is Outcome.DEPOSED:
            self._become(Stage.RESIGNED, effects, StopReason.DEPOSED)
        if event.outcome in (Outcome.DEPOSED, Outcome.COMMITTED, Outcome.STALE):
            effects.append(RefreshMetadata())

    def _settle(self, now_ns: int, effects: list[Effect]) -> None:
        """Draw the conclusions: watch followers, commit, propose, refuse or take writes."""
        self.watch_peers(now_ns)
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
