"""A few runs of `make crash`: kills at random, at named places and while the collector recovers."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.logd.storage import DirectoryLock

pytestmark = [pytest.mark.live, pytest.mark.timeout(1200)]

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("spool_after_sync", "recovery_before_checkpoint")


def crash(directory: Path, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    """Its exit code, what it said, and its summary."""
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "tests.harness", "crash", "--dir", str(directory)),
            *("--failpoint-wait-s", "120", *arguments),
        ],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=1100,
    )  # fmt: skip
    said = ended.stdout + ended.stderr
    begin, end = said.find("\n{") + 1, said.find("\n}") + 2
    assert 0 < begin < end, said[-5000:]
    return ended.returncode, said, json.loads(said[begin:end])


def test_what_was_promised_survives_kills(tmp_path: Path) -> None:
    code, said, summary = crash(
        tmp_path, "--runs", "5", "--seed", "1", "--failpoints", ",".join(PLACES)
    )
    assert (code, summary["broken"]) == (0, []), said[-5000:]
    counts = summary["counts"]
    fired = {kind for kind in counts if kind.startswith("fired: ")}
    assert fired == {f"fired: {name}" for name in PLACES}
    assert (counts["runs judged"], counts["kill -9 while starting"]) == (5, 1)
    assert counts["promised"] > 100, "the senders had their say"
    assert "seed 1" in said
    assert list(tmp_path.iterdir()) == [], "nothing is left of what went well"


def test_a_collector_that_acknowledges_too_early_is_found_out(tmp_path: Path) -> None:
    options = ("--runs", "5", "--seed", "1", "--failpoints", "spool_before_write,spool_before_sync")
    code, said, summary = crash(tmp_path, *options, "--twin", "acks-early")
    assert code == 1, said[-5000:]
    assert any("acknowledged and gone" in line for line in summary["broken"])
    (left,) = tmp_path.iterdir()
    assert (left / "round-1" / "collector" / "data" / "checkpoint").exists(), "to be looked at"
    DirectoryLock(left / "round-1" / "collector" / "data").release()  # nobody runs on it any more
