"""A node, as its replicas need it."""

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from penstock.base.clock import Clock
from penstock.logd.cluster.replication import Replication
from penstock.logd.core.cluster.records import PartitionKey as Place
from penstock.logd.core.node import NodeId
from penstock.logd.core.replication.effects import ProposeIsr
from penstock.logd.core.replication.session import PartitionKey
from penstock.logd.core.replication.settings import ReplicationSettings

if TYPE_CHECKING:
    from penstock.logd.cluster.hosting import HostedReplica


class Host(Protocol):
    """The node, as its replicas need it."""

    @property
    def node(self) -> NodeId:
        """Its name."""

    @property
    def clock(self) -> Clock:
        """Its monotonic time goes on while the machine sleeps."""

    @property
    def settings(self) -> ReplicationSettings:
        """Of the cluster."""

    @property
    def replication(self) -> Replication:
        """The way to other replicas."""

    @property
    def resignations(self) -> dict[PartitionKey, int]:
        """Of each partition the last epoch whose leadership this process gave back."""

    def lease_until_ns(self) -> int:
        """Until when the node may lead; of the past: it may not."""

    def stirred(self, replica: "HostedReplica") -> None:
        """What is reported of it may be something else now."""

    def on_lead(self, replica: "HostedReplica") -> None:
        """It takes messages from now on, or takes them again: bring them."""

    def on_stop(self, replica: "HostedReplica") -> None:
        """It takes no more."""

    def propose_isr(self, replica: "HostedReplica", proposal: ProposeIsr) -> None:
        """Ask the controller; `IsrAnswered` is due."""

    def look(self) -> None:
        """What heartbeats tell has changed in a way that cannot wait."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something beside, until the node is closed."""


@dataclass(frozen=True, slots=True)
class Identified:
    """Which partition a replica is of."""

    place: Place
    key: PartitionKey
