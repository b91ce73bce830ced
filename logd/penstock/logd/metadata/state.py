"""The state of a cluster: what every node gets by applying the same commands in the same order.

`apply` depends on nothing but the state, the command and its index. A command that does not fit the
state is refused and changes nothing; that is a result like any other and the same on every node.

A snapshot is JSON with sorted parts, the same bytes for the same state:

    {"version": 1, "index": 17, "nodes": [...], "streams": [...], "groups": [...], "access": {...}}
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from msgspec import Struct

from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.metadata.access import (
    NO_ACCESS,
    AccessCommand,
    AccessRecord,
    AccessTable,
    DeleteAcl,
    DeleteQuota,
    PutAcl,
    PutQuota,
    apply_access,
    record_of,
    table_of,
)
from penstock.logd.metadata.codec import LaterVersionError, read_as, read_document, write_document
from penstock.logd.metadata.commands import (
    AdoptStream,
    AlterStream,
    ChangeIsr,
    ChangeObservers,
    ChangeReplicas,
    Command,
    CreateStream,
    DataGone,
    DeleteStream,
    Drain,
    ElectLeaders,
    PurgePartition,
    PutGroup,
    RegisterNode,
    RemoveNode,
    SetStreamMode,
    SetTarget,
    WakeStream,
)
from penstock.logd.metadata.node_rules import drain, put_group, register_node, remove_node
from penstock.logd.metadata.records import (
    Group,
    Node,
    NodeId,
    PartitionKey,
    PartitionRecord,
    StreamRecord,
)
from penstock.logd.metadata.stream_rules import (
    adopt_stream,
    alter_stream,
    as_catalog_entry,
    change_isr,
    change_observers,
    change_replicas,
    create_stream,
    data_gone,
    delete_stream,
    elect,
    purge_partition,
    set_stream_mode,
    set_target,
    wake_stream,
)
from penstock.logd.metadata.streams import Metadata
from penstock.logd.metadata.tables import Done, Tables

SNAPSHOT_VERSION: Final = 1


class Refused(Struct, frozen=True, kw_only=True):
    """A command changed nothing.

    Attributes:
        code: A stable, machine-readable word.
    """

    code: str
    message: str


class Each(Struct, frozen=True, kw_only=True):
    """Results of the parts of a command, in their order."""

    results: tuple[Done | Refused, ...]


Result: TypeAlias = Done | Refused | Each


def _change_access(tables: Tables, index: int, command: AccessCommand) -> Done:
    """Change rules or quotas."""
    return Done(changed=apply_access(tables.access, index, command))


_Rule = Callable[[Tables, int, Any], Done]
_RULES: Final[dict[type, _Rule]] = {
    RegisterNode: register_node,
    Drain: drain,
    RemoveNode: remove_node,
    CreateStream: create_stream,
    AdoptStream: adopt_stream,
    AlterStream: alter_stream,
    SetStreamMode: set_stream_mode,
    WakeStream: wake_stream,
    DeleteStream: delete_stream,
    DataGone: data_gone,
    SetTarget: set_target,
    ChangeReplicas: change_replicas,
    ChangeObservers: change_observers,
    PurgePartition: purge_partition,
    PutGroup: put_group,
    PutAcl: _change_access,
    DeleteAcl: _change_access,
    PutQuota: _change_access,
    DeleteQuota: _change_access,
}


class ClusterState:
    """One node's copy of the state.

    Attributes:
        index: Index of the last command that was applied.
    """

    def __init__(self) -> None:
        self.index = 0
        self._tables = Tables()

    @property
    def nodes(self) -> Mapping[NodeId, Node]:
        """The nodes, removed ones too."""
        return self._tables.nodes

    @property
    def streams(self) -> Mapping[str, StreamRecord]:
        """The streams, those being deleted too."""
        return self._tables.streams

    @property
    def groups(self) -> Mapping[str, Group]:
        """The consumer groups that have members."""
        return self._tables.groups

    @property
    def access(self) -> AccessTable:
        """Rules and quotas."""
        return self._tables.access

    def active(self) -> list[NodeId]:
        """The nodes that take new replicas, by name."""
        return self._tables.active()

    def partitions(self) -> Iterator[tuple[PartitionKey, StreamRecord, PartitionRecord]]:
        """Every partition of the open streams."""
        return self._tables.walk()

    def partition(self, key: PartitionKey) -> tuple[StreamRecord, PartitionRecord] | None:
        """One partition of an open stream."""
        stream = self._tables.streams.get(key.stream)
        if stream is None or not stream.is_open or key.partition >= len(stream.partitions):
            return None
        return stream, stream.partitions[key.partition]

    def match(self, subject: str) -> tuple[str, ...]:
        """Names of the open streams that store what is published on a subject."""
        return self._tables.catalog.match(subject)

    def knows(self, stream: str) -> bool:
        return self._tables.catalog.knows(stream)

    def apply(self, index: int, command: Command) -> Result:
        """Apply the next command.

        Args:
            index: Its place in the log of the metadata group, above that of every earlier one.
            command: The command.
        """
        assert index > self.index, (index, self.index)
        self.index = index
        if isinstance(command, ChangeIsr):
            return self._each(index, change_isr, command.changes)
        if isinstance(command, ElectLeaders):
            return self._each(index, elect, command.elections)
        return self._one(index, _RULES[type(command)], command)

    def _each(self, index: int, rule: _Rule, parts: Iterable[Any]) -> Each:
        return Each(results=tuple(self._one(index, rule, part) for part in parts))

    def _one(self, index: int, rule: _Rule, part: Any) -> Done | Refused:
        try:
            return rule(self._tables, index, part)
        except RefusedError as error:
            return Refused(code=error.code, message=str(error))

    def snapshot(self) -> bytes:
        """The whole state."""
        return write_document({"version": SNAPSHOT_VERSION, "index": self.index, **self._parts()})

    def digest(self) -> str:
        """A hash of everything but the index; equal on nodes that are at the same index."""
        return hashlib.sha256(write_document(self._parts())).hexdigest()

    def _parts(self) -> dict[str, Any]:
        tables = self._tables
        return {
            "nodes": [node for _, node in sorted(tables.nodes.items())],
            "streams": [stream for _, stream in sorted(tables.streams.items())],
            "groups": [group for _, group in sorted(tables.groups.items())],
            "access": record_of(tables.access),
        }

    @classmethod
    def restore(cls, data: bytes) -> "ClusterState":
        """The state that `snapshot` wrote down.

        Raises:
            CorruptError: The bytes are no such state.
            LaterVersionError: A later version of logd wrote it.
        """
        where = "snapshot of the cluster"
        document = read_document(data, where=where)
        version = document.pop("version", None)
        if type(version) is not int or version < 1:
            raise CorruptError(f"version {version!r:.80}", where=where)
        if version > SNAPSHOT_VERSION:
            raise LaterVersionError(f"version {version}", where=where)
        read = read_as(_Snapshot, document, where=where)
        state = cls()
        state.index = read.index
        state._tables = Tables(
            nodes={node.id: node for node in read.nodes},
            streams={stream.config.name: stream for stream in read.streams},
            groups={group.name: group for group in read.groups},
            catalog=_catalog(read.streams),
            access=table_of(read.access),
        )
        return state


class _Snapshot(Struct, frozen=True, kw_only=True):
    index: int
    nodes: tuple[Node, ...]
    streams: tuple[StreamRecord, ...]
    groups: tuple[Group, ...]
    access: AccessRecord = NO_ACCESS


def _catalog(streams: Iterable[StreamRecord]) -> Metadata:
    return Metadata.of(map(as_catalog_entry, streams))
