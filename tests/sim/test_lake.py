"""A lake under thousands of bad days, and twins that break it."""

from collections.abc import Callable

import pytest

from tests.sim.lake_twins import TWINS, before_the_decision, cancels_nothing
from tests.sim.lake_world import KEEP_S, NS, LakeWorld

SEEDS = 40


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("block", range(2))
def test_each_row_is_there_once_for_all_readers(block: int, *, exchanges: bool) -> None:
    marks: set[str] = set()
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        world = LakeWorld(seed, exchanges, marks)
        try:
            world.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    rare = {"killed", "passed", "repeated", "was merged", "cut otherwise", "read"}
    rare |= {"nested", "late", "filled"}
    assert marks >= rare, "the schedules are too kind to mean anything"


def is_caught(*, asks_merged: bool = True) -> bool:
    """Whether some seed shows a fault."""
    for seed in range(2 * SEEDS):
        world = LakeWorld(seed, exchanges=False, asks_merged=asks_merged)
        try:
            world.run()
        except (AssertionError, FileNotFoundError):
            return True
    return False


def test_the_world_catches_a_sink_that_does_not_ask_what_is_merged() -> None:
    assert is_caught(asks_merged=False)


@pytest.mark.parametrize("twin", TWINS, ids=lambda it: it.__name__)
def test_the_world_catches_a_twin(
    monkeypatch: pytest.MonkeyPatch, twin: Callable[[pytest.MonkeyPatch], None]
) -> None:
    twin(monkeypatch)
    assert is_caught()


def test_a_sink_cancels_a_plan_in_the_moment_before_it_is_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where nothing can be locked: what is to be merged was looked at, and is other files now."""

    def repeated(*, cancels: bool) -> None:
        world = LakeWorld(0, exchanges=False)
        world.deliver_and_plan()
        world.clock.now_ns += KEEP_S * NS
        with monkeypatch.context() as patch:
            before_the_decision(patch, world.repeat_otherwise)
            if not cancels:
                cancels_nothing(patch)
            world.settle()

    repeated(cancels=True)
    with pytest.raises(AssertionError, match=r"twice|each row once"):
        repeated(cancels=False)
