"""Each call on a logd as data: the request, and how its answer is read. No I/O.

The blocking and the asyncio client send the same calls and differ only in how they wait.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Generic, TypeVar

from penstock.logd.api import operations
from penstock.logd.api.operations import Document, End, Request, Responder, operation_of
from penstock.logd.client.access import cause_of_failure, in_words
from penstock.logd.client.models import (
    ClusterInfo,
    Cursor,
    Described,
    Elected,
    Fetched,
    GroupInfo,
    HeldRange,
    OffsetRange,
    StreamInfo,
    cluster_info,
    group_info,
    stream_info,
)
from penstock.logd.controller.group_messages import Assignment, MemberAnswer, MemberBeat
from penstock.logd.errors import CorruptError, NoAnswerError
from penstock.logd.format.record_checksums import decode_checksums
from penstock.logd.format.rows import sound_frames
from penstock.logd.metadata.records import GroupPartition
from penstock.logd.security.acl import AclRule, Action, Effect
from penstock.logd.security.quotas import Quota

Answer_co = TypeVar("Answer_co", covariant=True)
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class ToPartition:
    """A call that the leader of a partition answers."""

    stream: str
    partition: int


@dataclass(frozen=True, slots=True)
class ToNode:
    """A call that one node answers."""

    node: str


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer_co]):
    """One request.

    Attributes:
        request: Without its id.
        read: Makes the answer of the response's header and payload.
        wait_s: Seconds the server may take on purpose.
        repeatable: Whether it may be sent again when it is not known whether it was done.
        to: The node that answers it; None: any node.
        spread: Whether another replica than the leader may answer it, where that is preferred.
        upload: Bytes that follow the request.
    """

    request: Document
    read: Callable[[Document, memoryview], Answer_co]
    wait_s: float = 0.0
    repeatable: bool = True
    to: ToPartition | ToNode | None = None
    spread: bool = False
    upload: bytes = b""

    def answer(self, header: Document, payload: memoryview, where: str) -> Answer_co:
        """Read a response.

        Raises:
            CorruptError: It is no answer to this request.
        """
        try:
            return self.read(header, payload)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"the answer to {self.request['api']} is not understood: {error!r}"
            raise CorruptError(message, where=where) from None


_CURSORS: Final = ToPartition("__cursors", 0)


def make(
    request: Request,
    read: Callable[[Document, memoryview], Found],
    *,
    node: str | None = None,
    wait_s: float = 0.0,
    repeatable: bool = True,
    upload: bytes = b"",
) -> Call[Found]:
    """A call of an operation, which goes to whom the operation's row names.

    Args:
        request: Says which operation.
        read: Makes the answer of the response's header and payload.
        node: The node that has to answer, of an operation that any node can answer.
        wait_s: Seconds the server may take beyond what the row says.
        repeatable: Whether it may be repeated if the row says so.
        upload: Bytes that follow the request.
    """
    operation = operation_of(request)
    to: ToPartition | ToNode | None = None if node is None else ToNode(node)
    if operation.responder is Responder.CURSORS:
        to = _CURSORS
    elif operation.responder in (Responder.LEADER, Responder.COPY):
        assert isinstance(request, operations.OfPartition), request
        to = ToPartition(request.stream, request.partition)
    return Call(
        request.document(),
        read,
        wait_s=operation.wait_s + wait_s,
        repeatable=operation.repeatable and repeatable,
        to=to,
        spread=operation.responder is Responder.COPY,
        upload=upload,
    )


def _nothing(_: Document, __: memoryview) -> None:
    """An answer that says only that it was done."""


def _stream(header: Document, _: memoryview) -> StreamInfo:
    return stream_info(header["stream"])


def describe(
    name: str | None = None, *, internal: bool = False, node: str | None = None
) -> Call[Described]:
    """One stream, or all by name, as any node sees them, or as one does."""

    def read(header: Document, _: memoryview) -> Described:
        found = [stream_info(item) for item in header["streams"]]
        if name is not None and len(found) != 1:
            msg = f"{len(found)} streams are described, not {name!r}"
            raise ValueError(msg)
        return Described(header.get("node", ""), found)

    return make(operations.Streams(stream=name, internal=internal), read, node=node)


def cluster() -> Call[ClusterInfo]:
    """Return the call for the nodes."""
    return make(operations.Cluster(), lambda header, _: cluster_info(header))


def alter_stream(name: str, options: dict[str, Any]) -> Call[StreamInfo]:
    """Change options of a stream."""
    return make(operations.AlterStream(stream=name, options=options), _stream)


def set_mode(
    name: str, *, paused: bool | None, read_only: bool | None, held: bool = False
) -> Call[StreamInfo]:
    """Pause or resume a stream, make it read-only or writable."""
    request = operations.SetMode(stream=name, paused=paused, read_only=read_only, held=held or None)
    return make(request, _stream)


def drain(node: str, *, undo: bool) -> Call[None]:
    """Begin to move everything off a node, or end that."""
    return make(operations.Drain(node=node, undo=undo), _nothing)


def remove_node(node: str) -> Call[None]:
    """End a node's membership."""
    return make(operations.RemoveNode(node=node), _nothing)


def move(stream: str, partition: int, replicas: Sequence[str] | None) -> Call[None]:
    """Begin to move a partition, or give up its move."""
    nodes = None if replicas is None else list(replicas)
    return make(operations.Move(stream=stream, partition=partition, replicas=nodes), _nothing)


def observe(stream: str, partition: int, observers: Sequence[str]) -> Call[None]:
    """Have just these nodes hold a copy that never counts."""
    request = operations.Observe(stream=stream, partition=partition, observers=list(observers))
    return make(request, _nothing)


def elect(stream: str, partition: int) -> Call[Elected]:
    """Have a replica lead that lacks acked records."""
    request = operations.Elect(stream=stream, partition=partition, lose_records=True)
    names = ("leader", "end_offset", "known_end", "unclean_elections")
    return make(request, lambda header, _: Elected(**{name: header[name] for name in names}))


def purge(stream: str, partition: int, before: int) -> Call[int]:
    """Take what is below an offset from readers, and delete it."""
    request = operations.Purge(stream=stream, partition=partition, before=before)
    return make(request, lambda header, _: int(header["start_offset"]))


def step_down(target: str | None) -> Call[str]:
    """Have another node be the controller."""
    return make(operations.StepDown(heir=target), lambda header, _: str(header["controller"]))


def gaps(node: str | None) -> Call[Document]:
    """Return the call for a node's ingest gaps and damaged ranges."""
    return make(operations.Gaps(), lambda header, _: header, node=node)


def rebalance() -> Call[int]:
    """Spread replicas and leaderships evenly."""
    return make(operations.Rebalance(), lambda header, _: int(header["moves"]))


def match(subject: str) -> Call[list[str]]:
    """Names of the streams that store what is published on a subject."""
    return make(operations.Match(subject=subject), lambda header, _: list(header["streams"]))


def create_stream(name: str, subject: str, options: dict[str, Any]) -> Call[StreamInfo]:
    """Create a stream, or find it as asked for."""
    config = {"name": name, "subject": subject} | options
    return make(operations.CreateStream(config=config), _stream)


def open_stream(name: str, node: str | None = None) -> Call[StreamInfo]:
    """Open a stream that failed, or could not be opened, at the node asked."""
    return make(operations.OpenStream(stream=name), _stream, node=node)


def delete_stream(name: str) -> Call[None]:
    """Delete a stream with its data."""
    return make(operations.DeleteStream(stream=name), _nothing)


def offsets(stream: str, partition: int) -> Call[OffsetRange]:
    """Return the call for the readable offsets of a partition."""
    request = operations.Offsets(stream=stream, partition=partition, at="latest")
    return make(request, lambda header, _: _range(header))


def offset_at(stream: str, partition: int, at: End | int) -> Call[int]:
    """The offset at `earliest`, `latest` or a timestamp in nanoseconds."""
    request = operations.Offsets(stream=stream, partition=partition, at=at)
    return make(request, lambda header, _: int(header["offset"]))


def fetch(request: operations.Fetch, *, where: str) -> Call[Fetched]:
    """Read whole frames. `where` is the server, for errors.

    Damage ends the frames, and is an error where it is the first of them.
    """
    where = f"{where} {request.stream}/{request.partition}"

    def read(header: Document, payload: memoryview) -> Fetched:
        frames, are_all = sound_frames(payload, where=where)
        return Fetched(
            frames=frames,
            range=_range(header),
            high_watermark=header["high_watermark"],
            next_offset=header["next_offset"] if are_all else frames[-1][0].next_offset,
            epoch=header["epoch"],
            incarnation=header["incarnation"],
            log_epoch=header.get("log_epoch"),
        )

    return make(request, read, wait_s=request.wait_ms_max / 1000)


def verify(request: operations.Verify, *, node: str | None) -> Call[HeldRange]:
    """Return the call for a node's records in a range; without a node, of the asked one."""

    def read(header: Document, payload: memoryview) -> HeldRange:
        return HeldRange(
            start_offset=header["start_offset"],
            high_watermark=header["high_watermark"],
            first=header["first"],
            next_offset=header["next_offset"],
            records=header["records"],
            size_bytes=header["bytes"],
            checksum=header["checksum"],
            damaged=tuple((first, upto) for first, upto in header["damaged"]),
            missing=tuple((first, upto) for first, upto in header["missing"]),
            checksums=decode_checksums(payload),
        )

    return make(request, read, node=node)


def restore(stream: str, partition: int, frames: bytes) -> Call[int]:
    """Store frames of a backup; the offset that is wanted next."""
    request = operations.Restore(stream=stream, partition=partition, upload=len(frames))
    return make(request, lambda header, _: int(header["next_offset"]), upload=frames)


def cursors(
    *, consumer: str | None = None, stream: str | None = None, after: Cursor | None = None
) -> Call[tuple[list[Cursor], bool]]:
    """Cursors in order, of one consumer or stream if named, and whether there are more."""
    last: list[str | int] | None = None
    if after is not None:
        last = [after.consumer, after.stream, after.partition]
    request = operations.ListCursors(consumer=consumer, stream=stream, after=last)
    return make(request, lambda header, _: (_cursors(header), bool(header["more"])))


def get_cursor(consumer: str, stream: str, partition: int) -> Call[Cursor | None]:
    """One cursor; None where there is none."""
    request = operations.GetCursor(consumer=consumer, stream=stream, partition=partition)
    return make(request, lambda header, _: next(iter(_cursors(header)), None))


def set_cursors(
    wanted: Sequence[Cursor], *, rewind: bool = False, member: str = ""
) -> Call[list[Cursor]]:
    """Commit cursors, all of them or none; `rewind` allows to go back.

    With `member` they are of partitions that were granted to that member of a group.

    A rewind is not sent again: done twice, it would take back what was committed in between.
    """
    items = [
        operations.SetCursorItem(
            consumer=cursor.consumer,
            stream=cursor.stream,
            partition=cursor.partition,
            offset=cursor.offset,
            incarnation=cursor.incarnation or None,
            epoch=cursor.epoch if member else 0,
        )
        for cursor in wanted
    ]
    request = operations.SetCursor(cursors=items, rewind=rewind, member=member or None)
    return make(request, lambda header, _: _cursors(header), repeatable=not rewind)


def delete_cursor(consumer: str, stream: str, partition: int) -> Call[bool]:
    """Delete one cursor; whether it was there."""
    request = operations.DeleteCursor(consumer=consumer, stream=stream, partition=partition)
    return make(request, lambda header, _: bool(header["deleted"]))


def silent(server: str, seconds: float) -> NoAnswerError:
    """A server that did not answer a call in time."""
    message = f"logd at {server} did not answer within {seconds:g} s"
    return NoAnswerError(message, cause="silent")


def unreachable(server: str, error: OSError) -> NoAnswerError:
    """A server whose connection failed, or could not be made."""
    message = f"logd at {server} cannot be reached: {in_words(error)}"
    return NoAnswerError(message, cause=cause_of_failure(error))


def _cursors(header: Document) -> list[Cursor]:
    return [Cursor(**item) for item in header["cursors"]]


def _range(header: Document) -> OffsetRange:
    return OffsetRange(header["start_offset"], header["high_watermark"] + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AclPage:
    """Some of the rules.

    Attributes:
        version: Version of all rules and quotas; a change may name it as its basis.
        enabled: Whether they are followed.
        superusers: Principals that need no rule, by the configuration of the node that answers.
        grants: Permissions of that configuration, in words; empty from an older logd.
        more: Whether there are more after the last of these.
    """

    version: int
    enabled: bool
    superusers: tuple[str, ...]
    grants: tuple[str, ...]
    rules: tuple[AclRule, ...]
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A decision of the rules.

    Attributes:
        principal: The principal; empty: the caller itself.
        allowed: The decision.
        rule: The id of the rule that decided; None: none did.
        enabled: Whether the rules are in force; if not, every caller may do everything.
    """

    principal: str
    allowed: bool
    reason: str
    rule: str | None
    enabled: bool = True


def acls(after: str | None = None) -> Call[AclPage]:
    """Rules in their order, those after one."""

    def read(header: Document, _: memoryview) -> AclPage:
        return AclPage(
            version=header["version"],
            enabled=header["enabled"],
            superusers=tuple(header["superusers"]),
            grants=tuple(header.get("grants", ())),
            rules=tuple(_rule(one) for one in header["rules"]),
            more=header["more"],
        )

    return make(operations.ListAcls(after=after), read)


def put_acls(rules: Sequence[AclRule], based_on: int | None = None) -> Call[bool]:
    """Add rules; whether any of them is new."""
    items = [
        operations.RuleItem(
            effect=rule.effect,
            principal=rule.principal,
            action=rule.action,
            resource=rule.resource,
        )
        for rule in rules
    ]
    return make(operations.PutAcls(rules=items, based_on=based_on), _changed)


def delete_acls(ids: Sequence[str], based_on: int | None = None) -> Call[bool]:
    """Remove rules, all of them or none."""
    return make(operations.DeleteAcls(rules=list(ids), based_on=based_on), _changed)


def judge(
    action: str, resource: str, *, principal: str | None = None, groups: Sequence[str] = ()
) -> Call[Verdict]:
    """Return the call for the rules' decision on a principal, or on the caller."""
    request = operations.TestAcl(
        action=Action(action), resource=resource, principal=principal, groups=list(groups)
    )
    return make(request, lambda header, _: _verdict(principal or "", header))


def who_can(action: str, resource: str) -> Call[list[Verdict]]:
    """Return the call for the rules' decision on every principal that they name."""

    def read(header: Document, _: memoryview) -> list[Verdict]:
        enabled = header.get("enabled", True)
        return [
            _verdict(one["principal"], one | {"enabled": enabled}) for one in header["principals"]
        ]

    return make(operations.WhoCan(action=Action(action), resource=resource), read)


def quotas() -> Call[list[Quota]]:
    """Return the call for all quotas."""
    return make(operations.Quotas(), lambda header, _: [Quota(**one) for one in header["quotas"]])


def put_quota(quota: Quota) -> Call[bool]:
    """Set a quota, in place of what there is."""
    return make(operations.PutQuota(quota=operations.QuotaItem(**asdict(quota))), _changed)


def delete_quota(principal: str) -> Call[bool]:
    """Remove a quota."""
    return make(operations.DeleteQuota(principal=principal), _changed)


def _changed(header: Document, _: memoryview) -> bool:
    return bool(header["changed"])


def _rule(document: dict[str, Any]) -> AclRule:
    return AclRule(
        principal=document["principal"],
        effect=Effect(document["effect"]),
        action=Action(document["action"]),
        resource=document["resource"],
    )


def _verdict(principal: str, document: dict[str, Any]) -> Verdict:
    rule = document["rule"]
    return Verdict(
        principal=principal,
        allowed=document["allowed"],
        reason=document["reason"],
        rule=None if rule is None else rule["id"],
        enabled=document.get("enabled", True),
    )


def beat(beat: MemberBeat) -> Call[MemberAnswer]:
    """Tell the coordinator that a member is there; any node hands it over."""
    request = operations.GroupBeat(
        group=beat.group,
        member=beat.member,
        streams=list(beat.streams),
        session_ms=beat.session_ms,
        sequence=beat.sequence,
        joining=beat.joining,
        epoch=beat.epoch,
        held=_by_stream(beat.held),
    )
    return make(request, lambda header, _: _answer(header["answer"]))


def leave(group: str, member: str) -> Call[None]:
    """Tell the coordinator that a member wants to be none."""
    return make(operations.GroupLeave(group=group, member=member), _nothing)


def groups(group: str | None = None) -> Call[list[GroupInfo]]:
    """One group, or all by name."""
    request = operations.Groups(group=group)
    return make(request, lambda header, _: [group_info(item) for item in header["groups"]])


def _by_stream(held: Iterable[GroupPartition]) -> list[operations.HeldPartitions]:
    numbers: dict[tuple[str, str], list[int]] = {}
    for one in held:
        numbers.setdefault((one.stream, one.incarnation), []).append(one.partition)
    return [
        operations.HeldPartitions(stream=stream, incarnation=incarnation, partitions=found)
        for (stream, incarnation), found in numbers.items()
    ]


def _answer(document: Document) -> MemberAnswer:
    return MemberAnswer(
        group=document["group"],
        member=document["member"],
        sequence=document["sequence"],
        epoch=document["epoch"],
        granted=tuple(
            Assignment(
                GroupPartition(item["stream"], item["incarnation"], item["partition"]),
                item["epoch"],
            )
            for item in document["granted"]
        ),
        error=document["error"],
        message=document["message"],
    )
