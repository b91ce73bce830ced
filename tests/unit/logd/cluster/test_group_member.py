"""A member of a consumer group: what it reads, and when it stops."""

from msgspec.structs import replace

from penstock.logd.controller.group_messages import (
    Answered,
    Assignment,
    Ended,
    Grant,
    LetGo,
    Lost,
    Member,
    MemberAnswer,
    MemberBeat,
    MemberEffect,
    Revoke,
    SendBeat,
)
from penstock.logd.controller.group_messages import Tick as MemberTick
from penstock.logd.controller.liveness import NS_PER_MS
from penstock.logd.metadata.records import GroupPartition


def beats(effects: list[MemberEffect]) -> list[MemberBeat]:
    return [effect.beat for effect in effects if isinstance(effect, SendBeat)]


class Reading:
    def __init__(self) -> None:
        self.member = Member("g", "x", ("s",), session_ms=1000)
        (self.beat,) = beats(self.member.handle(MemberTick(), 0))

    def answer(
        self, at_ms: int, epoch: int, *numbers: int, error: str = "", sequence: int | None = None
    ) -> list[MemberEffect]:
        answer = MemberAnswer(
            group="g",
            member="x",
            sequence=self.beat.sequence if sequence is None else sequence,
            epoch=epoch,
            granted=tuple(Assignment(key(number), 5) for number in numbers),
        )
        if error == "FENCED":
            answer = replace(answer, error="FENCED", message="it is no member of the group")
        return self.member.handle(Answered(answer), at_ms * NS_PER_MS)

    def tick(self, at_ms: int) -> list[MemberEffect]:
        effects = self.member.handle(MemberTick(), at_ms * NS_PER_MS)
        for beat in beats(effects):
            self.beat = beat
        return effects

    def reads(self, at_ms: int) -> list[int]:
        return sorted(one.partition for one in self.member.reading(at_ms * NS_PER_MS))


def key(number: int) -> GroupPartition:
    return GroupPartition("s", "i", number)


def test_a_member_reads_what_it_is_granted_for_a_session_from_the_sending() -> None:
    reading = Reading()
    assert reading.beat.joining
    assert reading.answer(100, 5, 0, 1) == [Grant(key(0), 5), Grant(key(1), 5)]
    assert reading.reads(999) == [0, 1]
    assert reading.reads(1000) == []
    effects = reading.tick(1000)
    assert effects[0] == Lost((key(0), key(1)))
    assert (reading.beat.held, reading.beat.epoch, reading.beat.joining) == ((), 5, False)


def test_what_is_revoked_is_held_until_it_is_let_go_of() -> None:
    reading = Reading()
    reading.answer(0, 5, 0, 1)
    reading.tick(200)
    assert reading.answer(210, 6, 0) == [Revoke(key(1))]
    reading.tick(400)
    assert reading.beat.held == (key(0), key(1))
    assert reading.answer(410, 6, 0) == []
    effects = reading.member.handle(LetGo(key(1)), 420 * NS_PER_MS)
    (beat,) = beats(effects)
    assert beat.held == (key(0),)
    assert reading.member.handle(LetGo(key(1)), 430 * NS_PER_MS) == []


def test_an_answer_of_an_older_epoch_grants_nothing() -> None:
    reading = Reading()
    first = reading.beat.sequence
    reading.tick(200)
    reading.answer(210, 6)
    assert reading.answer(220, 5, 0, sequence=first) == []
    assert reading.reads(220) == []


def test_an_answer_that_comes_after_its_session_grants_nothing() -> None:
    reading = Reading()
    assert reading.answer(1000, 5, 0) == []


def test_a_fenced_member_is_over() -> None:
    reading = Reading()
    reading.answer(0, 5, 0)
    reading.tick(200)
    assert reading.answer(210, 0, error="FENCED") == [Lost((key(0),)), Ended("")]
    assert reading.tick(5000) == []
    assert reading.member.next_deadline_ns() is None
