"""What operators purge is gone for readers on every replica, and nothing else is.

`PENSTOCK_SIM_SEEDS` sets how many seeds of the cluster run, of which every tenth runs here.
"""

import os
from collections import Counter
from collections.abc import Callable

import pytest

from penstock.logd.partition.purge import Purging
from tests.sim.cluster_purging import PurgingWorld
from tests.sim.twins import Mutation

SEEDS = max(10, int(os.environ.get("PENSTOCK_SIM_SEEDS", "1000")) // 10)
FIRST_SEED = int(os.environ.get("PENSTOCK_SIM_SEED", "0"))
BLOCKS = 5
TWIN_SEEDS = 40
MARKS = {"purge done", "purge STALE_EPOCH", "records hidden"}

pytestmark = pytest.mark.timeout(900)
"""It waits for nothing but the processor, which others may want too."""


@pytest.mark.parametrize("block", range(BLOCKS))
def test_what_is_purged_is_gone_and_nothing_else_is(block: int) -> None:
    for seed in range(FIRST_SEED + block, FIRST_SEED + SEEDS, BLOCKS):
        try:
            PurgingWorld(seed).run()
        except AssertionError as error:
            pytest.fail(f"PENSTOCK_SIM_SEED={seed}: {error}")


def test_the_schedules_reach_the_rare_cases() -> None:
    marks: Counter[str] = Counter()
    for seed in range(SEEDS):
        world = PurgingWorld(seed)
        world.run()
        marks += world.marks
        if not MARKS - marks.keys():
            return
    assert MARKS - marks.keys() == set()


def one_too_many(start: Callable[[Purging], int]) -> Callable[[Purging], int]:
    return lambda self: start(self) + (1 if self._point.before else 0)


def whatever_is_committed(self: Purging, _: int) -> None:
    self._order(self._point.before)


def nothing_goes(self: Purging, _: int) -> None:
    del self


TWINS = {
    "one record more": ("start", one_too_many(Purging.start)),
    "files go that are not known to be committed": ("committed", whatever_is_committed),
    "files stay": ("committed", nothing_goes),
    "what was purged is shown": ("start", lambda self: self._log.start_offset),
}


@pytest.mark.parametrize("twin", TWINS)
def test_a_known_bad_twin_is_caught(twin: str, code: Mutation) -> None:
    code.replace(Purging, *TWINS[twin])
    for seed in range(TWIN_SEEDS):
        try:
            PurgingWorld(seed).run()
        except AssertionError:
            return
    pytest.fail(f"not caught in {TWIN_SEEDS} seeds")
