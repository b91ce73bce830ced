"""A node's lease: from the sending of what was answered."""

from penstock.logd.controller.liveness import (
    NS_PER_MS,
    UNANSWERED_MAX,
    Answered,
    BeatNow,
    LeaseBegun,
    LeaseEffect,
    LeaseEnded,
    LeaseEvent,
    NodeLease,
    SendHeartbeat,
    Tick,
    Timing,
)


class Leased:
    """A lease, in milliseconds."""

    def __init__(self) -> None:
        self.lease = NodeLease(Timing(heartbeat_interval_ms=150, lease_ms=600))

    def __call__(self, at_ms: int, event: LeaseEvent) -> list[LeaseEffect]:
        return self.lease.handle(event, at_ms * NS_PER_MS)

    def is_valid(self, at_ms: int) -> bool:
        return self.lease.is_valid(at_ms * NS_PER_MS)


def test_a_process_begins_without_a_lease_and_sends_at_once() -> None:
    leased = Leased()
    assert leased(0, Tick()) == [SendHeartbeat(1)]
    assert leased.lease.next_deadline_ns() == 150 * NS_PER_MS
    assert not leased.is_valid(0)


def test_a_lease_lasts_from_the_sending() -> None:
    leased = Leased()
    leased(0, Tick())
    assert leased(100, Answered(1, 600)) == [LeaseBegun()]
    assert leased.is_valid(599)
    assert not leased.is_valid(600)
    assert leased(600, Tick()) == [LeaseEnded(), SendHeartbeat(2)]
    assert leased(650, Answered(2, 600)) == [LeaseBegun()]


def test_an_answer_that_comes_after_its_lease_gives_none() -> None:
    leased = Leased()
    leased(0, Tick())
    assert leased(600, Answered(1, 600)) == []
    assert not leased.is_valid(600)


def test_an_answer_counts_once_and_an_older_one_not_at_all() -> None:
    leased = Leased()
    leased(0, Tick())
    leased(150, Tick())
    assert leased(160, Answered(2, 600)) == [LeaseBegun()]
    assert leased(170, Answered(1, 600)) == []
    assert leased(700, Answered(2, 600)) == []
    assert leased.is_valid(749)
    assert not leased.is_valid(750)
    assert leased(760, Answered(2, 600)) == [LeaseEnded()]
    assert leased(760, Answered(99, 600)) == []


def test_what_is_urgent_is_told_at_once() -> None:
    leased = Leased()
    leased(0, Tick())
    assert leased(10, Tick()) == []
    assert leased(20, BeatNow()) == [SendHeartbeat(2)]
    assert leased.lease.next_deadline_ns() == 170 * NS_PER_MS


def test_heartbeats_without_an_answer_are_not_remembered_for_ever() -> None:
    leased = Leased()
    for number in range(UNANSWERED_MAX + 1):
        leased(number * 150, Tick())
    assert leased(UNANSWERED_MAX * 150, Answered(1, 100_000)) == []
    assert leased(UNANSWERED_MAX * 150, Answered(2, 100_000)) == [LeaseBegun()]
