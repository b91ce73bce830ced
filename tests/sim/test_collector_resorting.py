"""Records that are sorted otherwise when they are read again; each rule has a twin without it."""

from collections.abc import Mapping
from typing import Any

import pytest

from penstock.collector.agent.agent import Rerouting
from penstock.collector.checkpoint.routing import RouteFingerprint, RoutingState
from penstock.collector.delivery.core import Delivery
from tests.sim.resorting_world import ResortingWorld
from tests.sim.twins import Mutation

SEEDS = 60


def run(seed: int) -> ResortingWorld:
    world = ResortingWorld(seed)
    world.run()
    return world


@pytest.mark.parametrize("block", range(3))
def test_nothing_is_lost_when_records_go_elsewhere_the_second_time(block: int) -> None:
    marks: set[str] = set()
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        world = run(seed)
        try:
            world.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        marks |= world.marks
    rare = {"begun anew", "begun anew while it runs", "repeated", "reloaded", "collector restarted"}
    assert marks >= rare, "the schedules are too kind to mean anything"


def loses() -> bool:
    """Whether some seed loses a record."""
    for seed in range(SEEDS):
        try:
            run(seed).check()
        except AssertionError:
            return True
    return False


def test_the_world_catches_a_start_that_believes_what_other_rules_sorted(code: Mutation) -> None:
    code.replace(RoutingState, "holds", lambda *_: True)
    assert loses()


def test_the_world_catches_a_start_that_believes_what_may_be_sorted_otherwise(
    code: Mutation,
) -> None:
    code.replace(
        RouteFingerprint,
        "are_those_of",
        lambda self, other, origin: self.of(origin) == other.of(origin),
    )
    assert loses()


def test_the_world_catches_a_reload_that_forgets_what_the_rules_before_sorted(
    code: Mutation,
) -> None:
    def forget(
        self: RoutingState, rules: RouteFingerprint, reached: Mapping[str, int]
    ) -> RoutingState:
        del self, reached
        return RoutingState(rules)

    code.replace(RoutingState, "changed", forget)
    assert loses()


def test_the_world_catches_a_reload_that_is_not_durable_before_it_sorts(code: Mutation) -> None:
    async def hide(self: Any, rules: RouteFingerprint) -> None:
        if rules != self._saver.sorting.rules:
            self._before = self._saver.sorting

    code.replace(Rerouting, "announce", hide)
    assert loses()


def test_the_world_catches_a_reload_that_goes_on_under_sequences_of_an_earlier_run(
    code: Mutation,
) -> None:
    code.replace(Rerouting, "_reads_again", lambda _: False)
    assert loses()


def test_the_world_catches_a_reload_that_keeps_what_an_earlier_run_had_done(code: Mutation) -> None:
    code.replace(Delivery, "retire_idle", lambda _: None)
    assert loses()
