"""Records that are sorted otherwise when they are read again; each rule has a twin without it."""

from typing import Any, cast
from uuid import UUID

import pytest

from penstock.collector.agent.agent import Rerouting
from penstock.collector.checkpoint.state import State
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
    rare = {
        "begun again",
        "begun again while it runs",
        "repeated",
        "reloaded",
        "settled",
        "collector restarted",
    }
    assert marks >= rare, "the schedules are too kind to mean anything"


def loses() -> bool:
    """Whether some seed loses a record."""
    for seed in range(2 * SEEDS):
        try:
            run(seed).check()
        except AssertionError:
            return True
    return False


def test_the_world_catches_a_start_that_believes_what_was_read_under_another_fingerprint(
    code: Mutation,
) -> None:
    code.replace(State, "fit_to_routing", lambda *_: [])
    assert loses()


def test_the_world_catches_a_start_that_believes_what_may_vary(code: Mutation) -> None:
    fit = State.fit_to_routing
    code.replace(
        State, "fit_to_routing", lambda self, found, ends: fit(self, found or "varies", ends)
    )
    assert loses()


def test_the_world_catches_a_reload_after_which_a_start_believes_what_was_read_before(
    code: Mutation,
) -> None:
    apply = Rerouting.apply

    def forget(self: Any, fingerprint: str) -> UUID:
        incarnation = apply(self, fingerprint)
        self._checkpointer.routing = fingerprint
        return incarnation

    code.replace(Rerouting, "apply", forget)
    assert loses()


def test_the_world_catches_a_reload_that_is_not_durable_before_records_are_read_by_it(
    code: Mutation,
) -> None:
    async def hide(self: Any, fingerprint: str) -> None:
        if fingerprint != self._fingerprint:
            self._before = self._checkpointer.routing, None

    code.replace(Rerouting, "announce", hide)
    assert loses()


def test_the_world_catches_a_reload_that_goes_on_under_sequences_of_an_earlier_run(
    code: Mutation,
) -> None:
    apply = Rerouting.apply

    def keep(self: Any, fingerprint: str) -> UUID:
        before = self._checkpointer.incarnation
        apply(self, fingerprint)
        self._checkpointer.incarnation = before
        return cast("UUID", before)

    code.replace(Rerouting, "apply", keep)
    assert loses()


def test_the_world_catches_a_reload_that_keeps_what_an_earlier_run_had_done(code: Mutation) -> None:
    code.replace(Delivery, "retire_idle", lambda _: None)
    assert loses()


def test_the_world_catches_a_reload_that_forgets_the_unit_in_work(code: Mutation) -> None:
    code.replace(ResortingWorld, "_reached", lambda self: self.delivery.reached())
    assert loses()


def test_the_world_catches_a_reload_that_relies_on_what_is_still_to_be_done(code: Mutation) -> None:
    code.replace(Delivery, "is_done", lambda *_: True)
    assert loses()
