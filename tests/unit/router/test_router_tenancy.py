"""Who works with a store of checkpoints, and what a job and its directory are told."""

import re

import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from penstock.router.errors import UnavailableError as NotNowError
from penstock.router.storage.store_lease import StoreLease
from penstock.service import ConfigError
from tests.support.memory_objects import MemoryObjects
from tests.unit.router.sink_rows import TestClock

LEASE_S = 30.0


def never() -> bool:
    return False


def lease(objects: MemoryObjects, holder: str, clock: TestClock) -> StoreLease:
    return StoreLease(objects, holder, LEASE_S, clock, location="checkpoint_store")


def test_who_comes_first_has_it_and_who_let_go_is_not_waited_for() -> None:
    objects, clock = MemoryObjects(), TestClock()
    first, second = lease(objects, "first", clock), lease(objects, "second", clock)
    began = clock.now_ns
    assert first.take(never)
    first.require_held()
    first.close()
    assert second.take(never)
    assert (second.term, clock.now_ns) == (2, began)
    with pytest.raises(NotNowError):
        first.require_held()


def test_a_holder_that_is_silent_is_waited_for_and_finds_out() -> None:
    objects, clock = MemoryObjects(), TestClock()
    first, second = lease(objects, "first", clock), lease(objects, "second", clock)
    first.take(never)
    began = clock.now_ns
    assert second.take(never)
    assert LEASE_S <= (clock.now_ns - began) / 1e9 <= 1.2 * LEASE_S
    second.require_held()
    with pytest.raises(NotNowError, match="not renewed in time"):
        first.require_held()


def test_what_is_said_of_a_lease_names_its_store() -> None:
    objects, clock = MemoryObjects(), TestClock()
    first, second = (
        StoreLease(objects, holder, LEASE_S, clock, location="s3://bucket/lake")
        for holder in ("first", "second")
    )
    first.take(never)
    with capture_logs() as told:
        second.take(never)
    assert {event["store"] for event in told if event["event"] == "store_wait"} == {
        "s3://bucket/lake"
    }
    with pytest.raises(NotNowError, match="lease of s3://bucket/lake was not renewed in time"):
        first.require_held()


def test_a_holder_whose_lease_is_longer_is_waited_for_as_long() -> None:
    """Somebody changed lease_s, and only one of two machines knows."""
    objects, clock = MemoryObjects(), TestClock()
    first = StoreLease(objects, "first", 20 * LEASE_S, clock, location="checkpoint_store")
    assert first.take(never)
    assert lease(objects, "second", clock).take(never)
    with pytest.raises(NotNowError, match="not renewed in time"):
        first.require_held()


def test_a_machine_that_was_suspended_has_no_lease_when_it_wakes() -> None:
    """Linux stops CLOCK_MONOTONIC meanwhile, so by that no time has passed."""
    clock = TestClock()
    first = lease(MemoryObjects(), "first", clock)
    assert first.take(never)
    clock.suspended_ns += round(LEASE_S * 1e9)
    with pytest.raises(NotNowError, match="not renewed in time"):
        first.require_held()


def test_the_same_directory_goes_on_at_once() -> None:
    """A lock keeps its processes apart, so the one before has ended."""
    objects, clock = MemoryObjects(), TestClock()
    lease(objects, "first", clock).take(never)
    began = clock.now_ns
    again = lease(objects, "first", clock)
    assert again.take(never)
    assert (again.term, clock.now_ns) == (2, began)


def test_who_stood_still_finds_out_though_its_clock_did_too() -> None:
    """As a virtual machine that its host has paused."""
    objects, paused, clock = MemoryObjects(), TestClock(), TestClock()
    first, second = lease(objects, "first", paused), lease(objects, "second", clock)
    first.take(never)
    second.take(never)
    first.require_held()
    with pytest.raises(NotNowError, match="was taken by another process"):
        first.require_newest()
    second.require_newest()


def test_whoever_waits_may_be_told_to_stop() -> None:
    objects, clock = MemoryObjects(), TestClock()
    lease(objects, "first", clock).take(never)
    looks = iter([False] * 5)
    second = lease(objects, "second", clock)
    assert not second.take(lambda: next(looks, True))
    assert re.fullmatch(
        r"checkpoint_store is waited for: process \d+ on \S+ \(since 2026.*\) has it",
        str(second.problem),
    )
    assert second.take(never)
    assert second.problem is None


def test_a_store_that_knows_no_exclusive_names_is_refused() -> None:
    class Simple(MemoryObjects):
        @override
        def create(self, name: str, data: bytes) -> bool:
            self.put(name, data)
            return True

    with pytest.raises(ConfigError, match="though there is one of its name") as told:
        lease(Simple(), "first", TestClock()).take(never)
    assert "If-None-Match" in told.value.fix


def test_a_claim_whose_answer_was_lost_is_known_again() -> None:
    """A client that sends it twice is told that there is one: its own."""

    class SentTwice(MemoryObjects):
        def __init__(self) -> None:
            super().__init__()
            self.is_first = True

        @override
        def create(self, name: str, data: bytes) -> bool:
            if self.is_first:
                self.is_first = False
                super().create(name, data)
            return super().create(name, data)

    objects, clock = SentTwice(), TestClock()
    began = clock.now_ns
    first = lease(objects, "first", clock)
    assert first.take(never)
    assert (first.term, clock.now_ns) == (1, began)


def test_a_term_that_somebody_removed_is_known_by_its_beats() -> None:
    """A rule of the bucket, say, that removes what is old."""
    objects, clock = MemoryObjects(), TestClock()
    first, second = lease(objects, "first", clock), lease(objects, "second", clock)
    first.take(never)
    objects.remove("terms/00000001")
    assert second.take(never)
    assert second.term == 2
    with pytest.raises(NotNowError):
        first.require_held()


def test_terms_and_beats_of_long_ago_are_removed() -> None:
    objects, clock = MemoryObjects(), TestClock()
    objects.put("terms/something else", b"")
    for _ in range(20):
        it = lease(objects, "first", clock)
        it.take(never)
        it.close()
    terms = [name for name in objects.held if len(name) == len("terms/00000001")]
    assert sorted(terms) == [f"terms/{term:08d}" for term in range(16, 21)]
    assert len(objects.held) <= 3 * len(terms) + 1
