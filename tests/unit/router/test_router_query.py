"""What a sink's query makes of its failures and of its end, without Spark."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from penstock.router.batches import BatchJournal
from penstock.router.core.offsets import Offsets, StreamPartition
from penstock.router.query import RESTART_MIN_S, SinkQuery, first_lines
from penstock.router.sinks import SinkContext
from tests.support.scripted_spark import (
    BEGINNING,
    BEHIND,
    BETWEEN,
    IN_WORK,
    NoRows,
    OnlyLosses,
    ScriptedQuery,
    ScriptedRouted,
    ScriptedSpark,
    plan,
)
from tests.unit.router.sink_rows import TestClock, context
from tests.unit.router.test_router_config import load
from tests.unit.router.test_router_sinks import Pigeon, PigeonConfig

PLACE = StreamPartition("logs", 0)


class Closable(Pigeon):
    """Counts how often it is closed."""

    def __init__(self, sink_context: SinkContext) -> None:
        super().__init__(PigeonConfig(type="pigeon"), sink_context)
        self.closed = 0

    @override
    def close(self) -> None:
        self.closed += 1


@dataclass
class Made:
    """A sink's query, and the Spark that runs it."""

    query: SinkQuery
    spark: ScriptedSpark
    sink: Closable
    clock: TestClock

    @property
    def spark_query(self) -> ScriptedQuery:
        return self.spark.query

    def poll(self) -> None:
        self.query.poll(as_session(self.spark))

    def fail(self) -> None:
        self.spark_query.isActive = False
        self.poll()
        assert self.query.failure


def as_session(spark: ScriptedSpark) -> Any:
    return spark


def made(
    directory: Path, *, within: SinkContext | None = None, starting: Offsets | None = None
) -> Made:
    """A query that was not polled yet."""
    within = within or context(directory)
    sink = Closable(within)
    assert isinstance(within.clock, TestClock)
    job, begun = load(directory), starting or Offsets({})
    query = SinkQuery(job, sink, within, begun, {}, routed=ScriptedRouted)
    return Made(query, ScriptedSpark(), sink, within.clock)


def test_a_query_that_finds_nothing_new_after_a_failure_is_well(tmp_path: Path) -> None:
    its = made(tmp_path)
    its.poll()
    its.fail()
    its.clock.sleep(RESTART_MIN_S)
    its.poll()
    for status in (BEGINNING, IN_WORK):
        its.spark_query.status = status
        its.poll()
        assert its.query.problem, "it has shown nothing yet"
    its.spark_query.status = BETWEEN
    its.poll()
    assert its.query.problem is None
    assert its.query.circuit.state == "closed"


def test_a_query_that_finds_nothing_new_or_does_not_run_delivers_nothing_a_second(
    tmp_path: Path,
) -> None:
    its = made(tmp_path)
    query = its.query
    its.poll()
    query.records_per_s = 55.5
    for status in (BEGINNING, IN_WORK, BEHIND):
        its.spark_query.status = status
        its.poll()
        assert query.records_per_s == 55.5, status
    its.spark_query.status = BETWEEN
    its.poll()
    assert query.records_per_s == 0
    query.records_per_s = 55.5
    its.fail()
    assert query.records_per_s == 0
    query.records_per_s = 55.5
    assert query.rest()
    assert query.records_per_s == 0


@pytest.mark.parametrize("waits", [False, True])
def test_the_end_closes_the_sink_once_in_whatever_state(tmp_path: Path, waits: bool) -> None:
    its = made(tmp_path)
    its.poll()
    if waits:
        its.fail()
    its.query.stop()
    its.query.stop()
    assert its.sink.closed == 1


def test_a_sink_whose_query_does_not_end_is_left_alone(tmp_path: Path) -> None:
    """Its thread is still in it."""
    its = made(tmp_path)
    its.poll()
    its.spark_query.hangs = True
    its.query.stop()
    assert its.sink.closed == 0


def test_an_executor_without_the_package_is_reported_with_what_to_do() -> None:
    said = "Job aborted\n  File x\nModuleNotFoundError: No module named 'penstock'\n\nDriver stack"
    assert "install it on each worker" in first_lines(said)


def test_where_the_first_batch_began_is_taken_down_and_what_brought_nothing_is_not(
    tmp_path: Path,
) -> None:
    """So that a replay of a part of it makes the whole of it again."""
    within, life = context(tmp_path), {"logs": "5f2c"}
    its = made(tmp_path, within=within, starting=Offsets({PLACE: 40}, life))
    its.poll()
    plan(within.state_dir, [Offsets({PLACE: end}, life) for end in (140, 180)])
    for batch in (0, 0, 1):
        its.spark_query.deliver(NoRows(), batch)
    assert BatchJournal(within.state_dir).ends() == [Offsets({PLACE: 40}, life)]


def test_what_is_lost_of_a_batch_is_not_told_of_as_left_out_by_routes(tmp_path: Path) -> None:
    within, life = context(tmp_path), {"logs": "5f2c"}
    its = made(tmp_path, within=within, starting=Offsets({PLACE: 40}, life))
    its.poll()
    plan(within.state_dir, [Offsets({PLACE: 140}, life)])
    its.spark_query.deliver(OnlyLosses(25), 0)
    detail = within.meter.stage("lake", received=0, lag=0).detail
    assert detail == {"left_out_lost": 25, "left_out_routing": 75}


def test_a_batch_that_is_too_large_is_told_of_by_what_can_be_done() -> None:
    said = first_lines(
        "py4j.protocol.Py4JJavaError: An error occurred while calling o1.getResult.\n"
        ": org.apache.spark.SparkException: Job aborted due to stage failure: Total size of"
        " serialized results of 1 tasks (52.0 MiB) is bigger than spark.driver.maxResultSize"
    )
    assert "size-it.md" in said
