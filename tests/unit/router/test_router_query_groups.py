"""How queries that run are ended and start again as one that reads for all of their sinks."""

from typing import TYPE_CHECKING, Any, cast

from penstock.router.read.offsets import Offsets, StreamPartition
from penstock.router.streaming.group_rules import Candidate
from penstock.router.streaming.query_groups import GATHERING_S_MAX, QueryGroups
from tests.unit.router.sink_rows import TestClock

if TYPE_CHECKING:
    from penstock.router.streaming.query import SinkQuery

AT = Offsets({StreamPartition("logs", 0): 5}, {"logs": "5f2c"})


class StandIn:
    """A query as `QueryGroups` sees it.

    Attributes:
        is_busy: Whether a batch is in work, so that it cannot end yet.
        runs: Whether its own query runs.
        leads: Names of the sinks that it reads for.
        started: How often its own query was started.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_busy = False
        self.runs = False
        self.is_to_rest = False
        self.leader: StandIn | None = None
        self.leads: list[StandIn] = []
        self.started = 0

    def is_due(self, _: int) -> bool:
        return not self.runs and self.leader is None and not self.is_to_rest

    def may_share(self, _: int) -> bool:
        return True

    def may_gather(self, _: int) -> bool:
        return self.runs

    def candidate(self) -> Candidate:
        return Candidate(self.name, AT)

    def halt(self) -> bool:
        self.is_to_rest = True
        if not self.runs or self.is_busy:
            return False
        self.runs = self.is_to_rest = False
        for other in self.leads:
            other.leader = None
        self.leads = []
        return True

    def go_on(self) -> None:
        self.is_to_rest = False

    def lead(self, spark: object, others: "list[StandIn]") -> None:
        assert self.is_due(0)
        assert all(it.is_due(0) for it in others)
        self.runs, self.leads = True, others
        self.started += 1
        for other in others:
            other.leader = self

    def poll(self, _: object) -> None:
        if self.is_due(0):
            self.lead(None, [])


class Scene:
    """Queries that each read for one sink, as if they had failed apart."""

    def __init__(self, *names: str) -> None:
        self.queries = [StandIn(name) for name in names]
        self.clock = TestClock()
        self._groups = QueryGroups(cast("list[SinkQuery]", self.queries), 100, self.clock)
        for query in self.queries:
            query.poll(None)

    def poll(self, after_s: float = 0.5) -> None:
        spark: Any = None
        self._groups.poll(spark)
        self.clock.sleep(after_s)

    def together(self) -> list[list[str]]:
        return [[it.name, *(other.name for other in it.leads)] for it in self.queries if it.runs]


def test_a_query_that_ends_first_waits_for_the_others_and_all_start_as_one() -> None:
    scene = Scene("a", "b", "c")
    scene.queries[1].is_busy = scene.queries[2].is_busy = True
    scene.poll()
    scene.poll()
    assert scene.together() == [["b"], ["c"]], "a has ended, and starts with the others"
    scene.queries[2].is_busy = False
    scene.poll()
    assert scene.together() == [["b"]]
    scene.queries[1].is_busy = False
    scene.poll()
    assert scene.together() == [["a", "b", "c"]]
    assert [it.started for it in scene.queries] == [2, 1, 1]


def test_what_a_query_has_read_for_waits_with_it() -> None:
    scene = Scene("a", "b", "c")
    first, second, third = scene.queries
    second.halt()
    first.halt()
    first.lead(None, [second])
    third.is_busy = True
    scene.poll()
    scene.poll()
    assert scene.together() == [["c"]]
    third.is_busy = False
    scene.poll()
    assert scene.together() == [["a", "b", "c"]]


def test_a_query_that_does_not_end_goes_on_and_the_others_start_without_it() -> None:
    scene = Scene("a", "b", "c")
    scene.queries[2].is_busy = True
    scene.poll(GATHERING_S_MAX)
    scene.poll()
    scene.poll()
    assert scene.together() == [["a", "b"], ["c"]]
    assert not scene.queries[2].is_to_rest
