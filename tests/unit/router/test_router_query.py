"""What a sink's query makes of its failures and of its end, without Spark."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from typing_extensions import override

from penstock.router.batches import BatchJournal
from penstock.router.carried import CARRIED, pack_lost
from penstock.router.core.offsets import Offsets, StreamPartition
from penstock.router.core.restarts import FIRST_PAUSE_S
from penstock.router.feed import ROUTE_COLUMN
from penstock.router.query import SinkQuery, first_lines
from penstock.router.sinks import SinkContext
from tests.unit.router.sink_rows import TestClock, context
from tests.unit.router.test_router_config import load
from tests.unit.router.test_router_sinks import Pigeon, PigeonConfig

BETWEEN = {
    "isTriggerActive": False, "isDataAvailable": False, "message": "Waiting for data to arrive",
}  # fmt: skip
BEHIND = BETWEEN | {"isDataAvailable": True, "message": "Waiting for next trigger"}
BEGINNING = BETWEEN | {"message": "Initializing sources"}
IN_WORK = {"isTriggerActive": True, "isDataAvailable": True, "message": "Processing new data"}
SPARK: Any = None
PLACE = StreamPartition("logs", 0)


class Closable(Pigeon):
    """Counts how often it is closed."""

    def __init__(self, sink_context: SinkContext) -> None:
        super().__init__(PigeonConfig(type="pigeon"), sink_context)
        self.closed = 0

    @override
    def close(self) -> None:
        self.closed += 1


class SparkQuery:
    """A streaming query as Spark shows it."""

    def __init__(self) -> None:
        self.isActive = True
        self.status: dict[str, Any] = BEGINNING
        self.hangs = False

    def exception(self) -> None:
        """Nothing is known of why it ended."""

    def stop(self) -> None:
        """End it."""
        if self.hangs:
            raise Py4JError("it does not")
        self.isActive = False


class Started(SinkQuery):
    """Whose queries are no Spark's."""

    @override
    def _start(self, spark: Any) -> None:
        self._query = SparkQuery()


def made(directory: Path) -> tuple[Started, Closable, TestClock]:
    within = context(directory)
    sink = Closable(within)
    assert isinstance(within.clock, TestClock)
    return Started(load(directory), sink, within, Offsets({}), {}), sink, within.clock


def failed(query: Started) -> None:
    query._query.isActive = False
    query.poll(SPARK)
    assert query.failure


def test_a_query_that_finds_nothing_new_after_a_failure_is_well(tmp_path: Path) -> None:
    query, _, clock = made(tmp_path)
    query.poll(SPARK)
    failed(query)
    clock.sleep(FIRST_PAUSE_S)
    query.poll(SPARK)
    for status in (BEGINNING, IN_WORK):
        query._query.status = status
        query.poll(SPARK)
        assert query.problem, "it has shown nothing yet"
    query._query.status = BETWEEN
    query.poll(SPARK)
    assert query.problem is None
    assert query.circuit.state == "closed"


def test_a_query_that_finds_nothing_new_or_does_not_run_delivers_nothing_a_second(
    tmp_path: Path,
) -> None:
    query, _, _ = made(tmp_path)
    query.poll(SPARK)
    query.records_per_s = 55.5
    for status in (BEGINNING, IN_WORK, BEHIND):
        query._query.status = status
        query.poll(SPARK)
        assert query.records_per_s == 55.5, status
    query._query.status = BETWEEN
    query.poll(SPARK)
    assert query.records_per_s == 0
    query.records_per_s = 55.5
    failed(query)
    assert query.records_per_s == 0
    query.records_per_s = 55.5
    assert query.rest()
    assert query.records_per_s == 0


@pytest.mark.parametrize("waits", [False, True])
def test_the_end_closes_the_sink_once_in_whatever_state(tmp_path: Path, waits: bool) -> None:
    query, sink, _ = made(tmp_path)
    query.poll(SPARK)
    if waits:
        failed(query)
    query.stop()
    query.stop()
    assert sink.closed == 1


def test_a_sink_whose_query_does_not_end_is_left_alone(tmp_path: Path) -> None:
    """Its thread is still in it."""
    query, sink, _ = made(tmp_path)
    query.poll(SPARK)
    query._query.hangs = True
    query.stop()
    assert sink.closed == 0


def test_an_executor_without_the_package_is_reported_with_what_to_do() -> None:
    said = "Job aborted\n  File x\nModuleNotFoundError: No module named 'penstock'\n\nDriver stack"
    assert "install it on each worker" in first_lines(said)


class NoRows:
    """A batch of which no row is for the sink, as Spark shows it."""

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        fields = [(CARRIED, pa.binary()), (ROUTE_COLUMN, pa.int32())]
        return pa.schema(fields).empty_table()


def test_where_the_first_batch_began_is_taken_down_and_what_brought_nothing_is_not(
    tmp_path: Path,
) -> None:
    """So that a replay of a part of it makes the whole of it again."""
    within, life = context(tmp_path), {"logs": "5f2c"}
    offsets = within.state_dir / "spark" / "offsets"
    offsets.mkdir(parents=True)
    for batch, end in enumerate((140, 180)):
        position = json.dumps(Offsets({PLACE: end}, life).to_json())
        (offsets / str(batch)).write_text(f"v1\n{{}}\n{position}")
    query = Started(load(tmp_path), Closable(within), within, Offsets({PLACE: 40}, life), {})
    for batch in (0, 0, 1):
        frame: Any = NoRows()
        query._deliver(frame, batch)
    assert BatchJournal(within.state_dir).ends() == [Offsets({PLACE: 40}, life)]


class OnlyLosses(NoRows):
    """A batch of which some offsets are lost, and the rest is for no sink."""

    @override
    def toArrow(self) -> pa.Table:
        packed = pa.Table.from_batches([pack_lost(25, pa.schema([]))])
        return packed.append_column(ROUTE_COLUMN, pa.array([None], pa.int32()))


def test_what_is_lost_of_a_batch_is_not_told_of_as_left_out_by_routes(tmp_path: Path) -> None:
    within, life = context(tmp_path), {"logs": "5f2c"}
    offsets = within.state_dir / "spark" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text(f"v1\n{{}}\n{json.dumps(Offsets({PLACE: 140}, life).to_json())}")
    query = Started(load(tmp_path), Closable(within), within, Offsets({PLACE: 40}, life), {})
    frame: Any = OnlyLosses()
    query._deliver(frame, 0)
    detail = within.meter.stage("lake", received=0, lag=0).detail
    assert detail == {"left_out_lost": 25, "left_out_routing": 75}


def test_a_batch_that_is_too_large_is_told_of_by_what_can_be_done() -> None:
    said = first_lines(
        "py4j.protocol.Py4JJavaError: An error occurred while calling o1.getResult.\n"
        ": org.apache.spark.SparkException: Job aborted due to stage failure: Total size of"
        " serialized results of 1 tasks (52.0 MiB) is bigger than spark.driver.maxResultSize"
    )
    assert "size-it.md" in said
