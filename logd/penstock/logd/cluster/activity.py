"""The activity stream of a cluster, written on any node, and what is recorded of the cluster.

An event goes to the node that leads the stream. What the controller decides is recorded by the
node that is it and by the node that leads what it is about, under one id, so that either may be
lost.
"""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from penstock.logd.activity import Event, Record, store_events
from penstock.logd.cluster.controller_client import ControllerClient, make_internal
from penstock.logd.cluster.node import ClusterNode
from penstock.logd.cluster.replica_manager import ReplicaManager
from penstock.logd.errors import UnavailableError
from penstock.logd.metadata.codec import read_as, read_document, write_document
from penstock.logd.metadata.commands import Basis, ChangeIsr, Command, ElectLeaders, RegisterNode
from penstock.logd.metadata.records import PartitionKey
from penstock.logd.metadata.state import Each, Result
from penstock.logd.metadata.streams import ACTIVITY, StreamConfig
from penstock.logd.metadata.tables import Done

_API: Final = "activity"
"""The request of one node to another to store events."""

_PLACE: Final = PartitionKey(ACTIVITY, 0)
_MAKE_S: Final = 10.0
_ASK_S: Final = 10.0


class ClusterActivity:
    """The activity stream of a cluster; see `penstock.logd.activity.Sink`.

    Args:
        replicas: The node's replicas.
        decisions: The client of the controller.
        config: The stream's configuration, created with the first event.
    """

    def __init__(
        self, replicas: ReplicaManager, decisions: ControllerClient, config: StreamConfig
    ) -> None:
        self._replicas = replicas
        self._decisions = decisions
        self._config = config
        replicas.cluster.handlers[_API] = self._answer

    async def store(self, events: Sequence[Event]) -> None:
        cluster = self._replicas.cluster
        if not self._replicas.ready:
            raise UnavailableError("this node does not know yet what the cluster has")
        if ACTIVITY not in cluster.group.state.streams:
            await make_internal(cluster, self._decisions, self._config, timeout_s=_MAKE_S)
        found = cluster.group.state.partition(_PLACE)
        leader = None if found is None else found[1].leader
        if leader is None:
            raise UnavailableError(f"nobody leads {ACTIVITY} now")
        if leader == cluster.name:
            await self._store(events)
        else:
            body = write_document({"events": [_sent(event) for event in events]})
            await cluster.mesh.ask(leader, _API, body, timeout_s=_ASK_S)

    async def _answer(self, _node: str, body: bytes) -> bytes:
        document = read_document(body, where=_API)
        found = read_as(tuple[_Sent, ...], document.get("events"), where=_API)
        await self._store([Event(one.id, one.kind, one.value.encode()) for one in found])
        return b"{}"

    async def _store(self, events: Sequence[Event]) -> None:
        replica = self._replicas.at(_PLACE)
        if replica is None or not replica.leading:
            raise UnavailableError(f"{ACTIVITY} is not led here")
        await store_events(replica.partition, events)


class Watcher:
    """Records what becomes of nodes and partitions, where that is this node's to do.

    Args:
        node: This one.
        record: Takes it down.
    """

    def __init__(self, node: ClusterNode, record: Record) -> None:
        self._node = node
        self._record = record

    def on_applied(self, command: Command, result: Result) -> None:
        """A command was applied to the state; of old ones, as a node starts, nothing is said."""
        match command:
            case ElectLeaders(elections=elections) if isinstance(result, Each):
                for number, (election, one) in enumerate(
                    zip(elections, result.results, strict=True)
                ):
                    if isinstance(one, Done) and self._is_mine(election.basis, election.leader):
                        self._put(
                            "partition.leader",
                            number,
                            election.basis,
                            leader=election.leader,
                            isr=election.isr,
                            unclean=election.unclean,
                        )
            case ChangeIsr(changes=changes) if isinstance(result, Each):
                for number, (change, one) in enumerate(zip(changes, result.results, strict=True)):
                    if isinstance(one, Done) and self._is_mine(change.basis, None):
                        self._put("partition.isr", number, change.basis, isr=change.isr)
            case RegisterNode(node=node, rack=rack) if isinstance(result, Done):
                if self._node.controlling.controller.decides:
                    event_id = f"{self._node.cluster}.{self._node.group.state.index}"
                    facts = {"started": node, "rack": rack}
                    self._record("node.start", None, event_id=event_id, **facts)
            case _:
                pass

    def _is_mine(self, basis: Basis, leader: str | None) -> bool:
        controlling = self._node.controlling
        if controlling.controller.decides:
            return True
        if not controlling.leads:
            return False
        found = self._node.group.state.partition(PartitionKey(basis.stream, basis.partition))
        return self._node.name in (leader, None if found is None else found[1].leader)

    def _put(self, kind: str, number: int, basis: Basis, **facts: Any) -> None:
        index = self._node.group.state.index
        found = self._node.group.state.partition(PartitionKey(basis.stream, basis.partition))
        epoch = basis.leader_epoch if found is None else found[1].leader_epoch
        self._record(
            kind,
            None,
            event_id=f"{self._node.cluster}.{index}.{number}",
            stream=basis.stream,
            partition=basis.partition,
            leader_epoch=epoch,
            **facts,
        )


class _Sent(Struct, frozen=True, kw_only=True):
    """An event between nodes."""

    id: str
    kind: str
    value: str


def _sent(event: Event) -> _Sent:
    return _Sent(id=event.id, kind=event.kind, value=event.value.decode())
