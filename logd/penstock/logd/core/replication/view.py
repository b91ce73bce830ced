"""What the controller has decided about one partition."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.logd.core.node import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One partition as the replicated metadata has it. It changes only as a whole.

    Attributes:
        incarnation: Of the stream; one that was made again under its old name has another.
        version: Rises with every change of anything here.
        leader_epoch: Rises with every election.
        leader: None: nobody may lead.
        isr: The in-sync replicas; the leader is one of them.
        replicas: In the order of preference; the ISR is taken from them.
        observers: Replicas that stay outside the ISR by choice.
        min_isr: In-sync replicas without which nothing is committed.
        joined: The version with which a node was added to the holders, empty; 0 for all others.
        unclean_epoch: The last epoch whose leader was not taken from the ISR; 0: there was none.
    """

    incarnation: str
    version: int
    leader_epoch: int
    leader: NodeId | None
    isr: frozenset[NodeId]
    replicas: tuple[NodeId, ...]
    observers: frozenset[NodeId] = frozenset()
    min_isr: int = 1
    read_only: bool = False
    unclean_epoch: int = 0
    joined: Mapping[NodeId, int] = field(default_factory=dict)

    def holds(self, node: NodeId) -> bool:
        """Whether a node has a replica."""
        return node in self.replicas or node in self.observers

    def holds_since(self, node: NodeId) -> int:
        """The version with which a node that has a replica got it."""
        return self.joined.get(node, 0)
