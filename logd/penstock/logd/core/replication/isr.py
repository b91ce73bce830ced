"""Who is in sync: what the leader proposes, and who counts meanwhile.

A record is committed when everybody has it who is in the ISR *or may be in it without the leader
knowing yet*. The controller applies a proposal only if the partition's version is still the one it
was based on. So:

- A shrink counts when the controller's view comes, never before.
- An addition counts from the moment it is proposed, until a view of a higher version comes. That
  the proposal was refused or got no answer does not end it: a copy of it may still be under way.
  If the addition is not wanted any more, the ISR as it is is proposed: that raises the version.

Nobody enters who does not remember, as the leader does, which ids and sequences were stored: as a
leader it would store repeats. Who is in and turns out not to has to leave until it does; but a
member that is needed for the minimum stays meanwhile.

The ISR is not made smaller than the stream's minimum because of slowness. Nothing can be committed
then anyhow, and whoever stays in it has everything committed and may be elected (as KIP-966 aims
at). Only a member that lost committed records must leave.
"""

from collections.abc import Mapping

from penstock.logd.core.node import NodeId
from penstock.logd.core.replication.effects import ProposeIsr
from penstock.logd.core.replication.events import IsrAnswered
from penstock.logd.core.replication.log_state import LogState
from penstock.logd.core.replication.peer import Peer
from penstock.logd.core.replication.settings import ReplicationSettings
from penstock.logd.core.replication.view import View

Peers = Mapping[NodeId, Peer]


class Isr:
    """The ISR as its leader sees it.

    Args:
        node: The leader.
        view: The present one; `viewed` brings the next.
        settings: For the lag and for retries.
        epoch_start: Nobody enters who has not everything that the epoch began with.
    """

    def __init__(
        self, node: NodeId, view: View, settings: ReplicationSettings, *, epoch_start: int
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

    def viewed(self, view: View) -> None:
        """Take a later view of the same epoch."""
        if view.version > self._view.version:
            self._added = frozenset()
            self._waiting = False
            self._not_before_ns = None
        self._view = view
        self.counted = view.isr

    def is_pending(self, node: NodeId) -> bool:
        """Whether a follower has been proposed and is not in the ISR yet."""
        return node in self._added

    def in_sync(self, peers: Peers, now_ns: int) -> int:
        """How many members keep up, the leader included."""
        lag_ns = self._settings.replica_lag_ns
        return sum(
            1
            for node in self._view.isr
            if node == self._node or (node in peers and not peers[node].is_late(now_ns, lag_ns))
        )

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
        """What the ISR should be."""
        view, lag_ns = self._view, self._settings.replica_lag_ns
        target = {
            node for node in view.isr if node == self._node or self._may_stay(node, peers, log)
        }
        late = [n for n in target if n != self._node and peers[n].is_late(now_ns, lag_ns)]
        late.sort(key=lambda node: (peers[node].synced, node))
        forgetful = [n for n in sorted(target) if n in peers and peers[n].remembers is False]
        for node in (*forgetful, *late):
            if len(target) > view.min_isr:
                target.discard(node)
        for node, peer in peers.items():
            if node not in view.isr and self.may_join(node, peer, log):
                target.add(node)
        return frozenset(target)

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
            and peer.remembers is True
            and not peer.lost
            and peer.synced > log.high_watermark
            and peer.synced >= self._epoch_start
        )

    def propose(self, peers: Peers, log: LogState, now_ns: int) -> ProposeIsr | None:
        """The next proposal, if one is due."""
        if self._not_before_ns is not None and now_ns < self._not_before_ns:
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
        """When a member will be late, or a proposal may be repeated."""
        lag_ns = self._settings.replica_lag_ns
        times = [
            since_ns + lag_ns
            for node, peer in peers.items()
            if (since_ns := self._waits_since(node, peer)) is not None
            and since_ns + lag_ns > now_ns
        ]
        waiting_ns = self._not_before_ns
        if waiting_ns is None or waiting_ns <= now_ns:  # nearly always: the target is not needed
            return min(times, default=None)
        if self._added or self.target(peers, log, now_ns) != self._view.isr:
            times.append(waiting_ns)
        return min(times, default=None)
