"""Places at which a test ends the process."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.collector import failpoints

HOME = Path(failpoints.__file__).parent


def test_nothing_happens_unless_asked() -> None:
    assert failpoints.passed is failpoints.arm("")
    for name in failpoints.NAMES:
        failpoints.passed(name)


PASSAGES = """
from penstock.collector.failpoints import passed
for name in ("drain_begun", "drain_ended", "drain_ended", "drain_begun", "drain_begun"):
    print(name, flush=True)
    passed(name)
"""


def test_the_nth_passage_ends_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PASSAGES], env=os.environ | {failpoints.VARIABLE: "drain_begun:2"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == ["drain_begun", "drain_ended", "drain_ended", "drain_begun"]


@pytest.mark.parametrize("setting", ["nowhere:1", "drain_begun", "drain_begun:soon"])
def test_a_place_that_is_none_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=r"none of|invalid literal"):
        failpoints.arm(setting)


def test_every_place_is_somewhere_in_the_source() -> None:
    source = "".join(path.read_text() for path in HOME.rglob("*.py") if path.stem != "failpoints")
    found = set(re.findall(r'passed\("(\w+)"\)', source))
    for step in re.findall(r'passed\(f"\{[\w.]+\}_(\w+)"\)', source):
        found |= {f"{name}_{step}" for name in ("spool", "spool-urgent", "quarantine")}
    assert set(failpoints.NAMES) <= found
