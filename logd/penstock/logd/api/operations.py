"""The operations of logd: one row each, which both ends of the protocol and the reference read.

A row says what is asked and answered, who may ask, who answers, and how it is recorded. From it
follow the parsing and authorization of a request, its quota, audit and spans at the server, the
routing and repeating of a call at the client, the rights of the gRPC methods that map to it, and
`docs/reference/operations.md`. What an operation does is a handler of `penstock.logd.api.handlers`.

Clients and executors of Spark import this module: it needs nothing of a daemon's, nor pydantic.
"""

import re
from dataclasses import KW_ONLY, dataclass
from enum import Enum, StrEnum
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct
from typing_extensions import override

from penstock.logd.api import models
from penstock.logd.errors import RefusedError
from penstock.logd.limits import (
    ACL_RULES_PER_REQUEST_MAX,
    CURSORS_PER_REQUEST_MAX,
    GROUP_PARTITIONS_MAX,
    GROUP_STREAMS_MAX,
    ID_CHARACTERS_MAX,
    IDS_PER_REQUEST_MAX,
    PRINCIPAL_GROUPS_MAX,
    REPLICAS_MAX,
    VERIFY_BYTES_MAX,
)
from penstock.logd.metadata.cursors import CursorKey
from penstock.logd.security.acl import AclRule, Action
from penstock.logd.security.quotas import Quota

Document: TypeAlias = dict[str, Any]
"""A JSON object: a request or an answer's header."""

_INT64_MAX: Final = (1 << 63) - 1
_QUOTED: Final = re.compile(r"field `(.+)`")


class Responder(StrEnum):
    """The node that answers an operation; the value is a part of a sentence."""

    ANY = "any node"
    NODE = "the node that is asked, about itself"
    CONTROLLER = "any node; it asks the controller"
    LEADER = "the leader of the partition"
    COPY = "the leader of the partition; with `replica` any node that has a copy"
    CURSORS = "the leader of `__cursors`"
    CONNECTION = "the connection itself"


class On(Enum):
    """The resource that a right is on; the value is a part of a sentence."""

    NOTHING = "everybody"
    CLUSTER = "on everything"
    CLUSTER_FOR_OTHERS = "on everything, to ask about another principal"
    STREAM = "on the stream"
    SUBJECT = "on the stream; with `subject`, on that part of it"
    NEW_STREAM = "on what the stream is to store"
    NAMED_STREAM = "on the stream, if one is named"
    CURSORS = "on the stream of each cursor"
    GROUP = "on the streams that the group reads"
    JOINED_GROUP = "on the named and held streams, and on those that the group reads"
    VISIBLE_STREAM = "callers with any right on the stream, if one is named"
    VISIBLE_GROUP = "callers with any right on a stream of the group, if one is named"


class Shows(Enum):
    """The list of an answer that is reduced to what its caller may see."""

    ALL = ""
    STREAMS = "streams"
    NAMES = "names of streams"
    CURSORS = "cursors"
    GROUPS = "groups"
    NODES = "nodes"
    GAPS = "gaps"


class Right(Struct, frozen=True):
    """A right that a caller needs: an action on a resource; without action, `on` alone says it."""

    action: Action | None
    on: On

    @override
    def __str__(self) -> str:
        return self.on.value if self.action is None else f"`{self.action}` {self.on.value}"


class Request(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="api",
):
    """Base of all requests; the tag of a class is the operation's name.

    Attributes:
        id: Number chosen by the client; the answer carries it.
    """

    id: int = 0

    def document(self) -> Document:
        """The request as it is sent, without what has its default."""
        found: Document = msgspec.to_builtins(self)
        return found


class _Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a request."""


@dataclass(frozen=True, eq=False)
class Operation:
    """A row of the table.

    Attributes:
        request: The model of requests.
        answer: The model of answers' headers, one of `penstock.logd.api.models`; None: no answer.
        meaning: One sentence, for the reference.
        right: The right that the caller needs.
        responder: The node that answers.
        audit: The kind of the event that records it; empty: none does.
        shows: The parts of an answer that callers without the right do not get.
        wait_s: Seconds that the answer may take on purpose.
        repeatable: Whether a client may send it again when it does not know whether it was done.
        uploads: Whether bytes may follow the request.
        downloads: Whether frames follow the answer.
    """

    request: type[Request]
    answer: type[Any] | None
    meaning: str
    _: KW_ONLY
    right: Right
    responder: Responder
    audit: str = ""
    shows: Shows = Shows.ALL
    wait_s: float = 0.0
    repeatable: bool = True
    uploads: bool = False
    downloads: bool = False

    @property
    def name(self) -> str:
        """The value of `api` in its requests."""
        name = self.request.__struct_config__.tag
        assert isinstance(name, str), self.request
        return name

    def read(self, document: Document) -> Request:
        """A request from its document.

        Raises:
            RefusedError: `BAD_REQUEST` with the `key` that is wrong first.
        """
        try:
            return msgspec.convert(document, self.request)
        except (msgspec.ValidationError, RecursionError) as error:
            text, _, path = str(error).partition(" - at `$.")
            named = _QUOTED.search(text) if " field `" in text else None
            key = ".".join(part for part in (path.rstrip("`"), named and named[1]) if part)
            key = key.replace("[...]", "").replace("`", "") or "request"
            raise RefusedError("BAD_REQUEST", f"{key}: {text}", key=key) from None


# Requests.

_Partition = Annotated[int, Meta(ge=0)]
_Offset = Annotated[int, Meta(ge=0, le=_INT64_MAX)]


class OfPartition(Request, frozen=True, kw_only=True):
    """A request that is about one partition."""

    stream: str
    partition: int = 0


class _OfStream(Request, frozen=True, kw_only=True):
    stream: str


class _OfNode(Request, frozen=True, kw_only=True):
    node: str


class _OfCursor(Request, frozen=True, kw_only=True):
    consumer: str
    stream: str
    partition: _Partition = 0

    def key(self) -> CursorKey:
        return CursorKey(self.consumer, self.stream, self.partition)


class Fetch(OfPartition, frozen=True, kw_only=True, tag="fetch"):
    """A read of frames from an offset on."""

    offset: Annotated[int, Meta(ge=0)]
    bytes_max: Annotated[int, Meta(ge=1, description="bytes of the payload at most")] = 4 << 20
    bytes_min: Annotated[int, Meta(ge=0, description="less is waited for")] = 1
    wait_ms_max: Annotated[int, Meta(ge=0, description="milliseconds of that wait")] = 0
    subject: Annotated[str | None, Meta(description="a filter with `*` and `>`")] = None
    incarnation: Annotated[str | None, Meta(description="of the stream that is meant")] = None
    log_epoch: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="of the answer before")
    ] = None
    replica: Annotated[bool, Meta(description="any copy will do, not only the leader's")] = False


End: TypeAlias = Literal["earliest", "latest"]


class Offsets(OfPartition, frozen=True, kw_only=True, tag="offsets"):
    """A question for an offset."""

    at: Annotated[End | int, Meta(description="an int is a Unix time in ns")]


class Streams(Request, frozen=True, kw_only=True, tag="streams"):
    """A question for one stream, or all."""

    stream: str | None = None
    internal: Annotated[bool, Meta(description="logd's own, too")] = False


class Match(Request, frozen=True, kw_only=True, tag="match"):
    """A question for the streams that store a subject."""

    subject: str


class CreateStream(Request, frozen=True, kw_only=True, tag="create_stream"):
    """The creation of a stream."""

    config: Annotated[
        Document, Meta(description="name, subject, and any of the options of a stream")
    ]


class DeleteStream(_OfStream, frozen=True, kw_only=True, tag="delete_stream"):
    """The end of a stream and its data."""


class OpenStream(_OfStream, frozen=True, kw_only=True, tag="open_stream"):
    """Another try to open a stream."""


class AlterStream(_OfStream, frozen=True, kw_only=True, tag="alter_stream"):
    """A change of options."""

    options: Annotated[Document, Meta(description="those to change")]


class SetMode(_OfStream, frozen=True, kw_only=True, tag="set_mode"):
    """A change of a stream's mode; what is null stays as it is."""

    paused: bool | None = None
    held: Annotated[bool | None, Meta(description="no message ends the pause")] = None
    read_only: bool | None = None


class Purge(OfPartition, frozen=True, kw_only=True, tag="purge"):
    """The end of the records below an offset."""

    before: _Offset


class Restore(OfPartition, frozen=True, kw_only=True, tag="restore"):
    """A frame of a backup."""

    upload: Annotated[int, Meta(description="bytes of the frame that follows")]


class Verify(OfPartition, frozen=True, kw_only=True, tag="verify"):
    """A question for what a node holds of a range of offsets."""

    offset: _Offset
    upto: Annotated[_Offset, Meta(description="exclusive")]
    bytes_max: Annotated[
        int, Meta(ge=1, le=VERIFY_BYTES_MAX, description="of frames read, about")
    ] = VERIFY_BYTES_MAX
    records: Annotated[bool, Meta(description="a checksum of each record follows, too")] = False
    incarnation: Annotated[str | None, Meta(description="of the stream that is meant")] = None


class FindIds(OfPartition, frozen=True, kw_only=True, tag="find_ids"):
    """A question for the ranges of offsets that may hold records with an id."""

    ids: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=ID_CHARACTERS_MAX)]],
        Meta(
            min_length=1,
            max_length=IDS_PER_REQUEST_MAX,
            description="values of `trace_id` or `record_id`",
        ),
    ]
    offset: _Offset
    upto: Annotated[_Offset, Meta(description="exclusive")]
    incarnation: Annotated[str | None, Meta(description="of the stream that is meant")] = None


class SetCursorItem(_Part, frozen=True, kw_only=True):
    """A cursor to be committed."""

    consumer: str
    stream: str
    partition: _Partition = 0
    offset: _Offset
    incarnation: str | None = None
    epoch: _Offset = 0

    def key(self) -> CursorKey:
        return CursorKey(self.consumer, self.stream, self.partition)


class SetCursor(Request, frozen=True, kw_only=True, tag="set_cursor"):
    """Cursors to be committed, all of them or none."""

    cursors: Annotated[list[SetCursorItem], Meta(min_length=1, max_length=CURSORS_PER_REQUEST_MAX)]
    rewind: Annotated[bool, Meta(description="they may go back")] = False
    member: Annotated[str | None, Meta(description="of the group that is the consumer")] = None


class GetCursor(_OfCursor, frozen=True, kw_only=True, tag="get_cursor"):
    """A question for a cursor."""


class ListCursors(Request, frozen=True, kw_only=True, tag="list_cursors"):
    """A question for a page of cursors."""

    consumer: str | None = None
    stream: str | None = None
    after: Annotated[
        list[str | int] | None, Meta(description="consumer, stream, partition of the last one")
    ] = None


class DeleteCursor(_OfCursor, frozen=True, kw_only=True, tag="delete_cursor"):
    """The end of a cursor."""


class Cluster(Request, frozen=True, kw_only=True, tag="cluster"):
    """A question for the nodes."""


class Drain(_OfNode, frozen=True, kw_only=True, tag="drain"):
    """The begin of a drain, or its end."""

    undo: bool = False


class RemoveNode(_OfNode, frozen=True, kw_only=True, tag="remove_node"):
    """The end of a node's membership."""


_Nodes = Annotated[list[str], Meta(max_length=REPLICAS_MAX)]


class Move(OfPartition, frozen=True, kw_only=True, tag="move"):
    """A move of a partition."""

    replicas: Annotated[
        Annotated[list[str], Meta(min_length=1, max_length=REPLICAS_MAX)] | None,
        Meta(description="nodes, the preferred leader first; null gives up a move"),
    ]


class Observe(OfPartition, frozen=True, kw_only=True, tag="observe"):
    """A choice of observers."""

    observers: Annotated[_Nodes, Meta(description="nodes, in place of those before")]


class Elect(OfPartition, frozen=True, kw_only=True, tag="elect"):
    """An election that may lose records."""

    lose_records: Annotated[bool, Meta(description="true: the caller knows")]


class Rebalance(Request, frozen=True, kw_only=True, tag="rebalance"):
    """An evening out of leaderships."""


class StepDown(Request, frozen=True, kw_only=True, tag="step_down"):
    """A change of the controller."""

    target: Annotated[str | None, Meta(description="a node; null: any")] = None


class Gaps(Request, frozen=True, kw_only=True, tag="gaps"):
    """A question for gaps."""


class HeldPartitions(_Part, frozen=True, kw_only=True):
    """Partitions of a stream that a member may be reading."""

    stream: str
    incarnation: str
    partitions: Annotated[list[_Partition], Meta(max_length=GROUP_PARTITIONS_MAX)]


class GroupBeat(Request, frozen=True, kw_only=True, tag="group_beat"):
    """A member's heartbeat."""

    group: str
    member: str
    streams: Annotated[list[str], Meta(min_length=1, max_length=GROUP_STREAMS_MAX)]
    session_ms: int
    sequence: int
    joining: bool
    epoch: int
    held: Annotated[list[HeldPartitions], Meta(max_length=GROUP_PARTITIONS_MAX)]


class GroupLeave(Request, frozen=True, kw_only=True, tag="group_leave"):
    """A member's end."""

    group: str
    member: str


class Groups(Request, frozen=True, kw_only=True, tag="groups"):
    """A question for one group, or all."""

    group: str | None = None


class ListAcls(Request, frozen=True, kw_only=True, tag="acls"):
    """A question for a page of rules."""

    after: Annotated[str | None, Meta(description="the id of a rule")] = None


class _AccessChange(Request, frozen=True, kw_only=True):
    based_on: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="the version that it is to follow")
    ] = None


class PutAcls(_AccessChange, frozen=True, kw_only=True, tag="put_acls"):
    """New rules."""

    rules: Annotated[list[AclRule], Meta(min_length=1, max_length=ACL_RULES_PER_REQUEST_MAX)]


class DeleteAcls(_AccessChange, frozen=True, kw_only=True, tag="delete_acls"):
    """Rules to be removed, all of them or none."""

    rules: Annotated[
        list[str],
        Meta(min_length=1, max_length=ACL_RULES_PER_REQUEST_MAX, description="their ids"),
    ]


class _Judgement(Request, frozen=True, kw_only=True):
    action: Action
    resource: str


class TestAcl(_Judgement, frozen=True, kw_only=True, tag="test_acl"):
    """A question whether a principal may do something."""

    __test__ = False

    principal: Annotated[str | None, Meta(description="null: the caller")] = None
    groups: Annotated[list[str], Meta(max_length=PRINCIPAL_GROUPS_MAX)] = []


class WhoCan(_Judgement, frozen=True, kw_only=True, tag="who_can"):
    """A question who may do something."""


class Quotas(Request, frozen=True, kw_only=True, tag="quotas"):
    """A question for the quotas."""


class PutQuota(_AccessChange, frozen=True, kw_only=True, tag="put_quota"):
    """A quota in place of the principal's present one."""

    quota: Quota


class DeleteQuota(_AccessChange, frozen=True, kw_only=True, tag="delete_quota"):
    """The end of a quota."""

    principal: str


class Cancel(Request, frozen=True, kw_only=True, tag="cancel"):
    """The end of a fetch's wait."""

    request: Annotated[int, Meta(description="the id of the fetch")]


class Authenticate(Request, frozen=True, kw_only=True, tag="authenticate"):
    """Request to authenticate the connection."""

    token: Annotated[str, Meta(description="a JSON Web Token or an API key")]


# The table.

_CHANGE_S: Final = 20.0
"""Seconds a cluster may take to make a change and see it through."""

_EVERYBODY: Final = Right(None, On.NOTHING)
_ADMIN: Final = Right(Action.ADMIN, On.CLUSTER)


def _stream(action: Action) -> Right:
    return Right(action, On.STREAM)


_TABLE: Final = (
    Operation(
        Fetch,
        models.FetchedRange,
        "Reads whole frames from an offset on.",
        right=Right(Action.READ, On.SUBJECT),
        responder=Responder.COPY,
        downloads=True,
    ),
    Operation(
        Offsets,
        models.FoundOffset,
        "Finds the first offset, the end, or the first record at or after a time.",
        right=_stream(Action.READ),
        responder=Responder.LEADER,
    ),
    Operation(
        Streams,
        models.StreamList,
        "Describes one stream, or all.",
        right=Right(None, On.VISIBLE_STREAM),
        responder=Responder.ANY,
        shows=Shows.STREAMS,
    ),
    Operation(
        Match,
        models.StreamNames,
        "Names the streams that store what is published on a subject.",
        right=_EVERYBODY,
        responder=Responder.ANY,
        shows=Shows.NAMES,
    ),
    Operation(
        CreateStream,
        models.CreatedStream,
        "Creates a stream, or finds it as asked for.",
        right=Right(Action.CREATE, On.NEW_STREAM),
        responder=Responder.CONTROLLER,
        audit="stream.create",
        wait_s=_CHANGE_S,
    ),
    Operation(
        DeleteStream,
        models.Nothing,
        "Deletes a stream with its data and its cursors.",
        right=_stream(Action.DELETE),
        responder=Responder.ANY,
        audit="stream.delete",
        wait_s=_CHANGE_S,
        repeatable=False,
    ),
    Operation(
        OpenStream,
        models.OneStream,
        "Opens what this node has of a stream that failed, or could not be opened.",
        right=_stream(Action.ALTER),
        responder=Responder.NODE,
        audit="stream.open",
        wait_s=_CHANGE_S,
    ),
    Operation(
        AlterStream,
        models.OneStream,
        "Changes options of a stream.",
        right=_stream(Action.ALTER),
        responder=Responder.ANY,
        audit="stream.alter",
        wait_s=_CHANGE_S,
    ),
    Operation(
        SetMode,
        models.OneStream,
        "Pauses or resumes a stream, makes it read-only or writable.",
        right=_stream(Action.ALTER),
        responder=Responder.ANY,
        audit="stream.mode",
        wait_s=_CHANGE_S,
    ),
    Operation(
        Purge,
        models.StartOffset,
        "Takes what is below an offset from readers, and deletes it.",
        right=_stream(Action.DELETE),
        responder=Responder.LEADER,
        audit="stream.purge",
        wait_s=_CHANGE_S,
    ),
    Operation(
        Restore,
        models.NextOffset,
        "Stores a frame of a backup.",
        right=_stream(Action.ADMIN),
        responder=Responder.LEADER,
        wait_s=_CHANGE_S,
        uploads=True,
    ),
    Operation(
        Verify,
        models.HeldRange,
        "Reads every frame of a range of offsets; says by checksums what the node holds of it.",
        right=_stream(Action.ADMIN),
        responder=Responder.NODE,
    ),
    Operation(
        FindIds,
        models.IdRanges,
        "Says which ranges may hold a record with a trace id or record id; has them indexed.",
        right=_stream(Action.READ),
        responder=Responder.LEADER,
        wait_s=_CHANGE_S,
    ),
    Operation(
        SetCursor,
        models.CursorList,
        "Commits cursors, all of them or none, durably.",
        right=Right(Action.CURSOR, On.CURSORS),
        responder=Responder.CURSORS,
    ),
    Operation(
        GetCursor,
        models.CursorList,
        "Finds a cursor: one, or none.",
        right=_stream(Action.CURSOR),
        responder=Responder.CURSORS,
    ),
    Operation(
        ListCursors,
        models.CursorPage,
        "Lists cursors in order, of one consumer or stream if named.",
        right=Right(Action.CURSOR, On.NAMED_STREAM),
        responder=Responder.CURSORS,
        shows=Shows.CURSORS,
    ),
    Operation(
        DeleteCursor,
        models.Deleted,
        "Deletes a cursor, durably.",
        right=_stream(Action.CURSOR),
        responder=Responder.CURSORS,
        audit="cursor.delete",
        repeatable=False,
    ),
    Operation(
        Cluster,
        models.ClusterInfo,
        "Names the nodes; addresses of admin endpoints and racks are for administrators.",
        right=_EVERYBODY,
        responder=Responder.ANY,
        shows=Shows.NODES,
    ),
    Operation(
        Drain,
        models.Nothing,
        "Begins to move everything off a node, or ends that.",
        right=_ADMIN,
        responder=Responder.ANY,
        audit="node.drain",
        wait_s=_CHANGE_S,
    ),
    Operation(
        RemoveNode,
        models.Nothing,
        "Ends a node's membership.",
        right=_ADMIN,
        responder=Responder.ANY,
        audit="node.remove",
        wait_s=_CHANGE_S,
    ),
    Operation(
        Move,
        models.Nothing,
        "Begins to move a partition to other nodes, or gives up its move.",
        right=_stream(Action.ADMIN),
        responder=Responder.ANY,
        audit="partition.move",
        wait_s=_CHANGE_S,
    ),
    Operation(
        Observe,
        models.Nothing,
        "Has just these nodes hold a copy of a partition that never counts.",
        right=_stream(Action.ADMIN),
        responder=Responder.ANY,
        audit="partition.observe",
        wait_s=_CHANGE_S,
    ),
    Operation(
        Elect,
        models.Elected,
        "Has the best replica lead that is there, though it lacks acked records.",
        right=_stream(Action.ADMIN),
        responder=Responder.CONTROLLER,
        audit="partition.elect",
        wait_s=_CHANGE_S,
        repeatable=False,
    ),
    Operation(
        Rebalance,
        models.Moves,
        "Spreads replicas and leaderships evenly.",
        right=_ADMIN,
        responder=Responder.CONTROLLER,
        audit="cluster.rebalance",
        wait_s=_CHANGE_S,
        repeatable=False,
    ),
    Operation(
        StepDown,
        models.Controller,
        "Has another node be the controller.",
        right=_ADMIN,
        responder=Responder.CONTROLLER,
        audit="cluster.step_down",
        wait_s=_CHANGE_S,
    ),
    Operation(
        Gaps,
        models.GapList,
        "Lists the messages that a node missed, and the damaged ranges of its logs.",
        right=_EVERYBODY,
        responder=Responder.NODE,
        shows=Shows.GAPS,
    ),
    Operation(
        GroupBeat,
        models.HeartbeatAnswer,
        "Tells the coordinator that a member is there.",
        right=Right(Action.CURSOR, On.JOINED_GROUP),
        responder=Responder.CONTROLLER,
    ),
    Operation(
        GroupLeave,
        models.Nothing,
        "Tells the coordinator that a member leaves.",
        right=Right(Action.CURSOR, On.GROUP),
        responder=Responder.CONTROLLER,
    ),
    Operation(
        Groups,
        models.GroupList,
        "Describes one consumer group, or all.",
        right=Right(None, On.VISIBLE_GROUP),
        responder=Responder.ANY,
        shows=Shows.GROUPS,
    ),
    Operation(
        ListAcls,
        models.RulePage,
        "Lists rules in their order.",
        right=_ADMIN,
        responder=Responder.ANY,
    ),
    Operation(
        PutAcls,
        models.AddedRules,
        "Adds rules.",
        right=_ADMIN,
        responder=Responder.ANY,
        audit="acl.add",
        wait_s=_CHANGE_S,
    ),
    Operation(
        DeleteAcls,
        models.Changed,
        "Removes rules.",
        right=_ADMIN,
        responder=Responder.ANY,
        audit="acl.remove",
        wait_s=_CHANGE_S,
    ),
    Operation(
        TestAcl,
        models.Verdict,
        "Says what the rules say of a principal, or of the caller.",
        right=Right(Action.ADMIN, On.CLUSTER_FOR_OTHERS),
        responder=Responder.ANY,
    ),
    Operation(
        WhoCan,
        models.Verdicts,
        "Says what the rules say of everybody they name.",
        right=_ADMIN,
        responder=Responder.ANY,
    ),
    Operation(
        Quotas,
        models.QuotaList,
        "Lists the quotas.",
        right=_ADMIN,
        responder=Responder.ANY,
    ),
    Operation(
        PutQuota,
        models.Changed,
        "Sets a quota.",
        right=_ADMIN,
        responder=Responder.ANY,
        audit="quota.set",
        wait_s=_CHANGE_S,
    ),
    Operation(
        DeleteQuota,
        models.Changed,
        "Removes a quota.",
        right=_ADMIN,
        responder=Responder.ANY,
        audit="quota.remove",
        wait_s=_CHANGE_S,
    ),
    Operation(
        Cancel,
        None,
        "Ends a fetch's wait; has no answer itself.",
        right=_EVERYBODY,
        responder=Responder.CONNECTION,
    ),
    Operation(
        Authenticate,
        models.Identity,
        "Says whose the connection is from now on.",
        right=_EVERYBODY,
        responder=Responder.CONNECTION,
    ),
)

OPERATIONS: Final = {operation.name: operation for operation in _TABLE}
"""Every operation by its name."""

_BY_REQUEST: Final = {operation.request: operation for operation in _TABLE}


def downloads(document: Document) -> bool:
    """Return whether frames follow the answer to a request."""
    operation = OPERATIONS.get(document["api"])
    return operation is not None and operation.downloads


def operation_of(request: Request) -> Operation:
    """The operation that a request asks for."""
    return _BY_REQUEST[type(request)]
