"""Calls about consumer groups, as data. No I/O."""

from collections.abc import Iterable

from penstock.logd.client.answers import GroupInfo, group_info
from penstock.logd.client.calls import Call
from penstock.logd.core.cluster.group_messages import Granted, MemberAnswer, MemberBeat
from penstock.logd.core.cluster.records import GroupPartition
from penstock.logd.fetch.wire import Document


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
            Granted(
                GroupPartition(item["stream"], item["incarnation"], item["partition"]),
                item["epoch"],
            )
            for item in document["granted"]
        ),
        error=document["error"],
        message=document["message"],
    )
