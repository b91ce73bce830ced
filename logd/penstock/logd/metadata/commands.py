"""Commands to the cluster's state, and their form in the log of the metadata group.

    {"version": 1, "kind": "ChangeIsr", "command": {...}}

`version` rises when the meaning of what there is changes; kinds and fields are added without that.
A node that does not know the version, a kind or a field stops applying and says so: it cannot tell
what the others have done. A field that is added gets a default, so that older commands are read.
"""

from typing import Final, Literal, TypeAlias, get_args

from msgspec import Struct

from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.limits import COMMAND_BYTES_MAX
from penstock.logd.metadata.access import DeleteAcl, DeleteQuota, PutAcl, PutQuota
from penstock.logd.metadata.codec import LaterVersionError, read_as, read_document, write_document
from penstock.logd.metadata.records import (
    Addresses,
    GroupMember,
    GroupPartition,
    NodeId,
    ReplicationOptions,
)
from penstock.logd.metadata.streams import StreamConfig

COMMAND_VERSION: Final = 1


class Basis(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """State that a proposal about a partition was based on; if it has changed, it is refused."""

    stream: str
    partition: int
    incarnation: str
    leader_epoch: int
    version: int


class RegisterNode(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node has started. It gets its place, or tells its new addresses, storage and process.

    Whatever it led, it leads no longer: its process is a new one and must get a new epoch, or two
    records could have the same epoch and offset. If its storage is another, it is out of every ISR.
    """

    node: NodeId
    addresses: Addresses
    rack: str = ""
    storage: str
    boot: str
    adopting: bool = False


class Drain(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Begin to move everything off a node, or, with `undo`, end that."""

    node: NodeId
    undo: bool = False


class RemoveNode(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """End a node's membership; it is drained, and what data it may still hold is forgotten."""

    node: NodeId


class Placement(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new partition: its replicas, preferred leader first, and those that live."""

    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]


class CreateStream(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Create a stream, or find it made with the same config and options.

    Attributes:
        placements: Placement of partition 0, 1, ...
        nonce: Random hexadecimal digits; with the command's index they are the incarnation.
        creator: Principal to whose quota it counts; empty: none.
    """

    config: StreamConfig
    options: ReplicationOptions
    placements: tuple[Placement, ...]
    nonce: str
    creator: str = ""


class AdoptStream(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Take over a stream of one partition, with its data, from the time before there was a cluster.

    Attributes:
        leader_epoch: Above every epoch in its log.
        purged, purge_epoch: The same as in `Partition`.
    """

    config: StreamConfig
    options: ReplicationOptions
    incarnation: str
    node: NodeId
    leader_epoch: int
    purged: int = 0
    purge_epoch: int = 0


class AlterStream(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Change the options of a stream."""

    incarnation: str
    config: StreamConfig
    options: ReplicationOptions


class SetStreamMode(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pause or resume a stream, make it read-only or writable; None: as it is.

    Attributes:
        held: Whether a pause also unsubscribes it; a resume ends that, too.
    """

    stream: str
    incarnation: str
    paused: bool | None = None
    read_only: bool | None = None
    held: bool | None = None


class WakeStream(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message has come for a stream that was paused: it is no more, unless it is held."""

    stream: str
    incarnation: str


class DeleteStream(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Mark a stream as deleted. It is forgotten when every node has said that its data is gone."""

    stream: str
    incarnation: str


class DataGone(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node holds no data any more of partitions that were deleted or moved off it."""

    node: NodeId
    stream: str
    incarnation: str
    partitions: tuple[int, ...]


class IsrChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The replicas that are in sync from now on."""

    basis: Basis
    isr: tuple[NodeId, ...]


class ChangeIsr(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes of ISRs; each is applied or refused on its own."""

    changes: tuple[IsrChange, ...]


Unclean: TypeAlias = Literal["no", "option", "operator"]


class Election(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of a partition's leader.

    Attributes:
        leader: None deposes.
        isr: The replicas in sync from then on: the leader and others of the ISR there was.
        successor: Node for which a leader is deposed.
        unclean: Why the leader may lack acked records, by being outside the ISR or by damage: the
            stream's option, or an operator's word.
    """

    basis: Basis
    leader: NodeId | None
    isr: tuple[NodeId, ...]
    successor: NodeId | None = None
    unclean: Unclean = "no"


class ElectLeaders(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes of leaders; each is applied or refused on its own."""

    elections: tuple[Election, ...]


class SetTarget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Begin to move a partition's replicas, or, with None, give up a move."""

    basis: Basis
    target: tuple[NodeId, ...] | None


class ChangeReplicas(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Add one replica, remove one, or change their order."""

    basis: Basis
    replicas: tuple[NodeId, ...]


class ChangeObservers(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The nodes that hold a copy and never count."""

    basis: Basis
    observers: tuple[NodeId, ...]


class PurgePartition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Take what a partition's leader has below an offset from readers; all of it is committed.

    Attributes:
        leader_epoch: Epoch of that leader; the command is refused if another leads by now.
    """

    stream: str
    incarnation: str
    partition: int
    leader_epoch: int
    before: int


class NewShare(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Member that is to read a partition, and the one that may be reading it from now on."""

    partition: GroupPartition
    wanted: str
    owner: str | None


class Release(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A member has said that it no longer reads a partition it was granted in an epoch."""

    partition: GroupPartition
    member: str
    epoch: int


class PutGroup(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The members and shares of a group from now on; without members it is forgotten.

    Attributes:
        based_on: The epoch that this replaces; 0: there is no such group.
        released: Why an owner that is still a member may be replaced.
    """

    group: str
    based_on: int
    members: tuple[GroupMember, ...]
    shares: tuple[NewShare, ...]
    released: tuple[Release, ...] = ()


Command: TypeAlias = (
    RegisterNode
    | Drain
    | RemoveNode
    | CreateStream
    | AdoptStream
    | AlterStream
    | SetStreamMode
    | WakeStream
    | DeleteStream
    | DataGone
    | ChangeIsr
    | ElectLeaders
    | SetTarget
    | ChangeReplicas
    | ChangeObservers
    | PurgePartition
    | PutGroup
    | PutAcl
    | DeleteAcl
    | PutQuota
    | DeleteQuota
)

_KINDS: Final = {kind.__name__: kind for kind in get_args(Command)}


def encode_command(command: Command) -> bytes:
    """The bytes of a command.

    Raises:
        RefusedError: `COMMAND_TOO_LARGE`; `BAD_TEXT` when a text has no UTF-8 form.
    """
    kind = type(command).__name__
    assert _KINDS[kind] is type(command)
    try:
        data = write_document({"version": COMMAND_VERSION, "kind": kind, "command": command})
    except UnicodeEncodeError as error:
        raise RefusedError("BAD_TEXT", f"{kind}: {error}") from None
    if len(data) > COMMAND_BYTES_MAX:
        raise RefusedError(
            "COMMAND_TOO_LARGE",
            f"{kind} of {len(data)} bytes; the log of the cluster takes {COMMAND_BYTES_MAX}",
            bytes_max=COMMAND_BYTES_MAX,
        )
    return data


def decode_command(data: bytes) -> Command:
    """The command of some bytes.

    Raises:
        CorruptError: They are not a command.
        LaterVersionError: A later version of logd made it.
    """
    if len(data) > COMMAND_BYTES_MAX:
        raise CorruptError(f"{len(data)} bytes, at most {COMMAND_BYTES_MAX}", where="command")
    document = read_document(data, where="command")
    version = document.get("version")
    if type(version) is not int or version < 1:
        raise CorruptError(f"version {version!r:.80}", where="command")
    if version > COMMAND_VERSION:
        raise LaterVersionError(f"version {version}", where="command")
    kind = document.get("kind")
    if not isinstance(kind, str):
        raise CorruptError(f"kind {kind!r:.80}", where="command")
    if kind not in _KINDS:
        raise LaterVersionError(f"unknown kind {kind[:80]!r}", where="command")
    if more := sorted(document.keys() - {"version", "kind", "command"}):
        raise LaterVersionError(f"unknown fields {', '.join(more)}", where="command")
    command: Command = read_as(_KINDS[kind], document.get("command"), where=kind)
    return command
