"""kill -9 under load, a few times: what was acked is there, in order, once, byte for byte.

`make soak` is the same for as long as one likes; see `tests/harness/plans/soak.py`.
"""

from pathlib import Path

import pytest

from tests.harness.__main__ import run_plan

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

RUNS = 3


def test_nothing_acked_is_lost_repeated_or_changed_by_kills(tmp_path: Path) -> None:
    options = ["--runs", str(RUNS), "--seed", "7", "--frozen", "0.5", "--rare", "0.3"]
    report = run_plan(["soak", *options], tmp_path)
    counts = report.counts
    assert report.broken == []
    assert (report.runs, counts["kill -9"]) == (RUNS, RUNS)
    assert counts["offline: sound"] == 1
    assert counts["exit: logd -9"] >= RUNS
    acked = [kind for kind in counts if kind.startswith("publishers: acked")]
    assert len(acked) == 4, "every kind of publisher got acks"
    assert counts["publishers: repeats known"]
    assert counts["read"] > 1000
    assert counts["acked"] == sum(n for kind, n in counts.items() if kind.startswith("acked, "))
    assert counts["records compacted away"]
    assert counts["segments deleted by retention"]
    assert not [kind for kind in counts if kind.startswith("complaint")]
