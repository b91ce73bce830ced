"""The tables that commands change. Only the rules of this package write to them."""

from collections.abc import Iterator

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.logd.errors import RefusedError
from penstock.logd.metadata.access import AccessTable
from penstock.logd.metadata.commands import Basis
from penstock.logd.metadata.records import (
    Group,
    Node,
    NodeId,
    NodeState,
    PartitionKey,
    PartitionRecord,
    StreamRecord,
)
from penstock.logd.metadata.streams import Metadata


class Done(Struct, frozen=True, kw_only=True):
    """A command was applied.

    Attributes:
        changed: Whether there was anything to change.
        incarnation: Incarnation of the stream that was created or found.
        partitions: Those whose record is another one now.
    """

    changed: bool = True
    incarnation: str = ""
    partitions: tuple[PartitionKey, ...] = ()


class Tables(Struct):
    """Everything there is, by name.

    Attributes:
        catalog: Configs of the streams, and which of them store a subject.
        access: Rules and quotas.
    """

    nodes: dict[NodeId, Node] = msgspec.field(default_factory=dict)
    streams: dict[str, StreamRecord] = msgspec.field(default_factory=dict)
    groups: dict[str, Group] = msgspec.field(default_factory=dict)
    catalog: Metadata = msgspec.field(default_factory=Metadata)
    access: AccessTable = msgspec.field(default_factory=AccessTable)

    def member(self, node: NodeId) -> Node:
        """A node that has not been removed.

        Raises:
            RefusedError: `UNKNOWN_NODE`.
        """
        found = self.nodes.get(node)
        if found is None or found.state is NodeState.REMOVED:
            raise RefusedError("UNKNOWN_NODE", f"there is no node {node[:80]!r}", node=node[:80])
        return found

    def active(self) -> list[NodeId]:
        """The nodes that take new replicas, by name."""
        return sorted(node.id for node in self.nodes.values() if node.state is NodeState.ACTIVE)

    def stream(self, name: str, incarnation: str) -> StreamRecord:
        """An open stream.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `OTHER_INCARNATION`.
        """
        found = self.streams.get(name)
        if found is None or not found.is_open:
            raise RefusedError("UNKNOWN_STREAM", f"there is no stream {name!r:.80}")
        if found.incarnation != incarnation:
            raise RefusedError(
                "OTHER_INCARNATION",
                f"stream {name!r} is {found.incarnation}, not {incarnation[:80]}: it was deleted"
                " and created again",
                stream=name,
            )
        return found

    def based_on(self, basis: Basis) -> tuple[StreamRecord, PartitionRecord]:
        """The partition that a proposal is about, if it is as the proposal takes it to be.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `OTHER_INCARNATION`, `UNKNOWN_PARTITION`,
                `STALE_EPOCH`, `STALE_VERSION`.
        """
        stream = self.stream(basis.stream, basis.incarnation)
        where = f"partition {basis.partition} of {basis.stream}"
        if not 0 <= basis.partition < len(stream.partitions):
            raise RefusedError("UNKNOWN_PARTITION", f"there is no {where}")
        partition = stream.partitions[basis.partition]
        if partition.leader_epoch != basis.leader_epoch:
            raise RefusedError(
                "STALE_EPOCH",
                f"{where} is in epoch {partition.leader_epoch}, not {basis.leader_epoch}",
                leader_epoch=partition.leader_epoch,
            )
        if partition.version != basis.version:
            raise RefusedError(
                "STALE_VERSION",
                f"{where} is at version {partition.version}, not {basis.version}",
                version=partition.version,
            )
        return stream, partition

    def walk(self) -> Iterator[tuple[PartitionKey, StreamRecord, PartitionRecord]]:
        """Every partition of the open streams, in the order of the streams' making."""
        for name, stream in self.streams.items():
            if stream.is_open:
                for number, partition in enumerate(stream.partitions):
                    yield PartitionKey(name, number), stream, partition

    def put(self, key: PartitionKey, partition: PartitionRecord) -> None:
        """Put a partition's new record in the place of the one there is."""
        stream = self.streams[key.stream]
        before = stream.partitions
        now = (*before[: key.partition], partition, *before[key.partition + 1 :])
        self.streams[key.stream] = replace(stream, partitions=now)

    def depose(self, index: int, partition: PartitionRecord) -> None:
        """Note that a partition's leader has lost it by the command at `index`."""
        if partition.leader is not None:
            leader = self.nodes[partition.leader]
            if leader.deposed_at != index:  # a command may take thousands from it
                self.nodes[leader.id] = replace(leader, deposed_at=index)


def basis_of(key: PartitionKey, stream: StreamRecord, partition: PartitionRecord) -> Basis:
    """Return the basis of a proposal that is made now."""
    return Basis(
        stream=key.stream,
        partition=key.partition,
        incarnation=stream.incarnation,
        leader_epoch=partition.leader_epoch,
        version=partition.version,
    )
