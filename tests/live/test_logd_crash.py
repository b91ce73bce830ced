"""kill -9 under load, a few times: what was acked is there, in order, once, byte for byte.

`make soak` is the same for as long as one likes; see `tests/soak`.
"""

from pathlib import Path

import pytest

from tests.soak.soak import Soak

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

RUNS = 3


async def test_nothing_acked_is_lost_repeated_or_changed_by_kills(tmp_path: Path) -> None:
    figures = await Soak(tmp_path, runs=RUNS, seed=7, stopped_s=0.5, rare=0.3).run()
    assert figures.events["kill -9"] == RUNS
    assert figures.events["offline: sound"] == 1
    assert figures.exits["logd -9"] >= RUNS
    acked = [count for kind, count in figures.publishers.items() if kind.startswith("acked")]
    assert len(acked) == 4, "every kind of publisher got acks"
    assert figures.publishers["repeats known"]
    assert figures.records["read"] > 1000
    assert figures.records["acked"] == sum(
        count for kind, count in figures.records.items() if kind.startswith("acked, ")
    )
    assert figures.upkeep["records compacted away"]
    assert figures.upkeep["segments deleted by retention"]
    assert not [event for event in figures.upkeep if event.startswith("complaint")]
