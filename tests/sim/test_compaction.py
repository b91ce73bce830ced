"""Compaction by keys loses no last value, whatever happens; one that cuts corners is found out.

`PENSTOCK_SIM_SEEDS` sets how many seeds run, `PENSTOCK_SIM_SEED` the first of them.
"""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from penstock.logd.compaction import cleaner
from penstock.logd.compaction.cleaner import Cleaner
from penstock.logd.compaction.policy import CleanState, KeyMap
from penstock.logd.compaction.scheduler import CompactionScheduler
from penstock.logd.errors import LogdError
from tests.sim.compaction_world import run_seed
from tests.sim.twins import Mutation

SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "200"))
FIRST_SEED = int(os.environ.get("PENSTOCK_SIM_SEED", "0"))
pytestmark = pytest.mark.timeout(240)
TWIN_SEEDS = 150
"""Within so many seeds one that cuts a corner must be caught."""


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """Thousands of passes say more than anybody reads."""
    before = structlog.get_config()
    structlog.configure(processors=[_drop])
    yield
    structlog.configure(**before)


def test_compaction_keeps_the_last_value_of_each_key() -> None:
    counts: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        counts.update(run_seed(seed))
    if SEEDS >= 200:
        rare = {"power loss", "failed", "cut", "clean", "removed", "delete"}
        assert {what for what in rare if counts[what] < 10} == set(), counts


def _drop(*_: Any) -> Any:
    raise structlog.DropEvent


def is_caught() -> bool:
    for seed in range(TWIN_SEEDS):
        try:
            run_seed(seed)
        except (AssertionError, OSError, LogdError):
            return True
    return False


def test_simulation_catches_compaction_above_the_high_watermark(code: Mutation) -> None:
    def init_blindly(really: Any, *args: Any, **options: Any) -> None:
        really(*args, **options | {"high_watermark": lambda: 1 << 40})

    code.wrap(CompactionScheduler, "__init__", init_blindly)
    assert is_caught()


def test_simulation_catches_tombstones_that_go_at_once(code: Mutation) -> None:
    code.replace(CleanState, "tombstone_limit", lambda state, *_: state.clean_offset)
    assert is_caught()


def test_simulation_catches_tombstones_that_go_before_what_they_remove(code: Mutation) -> None:
    """A pass that memory cut short is taken for a whole one."""

    def run_and_claim(really: Any, self: Any, segments: Any, pace: Any) -> None:
        really(self, segments, pace)
        end = segments[-1].next_offset
        self._save(CleanState(end, 1, ((end, 1),)))

    code.wrap(Cleaner, "run", run_and_claim)
    assert is_caught()


def test_simulation_catches_the_first_record_kept_instead_of_the_last(code: Mutation) -> None:
    def inverted(really: Any, keys: KeyMap, key: bytes | None, offset: int) -> bool:
        return key is not None and not really(keys, key, offset) and offset % 3 == 0

    code.wrap(KeyMap, "is_superseded", inverted)
    assert is_caught()


def test_simulation_catches_keyless_records_taken_for_one_key(code: Mutation) -> None:
    def all_keyed(really: Any, keys: KeyMap, key: bytes | None, offset: int) -> bool:
        return bool(really(keys, key or b"0", offset))

    code.wrap(KeyMap, "is_superseded", all_keyed)
    code.replace(cleaner, "_chooser", lambda keys, _: _choose_by(keys))
    assert is_caught()


def _choose_by(keys: KeyMap) -> Any:
    def choose(header: Any, batch: Any) -> list[bool]:
        deltas = batch.column("offset_delta").to_pylist()
        return [
            not keys.is_superseded(key, header.base_offset + delta)
            for key, delta in zip(batch.column("key").to_pylist(), deltas, strict=True)
        ]

    return choose


def test_simulation_catches_a_pass_that_never_ends(code: Mutation) -> None:
    code.replace(Cleaner, "is_due", lambda *_: True)
    assert is_caught()
