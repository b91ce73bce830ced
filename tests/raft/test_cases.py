"""Penstock's Raft core against the public cases of `tests/raft/cases`.

`pytest tests/raft --rewrite-cases` writes what comes of the commands now into the files.
"""

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typing_extensions import override

from penstock.logd.raft import Effect, Entry, Event, Raft, RaftConfig, Recovered
from tests.raft.script import RaftUnderTest, run_case

CASES = sorted((Path(__file__).parent / "cases").glob("*.txt"))


class Longest(Random):
    """Draws the most of every range, so that the cases say when a timeout passes."""

    @override
    def randint(self, a: int, b: int) -> int:
        return b


class PenstockRaft:
    """The core behind the interface of the cases."""

    def __init__(self, config: RaftConfig, recovered: Recovered) -> None:
        self._raft = Raft(config, recovered, Longest(0))

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        return self._raft.handle(event, now_ns)

    def next_deadline_ns(self) -> int | None:
        return self._raft.next_deadline_ns()

    def status(self) -> dict[str, Any]:
        raft = self._raft
        membership = raft.memberships.current
        return {
            "role": type(raft.role).__name__.lower(),
            "term": raft.term,
            "vote": raft.vote,
            "leader": raft.leader,
            "last": raft.log.last_index,
            "commit": raft.log.committed,
            "voters": sorted(membership.voters),
            "learners": sorted(membership.learners),
        }

    def entries(self) -> Iterable[Entry]:
        log = self._raft.log
        return log.entries_from(log.base_index + 1, 1 << 40)


def make_raft(config: RaftConfig, recovered: Recovered) -> RaftUnderTest:
    return PenstockRaft(config, recovered)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path: Path, request: pytest.FixtureRequest) -> None:
    printed = run_case(path, make_raft)
    if request.config.getoption("--rewrite-cases", default=False):
        path.write_text(printed)
    assert printed == path.read_text()


def test_there_are_cases() -> None:
    assert len(CASES) >= 8
