"""What a cluster is put through, with real processes on a network that the test cuts.

Numbers are those of the failure scenarios in `tests/nemesis/README.md`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.logd.errors import RefusedError, UnavailableError
from tests.nemesis.cluster import Arena, arena
from tests.nemesis.load import Load
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Arena]:
    with arena(tmp_path) as made:
        yield made


def judged(ring: Arena, load: Load) -> None:
    """Nothing that was promised is broken."""
    verdict = ring.settle(load, "s")["s"]
    assert verdict.sound, "\n".join(verdict.told)
    assert verdict.counts["kept"] == 3 * verdict.counts["acked"] > 0


def test_leader_is_killed_under_load(ring: Arena) -> None:
    """Scenario 1: kill -9 of the leader under load; another one takes over, nothing is lost."""
    with ring.load("s") as load:
        load.goes_on()
        ring.kill(ring.cluster.leader("s"))
        load.goes_on()
        judged(ring, load)


def test_a_node_that_knows_nothing_says_so(ring: Arena) -> None:
    """Scenario 26: a node without a majority cannot know what there is, and does not guess."""
    ring.cluster.create("s", "soak.s.>")
    ring.kill(*ring.names)
    ring.start("a")
    with ring.cluster.nodes["a"].client() as log:
        for ask in (lambda: log.stream("s"), log.streams, lambda: log.match("soak.s.x")):
            assert wait_until(lambda ask=ask: _refusal(ask)) == "UNAVAILABLE"  # type: ignore[misc]


def _refusal(ask: Callable[[], object]) -> str:
    """How a question is refused; empty while nobody answers."""
    try:
        return f"answered: {ask()}"
    except RefusedError as error:
        return error.code
    except UnavailableError:
        return ""
