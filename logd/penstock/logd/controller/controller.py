"""The controller: runs where the metadata group's leader is, and decides who leads what.

It never gives a leadership to a node while another may believe that it has it:

- A node gets a lease only for what it knows. Its heartbeat says how far it has applied; one that
  has not applied that it lost a leadership gets no answer.
- From the moment a command is proposed that takes a leadership away until it is applied or dropped,
  the node that loses by it gets no answer either.
- A new controller takes every node to have been answered at the moment of its election. It answers
  only while its own lease as Raft leader holds, so the one before it cannot have answered later.
- It calls a node dead only while its lease as Raft leader holds. A controller that does not receive
  would otherwise take all other replicas out of ISRs, by commands that the others receive and
  commit.
- Handing a leadership over deposes first, and elects once the old leader has applied that or its
  lease has ended.

Everything that must survive is in the state; a new controller goes on from there.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final, TypeAlias, TypeVar

from msgspec import Struct

from penstock.logd.controller.elections import Elections, Wait
from penstock.logd.controller.liveness import (
    NS_PER_MS,
    Heartbeat,
    HeartbeatAnswer,
    HeartbeatRefusal,
    Liveness,
    Reason,
    Standing,
    Timing,
)
from penstock.logd.controller.placement import plan_moves, plan_transfers
from penstock.logd.metadata.commands import (
    AlterStream,
    ChangeIsr,
    Command,
    Drain,
    Election,
    ElectLeaders,
    IsrChange,
    RegisterNode,
)
from penstock.logd.metadata.records import NodeId, NodeState, PartitionKey
from penstock.logd.metadata.state import ClusterState, Each, Refused, Result
from penstock.logd.metadata.tables import Done


class BecameController(Struct, frozen=True):
    """This node leads the metadata group and has applied everything from before its election.

    Attributes:
        state: State to which commands are applied from now on.
        elected_ns: Monotonic time of the election; no node answered heartbeats in an earlier term
            after that.
    """

    state: ClusterState
    elected_ns: int


class LostController(Struct, frozen=True):
    """This node leads the metadata group no more.

    Told before `BecameController` of another term, too: what an earlier term knew of heartbeats is
    not to be acted on.
    """


class HeartbeatReceived(Struct, frozen=True):
    """A node's heartbeat.

    Attributes:
        raft_lease_until_ns: Time before which no other node can be elected, by this node's clock.
    """

    heartbeat: Heartbeat
    raft_lease_until_ns: int


class CommandApplied(Struct, frozen=True):
    """A command was applied to the state.

    Attributes:
        proposal: Number of the proposal it came from, if it was this controller's.
    """

    command: Command
    result: Result
    proposal: int | None = None


class ProposalDropped(Struct, frozen=True):
    """A proposal is over: it was applied, or is not in the log and never will be.

    Not needed where `CommandApplied` names the proposal.
    """

    proposal: int


class UncleanElectionAsked(Struct, frozen=True):
    """An operator wants a leader at any price."""

    key: PartitionKey


class RebalanceAsked(Struct, frozen=True):
    """An operator wants leaderships evened out now."""


class Tick(Struct, frozen=True):
    """The time that `next_deadline_ns` named has come; the lease is as in `HeartbeatReceived`."""

    raft_lease_until_ns: int


class Propose(Struct, frozen=True):
    """Propose a command; `CommandApplied` with its number, or `ProposalDropped`, follows."""

    proposal: int
    command: Command


class Answer(Struct, frozen=True):
    """Answer a node's heartbeat."""

    node: NodeId
    answer: HeartbeatAnswer | HeartbeatRefusal


ControllerEvent: TypeAlias = (
    BecameController
    | LostController
    | HeartbeatReceived
    | CommandApplied
    | ProposalDropped
    | UncleanElectionAsked
    | RebalanceAsked
    | Tick
)
ControllerEffect: TypeAlias = Propose | Answer


Change = TypeVar("Change", Election, IsrChange)

CHANGES_PER_COMMAND_MAX: Final = 500
"""Elections or ISR changes in one command: about 200 KiB with the longest names."""

_IDLE_INTERVALS: Final = 30
"""Intervals until it is looked again at what is to be moved, when nothing was and nothing has
changed: with a thousand partitions that look is most of what an idle cluster does."""


class _UnderWay(Struct, frozen=True):
    """Partitions of a pending proposal, left alone, and its losers, which get no answer."""

    partitions: frozenset[PartitionKey]
    losing: frozenset[NodeId]


class Controller:
    """Present on every node, and idle where the metadata group is not led.

    Attributes:
        counts: Number of decisions by kind, for metrics.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._state: ClusterState | None = None
        self._proposals = 0
        self.counts: Counter[str] = Counter()
        self._begin(ClusterState())
        self._state = None

    def _begin(self, state: ClusterState) -> None:
        self._state = state
        self._liveness = Liveness(self._timing)
        self._elections = Elections(state, self._liveness, self._timing)
        self._under_way: dict[int, _UnderWay] = {}
        self._dirty: set[PartitionKey] = set()
        self._all_dirty = True
        self._waits: dict[PartitionKey, Wait] = {}
        self._plan_ns = 0
        self._calm_since_ns = 0
        self._rebalancing = False
        self._raft_lease_until_ns = 0
        self._not_dead_before_ns = 0

    @property
    def decides(self) -> bool:
        """True if this is the controller."""
        return self._state is not None

    def knows_nodes(self) -> bool:
        """Return whether this is the controller, for long enough to know the live nodes."""
        return self._state is not None and self._liveness.is_whole()

    def live(self) -> set[NodeId]:
        """The nodes that are there; empty where this is not the controller."""
        return self._liveness.live() if self._state is not None else set()

    def next_deadline_ns(self) -> int | None:
        """Return when `Tick` is due, monotonic; None: this is not the controller."""
        if self._state is None:
            return None
        waits = [wait.until_ns for wait in self._waits.values()]
        dead = self._liveness.next_deadline_ns()
        if dead is not None:
            waits.append(max(dead, self._not_dead_before_ns))
        return min([*waits, self._plan_ns])

    def admit(self, change: IsrChange) -> Refused | None:
        """Check an ISR change that a leader asks for; None: it may be proposed.

        A node that is dead to the controller does not enter an ISR: it would be removed again.
        """
        if self._state is None:
            return Refused(code="NOT_CONTROLLER", message="this node does not decide")
        key = PartitionKey(change.basis.stream, change.basis.partition)
        found = self._state.partition(key)
        present = () if found is None else found[1].isr
        for node in sorted(set(change.isr) - set(present)):
            if self._liveness.standing(node) is not Standing.LIVE:
                return Refused(code="NODE_NOT_LIVE", message=f"node {node} sends no heartbeats")
        return None

    def objection(self, key: PartitionKey, now_ns: int) -> Refused | None:
        """Why `UncleanElectionAsked` would do nothing now; None: it is held."""
        if self._state is None or not self._liveness.is_whole():
            return Refused(code="NOT_YET", message="it is not known which nodes are there")
        if key in self._locked():
            return Refused(code="NOT_YET", message="a change of the partition is under way")
        return self._elections.objection(key, now_ns)

    def known_end(self, key: PartitionKey, nodes: Iterable[NodeId]) -> int | None:
        """Return the last reported end of the longest log of these nodes; None: unknown."""
        return self._elections.known_end(key, nodes)

    def handle(self, event: ControllerEvent, now_ns: int) -> list[ControllerEffect]:
        """Take in what happened; what is to be done."""
        if isinstance(event, BecameController):
            self._begin(event.state)
            self._liveness.reset(event.state.nodes.values(), self._leases_since(event, now_ns))
            self._plan_ns = now_ns + self._timing.plan_interval_ms * NS_PER_MS
            self._calm_since_ns = now_ns
            return self._decide(now_ns)
        if isinstance(event, LostController):
            self._state = None
            return []
        if self._state is None:
            return self._decline(event)
        if isinstance(event, HeartbeatReceived | Tick):
            self._raft_lease_until_ns = event.raft_lease_until_ns
        if isinstance(event, HeartbeatReceived):
            return self._receive_heartbeat(self._state, event, now_ns)
        if isinstance(event, CommandApplied):
            self._take_in(self._state, event, now_ns)
        elif isinstance(event, ProposalDropped):
            self._put_off(event.proposal, now_ns)
        elif isinstance(event, RebalanceAsked):
            self._rebalancing = True
            self._plan_ns = now_ns
        elif isinstance(event, UncleanElectionAsked):
            return self._force(event.key, now_ns) + self._decide(now_ns)
        return self._decide(now_ns)

    def _decline(self, event: ControllerEvent) -> list[ControllerEffect]:
        if isinstance(event, HeartbeatReceived):
            return [self._refuse(event.heartbeat, "not_controller")]
        return []

    def _leases_since(self, event: BecameController, now_ns: int) -> int:
        """Return the last time at which an earlier controller may have answered."""
        del now_ns
        return event.elected_ns

    # Heartbeats.

    def _receive_heartbeat(
        self, state: ClusterState, event: HeartbeatReceived, now_ns: int
    ) -> list[ControllerEffect]:
        heartbeat = event.heartbeat
        node = state.nodes.get(heartbeat.node)
        if (
            node is None
            or node.state is NodeState.REMOVED
            or (node.boot, node.storage) != (heartbeat.boot, heartbeat.storage)
        ):
            return [self._refuse(heartbeat, "register"), *self._decide(now_ns)]
        self._liveness.meet(node, now_ns)
        changed = self._liveness.hear(heartbeat, now_ns)
        if changed is None:
            return [self._refuse(heartbeat, "late"), *self._decide(now_ns)]
        self._dirty |= changed
        self._dirty |= {key for key, wait in self._waits.items() if wait.node == node.id}
        effects = self._decide(now_ns)
        return [*effects, self._respond(event, node.deposed_at, now_ns)]

    def _respond(self, event: HeartbeatReceived, deposed_at: int, now_ns: int) -> Answer:
        heartbeat = event.heartbeat
        if self._is_behind(heartbeat, deposed_at) or self._is_losing(heartbeat.node):
            return self._refuse(heartbeat, "behind")
        if not self._holds_raft_lease(now_ns):
            return self._refuse(heartbeat, "no_raft_lease")
        self._liveness.answer(heartbeat.node, now_ns)
        self.counts["leases"] += 1
        answer = HeartbeatAnswer(
            boot=heartbeat.boot,
            sequence=heartbeat.sequence,
            lease_ms=self._timing.lease_ms,
            send_full=self._liveness.wants_full(heartbeat.node),
        )
        return Answer(heartbeat.node, answer)

    def _refuse(self, heartbeat: Heartbeat, reason: Reason) -> Answer:
        self.counts[f"refused {reason}"] += 1
        refusal = HeartbeatRefusal(
            boot=heartbeat.boot,
            sequence=heartbeat.sequence,
            reason=reason,
            send_full=reason == "late"  # what it reported is not taken in
            or (reason == "behind" and self._liveness.wants_full(heartbeat.node)),
        )
        return Answer(heartbeat.node, refusal)

    def _is_behind(self, heartbeat: Heartbeat, deposed_at: int) -> bool:
        return heartbeat.applied_index < deposed_at

    def _is_losing(self, node: NodeId) -> bool:
        return any(node in under_way.losing for under_way in self._under_way.values())

    def _holds_raft_lease(self, now_ns: int) -> bool:
        return now_ns < self._raft_lease_until_ns

    # What was applied.

    def _take_in(self, state: ClusterState, event: CommandApplied, now_ns: int) -> None:
        command, result = event.command, event.result
        if event.proposal is not None:
            self._settle(event.proposal)
        results = result.results if isinstance(result, Each) else (result,)
        for one in results:
            if isinstance(one, Done):
                self._dirty.update(one.partitions)
        if isinstance(command, RegisterNode) and command.node in state.nodes:
            self._liveness.meet(state.nodes[command.node], now_ns)
        self._plan_soon(now_ns)
        if isinstance(command, RegisterNode | Drain | AlterStream):
            self._plan_ns = now_ns

    def _plan_soon(self, now_ns: int) -> None:
        """Something has changed: look at what is to be moved in an interval at the latest."""
        self._plan_ns = min(self._plan_ns, now_ns + self._timing.plan_interval_ms * NS_PER_MS)

    def _settle(self, proposal: int) -> None:
        under_way = self._under_way.pop(proposal, None)
        if under_way is not None:
            self._dirty |= under_way.partitions

    def _put_off(self, proposal: int, now_ns: int) -> None:
        """Decide again a little later: what refused it would refuse it again at once.

        A group whose leadership is being handed over takes nothing until that is settled.
        """
        under_way = self._under_way.pop(proposal, None)
        if under_way is not None:
            again_ns = now_ns + self._timing.heartbeat_interval_ms * NS_PER_MS // 4
            self._waits |= dict.fromkeys(under_way.partitions, Wait(again_ns))

    # Decisions.

    def _decide(self, now_ns: int) -> list[ControllerEffect]:
        assert self._state is not None
        if self._turn(now_ns):
            self._all_dirty = True
            self._calm_since_ns = now_ns
        if self._all_dirty or self._dirty:
            self._plan_soon(now_ns)
        if self._all_dirty:
            self._all_dirty = False
            self._dirty = {key for key, _, _ in self._state.partitions()}
        due = {key for key, wait in self._waits.items() if wait.until_ns <= now_ns}
        effects: list[ControllerEffect] = []
        if self._dirty or due:
            effects += self._look_at(sorted(self._dirty | due), now_ns)
            self._dirty = set()
        if now_ns >= self._plan_ns:
            effects += self._plan(self._state, now_ns)
        return effects

    def _turn(self, now_ns: int) -> bool:
        """Return whether the standing of a node is another one from now on."""
        is_sure = self._holds_raft_lease(now_ns)
        if not is_sure:
            interval_ns = self._timing.heartbeat_interval_ms * NS_PER_MS
            self._not_dead_before_ns = now_ns + interval_ns // 4
        return bool(self._liveness.turn(now_ns, may_declare_dead=is_sure))

    def _look_at(self, keys: Iterable[PartitionKey], now_ns: int) -> list[ControllerEffect]:
        elections: list[Election] = []
        changes: list[IsrChange] = []
        locked = self._locked()
        for key in keys:
            self._waits.pop(key, None)
            if key in locked:
                continue  # it is looked at again when that is settled
            verdict = self._elections.decide(key, now_ns)
            if isinstance(verdict, Election):
                elections.append(verdict)
            elif isinstance(verdict, IsrChange):
                changes.append(verdict)
            elif isinstance(verdict, Wait):
                self._waits[key] = verdict
        return [*self._elect(elections), *self._change_isr(changes)]

    def _elect(self, elections: list[Election]) -> list[ControllerEffect]:
        for election in elections:
            kind = "depositions" if election.leader is None else "elections"
            self.counts[kind if election.unclean == "no" else "unclean elections"] += 1
        return [
            self._propose(ElectLeaders(elections=tuple(part)), part) for part in _parts(elections)
        ]

    def _change_isr(self, changes: list[IsrChange]) -> list[ControllerEffect]:
        self.counts["shrinks"] += len(changes)
        return [self._propose(ChangeIsr(changes=part), part) for part in _parts(changes)]

    def _force(self, key: PartitionKey, now_ns: int) -> list[ControllerEffect]:
        election = None if key in self._locked() else self._elections.force(key, now_ns)
        return [] if election is None else self._elect([election])

    def _plan(self, state: ClusterState, now_ns: int) -> list[ControllerEffect]:
        locked = self._locked()
        live = self._liveness.live()
        plan = plan_moves(state, live, self._elections, self._timing.moves_max)
        steps = [step for step in plan.steps if step.key not in locked]
        effects: list[ControllerEffect] = [
            self._propose(step.command, (), keys={step.key}) for step in steps
        ]
        self.counts["moves"] += len(steps)
        locked |= {step.key for step in steps}
        handovers = [one for one in plan.handovers if _key(one) not in locked]
        if not handovers and not self._under_way and self._may_rebalance(now_ns):
            handovers = plan_transfers(state, live, self._elections, self._timing.transfers_max)
            self._rebalancing = self._rebalancing and bool(handovers)
        effects += self._elect(handovers[: self._timing.transfers_max])
        self._plan_ns = self._next_plan_ns(now_ns, idle=not (plan.moving or self._under_way))
        return effects

    def _next_plan_ns(self, now_ns: int, *, idle: bool) -> int:
        """Return when to look for moves again, if nothing changes until then."""
        interval_ns = self._timing.plan_interval_ms * NS_PER_MS
        if not idle:
            return now_ns + interval_ns
        calm_ns = self._calm_since_ns + self._timing.rebalance_after_ms * NS_PER_MS
        later_ns = now_ns + _IDLE_INTERVALS * interval_ns
        return min(later_ns, calm_ns) if calm_ns > now_ns else later_ns

    def _may_rebalance(self, now_ns: int) -> bool:
        calm_ns = now_ns - self._calm_since_ns
        return self._rebalancing or calm_ns >= self._timing.rebalance_after_ms * NS_PER_MS

    def _propose(
        self,
        command: Command,
        parts: Iterable[Election | IsrChange],
        keys: Iterable[PartitionKey] = (),
    ) -> Propose:
        assert self._state is not None
        self._proposals += 1
        losing = set()
        partitions = {*keys}
        for part in parts:
            partitions.add(_key(part))
            found = self._state.partition(_key(part))
            if isinstance(part, Election) and found is not None and found[1].leader is not None:
                losing.add(found[1].leader)
        self._under_way[self._proposals] = _UnderWay(frozenset(partitions), frozenset(losing))
        return Propose(self._proposals, command)

    def _locked(self) -> set[PartitionKey]:
        return {key for one in self._under_way.values() for key in one.partitions}


def _key(part: Election | IsrChange) -> PartitionKey:
    return PartitionKey(part.basis.stream, part.basis.partition)


def _parts(changes: list[Change]) -> list[tuple[Change, ...]]:
    return [
        tuple(changes[start : start + CHANGES_PER_COMMAND_MAX])
        for start in range(0, len(changes), CHANGES_PER_COMMAND_MAX)
    ]
