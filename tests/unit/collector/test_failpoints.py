"""Places at which a test ends the process."""

import os
import re
from pathlib import Path

import pytest

from penstock.collector import failpoints

HOME = Path(failpoints.__file__).parent


def test_nothing_happens_unless_asked() -> None:
    assert failpoints.passed is failpoints.arm("")
    for name in failpoints.NAMES:
        failpoints.passed(name)


def test_the_nth_passage_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    passed = failpoints.arm("drain_begun:2")
    for name in ("drain_begun", "drain_ended", "drain_ended"):
        passed(name)
    assert killed == []
    passed("drain_begun")
    passed("drain_begun")
    assert killed == [(os.getpid(), 9)]


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
