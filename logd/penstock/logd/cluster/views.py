"""What the cluster's state says of a partition, as its replicas take it."""

from penstock.logd.core.cluster.commands import (
    ChangeIsr,
    Command,
    ElectLeaders,
    RegisterNode,
    RemoveNode,
)
from penstock.logd.core.cluster.records import Partition, StreamRecord
from penstock.logd.core.cluster.state import Each, Result
from penstock.logd.core.cluster.tables import Done
from penstock.logd.core.node import NodeId
from penstock.logd.core.replication.view import View


def view_of(stream: StreamRecord, partition: Partition) -> View:
    """The view of one partition."""
    return View(
        incarnation=stream.incarnation,
        version=partition.version,
        leader_epoch=partition.leader_epoch,
        leader=None if partition.leader is None else NodeId(partition.leader),
        isr=frozenset(map(NodeId, partition.isr)),
        replicas=tuple(map(NodeId, partition.replicas)),
        observers=frozenset(map(NodeId, partition.observers)),
        min_isr=stream.min_isr,
        read_only=stream.options.read_only,
        unclean_epoch=partition.unclean_epoch,
        joined={NodeId(one.node): one.version for one in partition.joined},
    )


def streams_of(command: Command, result: Result) -> set[str]:
    """Names of the streams whose records a command may have changed."""
    match command:
        case ChangeIsr():
            return {change.basis.stream for change in command.changes}
        case ElectLeaders():
            return {election.basis.stream for election in command.elections}
        case RegisterNode() | RemoveNode():
            pass
        case _ if hasattr(command, "stream"):
            return {command.stream}
        case _ if hasattr(command, "config"):
            return {command.config.name}
        case _ if hasattr(command, "basis"):
            return {command.basis.stream}
        case _:
            pass
    parts = result.results if isinstance(result, Each) else (result,)
    return {key.stream for part in parts if isinstance(part, Done) for key in part.partitions}
