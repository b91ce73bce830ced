"""Each call on a logd as data: the request, and how its answer is read. No I/O.

The blocking and the asyncio client send the same calls and differ only in how they wait.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Generic, TypeVar

from penstock.logd.api.protocol import Document
from penstock.logd.client.access import cause_of_failure, in_words
from penstock.logd.client.models import (
    ClusterInfo,
    Cursor,
    Described,
    Elected,
    Fetched,
    GroupInfo,
    OffsetRange,
    StreamInfo,
    cluster_info,
    group_info,
    stream_info,
)
from penstock.logd.controller.group_messages import Assignment, MemberAnswer, MemberBeat
from penstock.logd.errors import CorruptError, NoAnswerError
from penstock.logd.format.rows import sound_frames
from penstock.logd.metadata.records import GroupPartition
from penstock.logd.security.acl import AclRule, Action, Effect
from penstock.logd.security.quotas import Quota

Answer_co = TypeVar("Answer_co", covariant=True)


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
        to: Who answers it; None: any node.
        spread: Whether another replica than the leader may answer it, where that is preferred.
        upload: What follows the request.
    """

    request: Document
    read: Callable[[Document, memoryview], Answer_co]
    wait_s: float = 0.0
    repeatable: bool = True
    to: ToPartition | ToNode | None = None
    spread: bool = False
    upload: bytes = b""

    def answer(self, header: Document, payload: memoryview, where: str) -> Answer_co:
        """What a response says.

        Raises:
            CorruptError: It is no answer to this request.
        """
        try:
            return self.read(header, payload)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"the answer to {self.request['api']} is not understood: {error!r}"
            raise CorruptError(message, where=where) from None


_CHANGE_S: Final = 20.0
"""Seconds a cluster may take to make a change and see it through."""

_CURSORS: Final = ToPartition("__cursors", 0)


def describe(
    name: str | None = None, *, internal: bool = False, node: str | None = None
) -> Call[Described]:
    """One stream, or all by name, as any node sees them, or as one does."""
    request: Document = {"api": "streams"}
    if name is not None:
        request["stream"] = name
    if internal:
        request["internal"] = True

    def read(header: Document, _: memoryview) -> Described:
        found = [stream_info(item) for item in header["streams"]]
        if name is not None and len(found) != 1:
            msg = f"{len(found)} streams are described, not {name!r}"
            raise ValueError(msg)
        return Described(header.get("node", ""), found)

    return Call(request, read, to=None if node is None else ToNode(node))


def cluster() -> Call[ClusterInfo]:
    """Which nodes there are."""
    return Call({"api": "cluster"}, lambda header, _: cluster_info(header))


def alter_stream(name: str, options: dict[str, Any]) -> Call[StreamInfo]:
    """Change options of a stream."""
    request = {"api": "alter_stream", "stream": name, "options": options}
    return Call(request, lambda header, _: stream_info(header["stream"]), wait_s=_CHANGE_S)


def set_mode(
    name: str, *, paused: bool | None, read_only: bool | None, held: bool = False
) -> Call[StreamInfo]:
    """Pause or resume a stream, make it read-only or writable."""
    request: Document = {"api": "set_mode", "stream": name}
    request |= {} if paused is None else {"paused": paused}
    request |= {"held": True} if held else {}
    request |= {} if read_only is None else {"read_only": read_only}
    return Call(request, lambda header, _: stream_info(header["stream"]), wait_s=_CHANGE_S)


def drain(node: str, *, undo: bool) -> Call[None]:
    """Begin to move everything off a node, or end that."""
    request = {"api": "drain", "node": node, "undo": undo}
    return Call(request, lambda *_: None, wait_s=_CHANGE_S)


def remove_node(node: str) -> Call[None]:
    """End a node's membership."""
    return Call({"api": "remove_node", "node": node}, lambda *_: None, wait_s=_CHANGE_S)


def move(stream: str, partition: int, replicas: Sequence[str] | None) -> Call[None]:
    """Begin to move a partition, or give up its move."""
    request = {
        "api": "move",
        "stream": stream,
        "partition": partition,
        "replicas": None if replicas is None else list(replicas),
    }
    return Call(request, lambda *_: None, wait_s=_CHANGE_S)


def observe(stream: str, partition: int, observers: Sequence[str]) -> Call[None]:
    """Have just these nodes hold a copy that never counts."""
    request = {
        "api": "observe", "stream": stream, "partition": partition, "observers": list(observers),
    }  # fmt: skip
    return Call(request, lambda *_: None, wait_s=_CHANGE_S)


def elect(stream: str, partition: int) -> Call[Elected]:
    """Have a replica lead that lacks acked records."""
    request = {"api": "elect", "stream": stream, "partition": partition, "lose_records": True}
    names = ("leader", "end_offset", "known_end", "unclean_elections")
    return Call(
        request,
        lambda header, _: Elected(**{name: header[name] for name in names}),
        repeatable=False,
        wait_s=_CHANGE_S,
    )


def purge(stream: str, partition: int, before: int) -> Call[int]:
    """Take what is below an offset from readers, and delete it."""
    request = {"api": "purge", "stream": stream, "partition": partition, "before": before}
    to = ToPartition(stream, partition)
    return Call(request, lambda header, _: int(header["start_offset"]), wait_s=_CHANGE_S, to=to)


def step_down(heir: str | None) -> Call[str]:
    """Have another node be the controller."""
    request = {"api": "step_down", "heir": heir}
    return Call(request, lambda header, _: str(header["controller"]), wait_s=_CHANGE_S)


def gaps(node: str | None) -> Call[Document]:
    """What a node has missed, and cannot read."""
    to = None if node is None else ToNode(node)
    return Call({"api": "gaps"}, lambda header, _: header, to=to)


def rebalance() -> Call[int]:
    """Spread replicas and leaderships evenly."""
    request = {"api": "rebalance"}
    return Call(request, lambda header, _: int(header["moves"]), repeatable=False, wait_s=_CHANGE_S)


def match(subject: str) -> Call[list[str]]:
    """Names of the streams that store what is published on a subject."""
    return Call({"api": "match", "subject": subject}, lambda header, _: list(header["streams"]))


def create_stream(name: str, subject: str, options: dict[str, Any]) -> Call[StreamInfo]:
    """Create a stream, or find it as asked for."""
    config = {"name": name, "subject": subject} | options
    request = {"api": "create_stream", "config": config}
    return Call(request, lambda header, _: stream_info(header["stream"]), wait_s=_CHANGE_S)


def open_stream(name: str, node: str | None = None) -> Call[StreamInfo]:
    """Open a stream that failed, or could not be opened, at the node asked."""
    request = {"api": "open_stream", "stream": name}
    to = None if node is None else ToNode(node)
    return Call(request, lambda header, _: stream_info(header["stream"]), wait_s=_CHANGE_S, to=to)


def delete_stream(name: str) -> Call[None]:
    """Delete a stream with its data."""
    request = {"api": "delete_stream", "stream": name}
    return Call(request, lambda *_: None, repeatable=False, wait_s=_CHANGE_S)


def offsets(stream: str, partition: int) -> Call[OffsetRange]:
    """What can be read of a partition now."""
    request = {"api": "offsets", "stream": stream, "partition": partition, "at": "latest"}
    to = ToPartition(stream, partition)
    return Call(request, lambda header, _: _range(header), to=to)


def offset_at(stream: str, partition: int, at: str | int) -> Call[int]:
    """The offset at `earliest`, `latest` or a timestamp in nanoseconds."""
    request = {"api": "offsets", "stream": stream, "partition": partition, "at": at}
    to = ToPartition(stream, partition)
    return Call(request, lambda header, _: int(header["offset"]), to=to)


def fetch(  # noqa: PLR0913 - a request of many optional parts
    stream: str,
    offset: int,
    *,
    partition: int,
    bytes_max: int,
    bytes_min: int | None = None,
    wait_ms: int = 0,
    subject: str | None = None,
    incarnation: str | None = None,
    log_epoch: int | None = None,
    where: str,
) -> Call[Fetched]:
    """Read whole frames; parts that are None are left out. `where` is the server, for errors.

    Damage ends the frames, and is an error where it is the first of them.
    """
    where = f"{where} {stream}/{partition}"
    request: Document = {
        "api": "fetch",
        "stream": stream,
        "partition": partition,
        "offset": offset,
        "bytes_max": bytes_max,
        "bytes_min": bytes_min,
        "wait_ms_max": wait_ms,
        "subject": subject,
        "incarnation": incarnation,
        "log_epoch": log_epoch,
    }

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

    asked = {name: value for name, value in request.items() if value is not None}
    to = ToPartition(stream, partition)
    return Call(asked, read, wait_s=wait_ms / 1000, to=to, spread=True)


def restore(stream: str, partition: int, frames: bytes) -> Call[int]:
    """Store frames of a backup; the offset that is wanted next."""
    request = {"api": "restore", "stream": stream, "partition": partition}
    to = ToPartition(stream, partition)
    return Call(
        request,
        lambda header, _: int(header["next_offset"]),
        wait_s=_CHANGE_S,
        to=to,
        upload=frames,
    )


def cursors(
    *, consumer: str | None = None, stream: str | None = None, after: Cursor | None = None
) -> Call[tuple[list[Cursor], bool]]:
    """Cursors in order, of one consumer or stream if named, and whether there are more."""
    request: Document = {"api": "list_cursors"}
    if consumer is not None:
        request["consumer"] = consumer
    if stream is not None:
        request["stream"] = stream
    if after is not None:
        request["after"] = [after.consumer, after.stream, after.partition]
    return Call(request, lambda header, _: (_cursors(header), bool(header["more"])), to=_CURSORS)


def get_cursor(consumer: str, stream: str, partition: int) -> Call[Cursor | None]:
    """One cursor; None where there is none."""
    request = {
        "api": "get_cursor", "consumer": consumer, "stream": stream, "partition": partition,
    }  # fmt: skip
    return Call(request, lambda header, _: next(iter(_cursors(header)), None), to=_CURSORS)


def set_cursors(
    wanted: Sequence[Cursor], *, rewind: bool = False, member: str = ""
) -> Call[list[Cursor]]:
    """Commit cursors, all of them or none; `rewind` allows to go back.

    With `member` they are of partitions that were granted to that member of a group.

    A rewind is not sent again: done twice, it would take back what was committed in between.
    """
    items = [
        {
            "consumer": cursor.consumer,
            "stream": cursor.stream,
            "partition": cursor.partition,
            "offset": cursor.offset,
        }
        | ({"incarnation": cursor.incarnation} if cursor.incarnation else {})
        | ({"epoch": cursor.epoch} if member else {})
        for cursor in wanted
    ]
    request = {"api": "set_cursor", "cursors": items, "rewind": rewind}
    request |= {"member": member} if member else {}
    return Call(request, lambda header, _: _cursors(header), repeatable=not rewind, to=_CURSORS)


def delete_cursor(consumer: str, stream: str, partition: int) -> Call[bool]:
    """Delete one cursor; whether it was there."""
    request = {
        "api": "delete_cursor", "consumer": consumer, "stream": stream, "partition": partition,
    }  # fmt: skip
    return Call(request, lambda header, _: bool(header["deleted"]), repeatable=False, to=_CURSORS)


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


_ACCESS_CHANGE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AclPage:
    """Some of the rules.

    Attributes:
        version: Of all rules and quotas; a change may say that it is based on it.
        enabled: Whether they are followed.
        superusers: Who may everything without any, by the configuration of the node that answers.
        grants: What that configuration allows besides, in words; empty of an older logd.
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
    """What the rules say of somebody.

    Attributes:
        principal: Whom; empty: the caller itself.
        allowed: What the rules say.
        rule: The id of the rule that decided; None: none did.
        enabled: Whether the rules are in force; if not, everybody may do everything.
    """

    principal: str
    allowed: bool
    reason: str
    rule: str | None
    enabled: bool = True


def acls(after: str | None = None) -> Call[AclPage]:
    """Rules in their order, those after one."""
    request: Document = {"api": "acls"} | ({} if after is None else {"after": after})

    def read(header: Document, _: memoryview) -> AclPage:
        return AclPage(
            version=header["version"],
            enabled=header["enabled"],
            superusers=tuple(header["superusers"]),
            grants=tuple(header.get("grants", ())),
            rules=tuple(_rule(one) for one in header["rules"]),
            more=header["more"],
        )

    return Call(request, read)


def put_acls(rules: Sequence[AclRule], based_on: int | None = None) -> Call[bool]:
    """Add rules; whether any of them is new."""
    request = {"api": "put_acls", "rules": [asdict(rule) for rule in rules], "based_on": based_on}
    return _change(request)


def delete_acls(ids: Sequence[str], based_on: int | None = None) -> Call[bool]:
    """Remove rules, all of them or none."""
    return _change({"api": "delete_acls", "rules": list(ids), "based_on": based_on})


def judge(
    action: str, resource: str, *, principal: str | None = None, groups: Sequence[str] = ()
) -> Call[Verdict]:
    """What the rules say of somebody, or of the caller."""
    request: Document = {"api": "test_acl", "action": action, "resource": resource}
    if principal is not None:
        request |= {"principal": principal, "groups": list(groups)}
    return Call(request, lambda header, _: _verdict(principal or "", header))


def who_can(action: str, resource: str) -> Call[list[Verdict]]:
    """What the rules say of everybody they name."""
    request = {"api": "who_can", "action": action, "resource": resource}

    def read(header: Document, _: memoryview) -> list[Verdict]:
        enabled = header.get("enabled", True)
        return [
            _verdict(one["principal"], one | {"enabled": enabled}) for one in header["principals"]
        ]

    return Call(request, read)


def quotas() -> Call[list[Quota]]:
    """All of them."""
    return Call({"api": "quotas"}, lambda header, _: [Quota(**one) for one in header["quotas"]])


def put_quota(quota: Quota) -> Call[bool]:
    """Set a quota, in place of what there is."""
    return _change({"api": "put_quota", "quota": asdict(quota)})


def delete_quota(principal: str) -> Call[bool]:
    """Remove a quota."""
    return _change({"api": "delete_quota", "principal": principal})


def _change(request: Document) -> Call[bool]:
    kept = {key: value for key, value in request.items() if value is not None}
    return Call(kept, lambda header, _: bool(header["changed"]), wait_s=_ACCESS_CHANGE_S)


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
    request = {
        "api": "group_beat",
        "group": beat.group,
        "member": beat.member,
        "streams": list(beat.streams),
        "session_ms": beat.session_ms,
        "sequence": beat.sequence,
        "joining": beat.joining,
        "epoch": beat.epoch,
        "held": _by_stream(beat.held),
    }
    return Call(request, lambda header, _: _answer(header["answer"]))


def leave(group: str, member: str) -> Call[None]:
    """Tell the coordinator that a member wants to be none."""
    request = {"api": "group_leave", "group": group, "member": member}
    return Call(request, lambda *_: None)


def groups(group: str | None = None) -> Call[list[GroupInfo]]:
    """One group, or all by name."""
    request: Document = {"api": "groups"} | ({} if group is None else {"group": group})
    return Call(request, lambda header, _: [group_info(item) for item in header["groups"]])


def _by_stream(held: Iterable[GroupPartition]) -> list[Document]:
    numbers: dict[tuple[str, str], list[int]] = {}
    for one in held:
        numbers.setdefault((one.stream, one.incarnation), []).append(one.partition)
    return [
        {"stream": stream, "incarnation": incarnation, "partitions": found}
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
