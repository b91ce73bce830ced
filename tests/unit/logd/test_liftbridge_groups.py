"""What the coordinator learns about a member that only asks for its assignments."""

from typing import Any

import grpc
import pytest

from penstock.logd.controller.group_messages import Assignment, MemberAnswer, MemberBeat
from penstock.logd.errors import RefusedError
from penstock.logd.liftbridge.errors import CallError
from penstock.logd.liftbridge.groups import GroupService
from penstock.logd.metadata.records import GroupPartition
from penstock.logd.wire import logd_liftbridge_pb2 as wire

ASKED = wire.FetchConsumerGroupAssignmentsRequest(groupId="g", consumerId="one", epoch=1)


def place(number: int) -> GroupPartition:
    return GroupPartition("s", "i", number)


class Groups:
    """A group in which `one` owns partitions 0 and 1; answers as it is told."""

    def __init__(self) -> None:
        self.beats: list[MemberBeat] = []
        self.answers: list[tuple[int, list[int]]] = []

    async def beat(self, beat: MemberBeat) -> MemberAnswer:
        self.beats.append(beat)
        epoch, numbers = self.answers.pop(0)
        granted = tuple(Assignment(place(number), epoch) for number in numbers)
        return MemberAnswer(
            group="g", member="one", sequence=beat.sequence, epoch=epoch, granted=granted
        )

    def describe(self, group: str | None = None) -> list[dict[str, Any]]:
        if group != "g":
            raise RefusedError("UNKNOWN_GROUP", "none")
        shares = [
            {"stream": "s", "incarnation": "i", "partition": number, "member": "one"}
            for number in (0, 1)
        ]
        members = [{"member": "one", "streams": ["s"], "session_ms": 1000}]
        return [{"group": "g", "epoch": 5, "members": members, "partitions": shares}]


def membership(groups: Groups) -> GroupService:
    return GroupService(groups, None, timeout_s=3)  # type: ignore[arg-type]


async def ask(asked: GroupService) -> list[int]:
    answer = await asked.assignments(ASKED, None)  # type: ignore[arg-type]
    return [number for item in answer.assignments for number in item.partitions]


async def test_a_partition_is_let_go_of_when_its_reader_asks_again() -> None:
    groups = Groups()
    groups.answers = [(5, [0, 1]), (6, [0]), (6, [0])]
    asked = membership(groups)
    assert [await ask(asked) for _ in range(3)] == [[0, 1], [0], [0]]
    told = [(beat.epoch, {held.partition for held in beat.held}) for beat in groups.beats]
    # Nothing is known of it; then it reads both; then it learns of epoch 6, and reads one.
    assert told == [(0, {0, 1}), (5, {0, 1}), (6, {0})]


async def test_a_node_that_is_asked_for_the_first_time_lets_nothing_go() -> None:
    groups = Groups()
    groups.answers = [(6, [0]), (6, [0]), (6, [0])]
    first, second = membership(groups), membership(groups)
    await ask(first)
    await ask(second)
    assert (groups.beats[1].epoch, len(groups.beats[1].held)) == (0, 2)


async def test_who_is_no_member_is_told_so() -> None:
    asked = membership(Groups())
    other = wire.FetchConsumerGroupAssignmentsRequest(groupId="g", consumerId="two")
    with pytest.raises(CallError) as raised:
        await asked.assignments(other, None)  # type: ignore[arg-type]
    assert raised.value.code is grpc.StatusCode.FAILED_PRECONDITION
    assert asked.metadata("none", lambda _: True).error == wire.ConsumerGroupMetadata.UNKNOWN_GROUP
