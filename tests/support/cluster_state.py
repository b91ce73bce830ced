"""Builds the state of a cluster by commands, as tests want it."""

from penstock.logd.metadata.commands import (
    Basis,
    ChangeIsr,
    Command,
    CreateStream,
    Drain,
    Election,
    ElectLeaders,
    IsrChange,
    Placement,
    RegisterNode,
    Unclean,
)
from penstock.logd.metadata.records import (
    Addresses,
    NodeId,
    PartitionKey,
    PartitionRecord,
    ReplicationOptions,
    StreamRecord,
)
from penstock.logd.metadata.state import ClusterState, Each, Refused, Result
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.metadata.tables import Done, basis_of

DEFAULT_OPTIONS = ReplicationOptions(replication_factor=3)


class Cluster:
    """A state, and commands for it in short.

    Attributes:
        state: It.
    """

    def __init__(self, *nodes: NodeId, racks: dict[NodeId, str] | None = None) -> None:
        self.state = ClusterState()
        for node in nodes:
            assert self.apply(register(node, rack=(racks or {}).get(node, ""))) == Done()

    def apply(self, command: Command) -> Result:
        return self.state.apply(self.state.index + 1, command)

    def code(self, command: Command) -> str:
        """Why a command is refused; empty: it is not."""
        result = self.apply(command)
        if isinstance(result, Each):
            (result,) = result.results
        return result.code if isinstance(result, Refused) else ""

    def create(
        self,
        name: str,
        *replicas: tuple[NodeId, ...],
        options: ReplicationOptions = DEFAULT_OPTIONS,
        isr: tuple[NodeId, ...] | None = None,
    ) -> str:
        """Create a stream of as many partitions as there are tuples; its incarnation."""
        result = self.apply(create(name, *replicas, options=options, isr=isr))
        assert isinstance(result, Done), result
        return result.incarnation

    def stream(self, name: str = "s") -> StreamRecord:
        return self.state.streams[name]

    def partition(self, name: str = "s", number: int = 0) -> PartitionRecord:
        return self.stream(name).partitions[number]

    def basis(self, name: str = "s", number: int = 0) -> Basis:
        return basis_of(PartitionKey(name, number), self.stream(name), self.partition(name, number))

    def isr_change(self, *isr: NodeId, name: str = "s", number: int = 0) -> ChangeIsr:
        return ChangeIsr(changes=(IsrChange(basis=self.basis(name, number), isr=isr),))

    def election(
        self,
        leader: NodeId | None,
        *isr: NodeId,
        name: str = "s",
        number: int = 0,
        successor: NodeId | None = None,
        unclean: Unclean = "no",
    ) -> ElectLeaders:
        election = Election(
            basis=self.basis(name, number),
            leader=leader,
            isr=isr or self.partition(name, number).isr,
            successor=successor,
            unclean=unclean,
        )
        return ElectLeaders(elections=(election,))

    def drain(self, node: NodeId) -> None:
        assert self.code(Drain(node=node)) == ""


def register(
    node: NodeId, *, storage: str = "", boot: str = "boot-1", rack: str = ""
) -> RegisterNode:
    return RegisterNode(
        node=node,
        addresses=Addresses(peer=f"{node}:9293"),
        rack=rack,
        storage=storage or f"storage-{node}",
        boot=boot,
    )


def create(
    name: str,
    *replicas: tuple[NodeId, ...],
    options: ReplicationOptions = DEFAULT_OPTIONS,
    isr: tuple[NodeId, ...] | None = None,
    nonce: str = "ab",
) -> CreateStream:
    return CreateStream(
        config=StreamConfig(name=name, subject=f"{name}.>"),
        options=options,
        placements=tuple(Placement(replicas=nodes, isr=isr or nodes) for nodes in replicas),
        nonce=nonce,
    )
