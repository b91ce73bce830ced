"""What a sink's query makes of its failures and of its end, without Spark."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from structlog.testing import capture_logs
from typing_extensions import override

from penstock.router.checkpoint.journal import BatchJournal
from penstock.router.errors import LargerThanPlannedError, RecordTooLargeError
from penstock.router.job.config import JobConfig, Spark
from penstock.router.read.batch_sizes import LargestFrame, PlannedBytes, PlannedTask
from penstock.router.read.offsets import Offsets, StreamPartition
from penstock.router.sinks import SinkContext, TaskSink
from penstock.router.sinks.sink import WriteResult
from penstock.router.streaming.query import RESTART_MIN_S, SinkQuery, first_lines
from tests.support.scripted_spark import (
    ENDED,
    NoRows,
    NotMade,
    NotSaved,
    OnlyLosses,
    ScriptedQuery,
    ScriptedRouted,
    ScriptedSpark,
    TaskRows,
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


class NoFiles:
    """The writer of a task that gets no rows."""

    def write(self, rows: pa.RecordBatch) -> None:
        raise AssertionError("there are none")

    def close(self) -> WriteResult:
        return WriteResult()


class TakesBack(Pigeon, TaskSink):
    """Cannot publish what the first tasks of a batch have written."""

    def __init__(self, sink_context: SinkContext) -> None:
        super().__init__(PigeonConfig(type="pigeon"), sink_context)
        self.context = sink_context
        self.calls: list[str] = []
        self.cuts: list[dict[StreamPartition, tuple[int, ...]]] = []

    @override
    def begin(self) -> None:
        self.calls.append("begin")
        self.cuts.append(dict(self.context.cuts))

    @override
    def writer(self) -> NoFiles:
        self.calls.append("writer")
        return NoFiles()

    @override
    def publish(self, results: Sequence[Any]) -> bool:
        self.calls.append("publish")
        return False

    @override
    def commit(self, results: Sequence[Any]) -> None:
        self.calls.append("commit")


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


def job_in(directory: Path) -> JobConfig:
    return load(directory, work_dir=str(directory / "work"))


def made(
    directory: Path,
    *,
    within: SinkContext | None = None,
    starting: Offsets | None = None,
    memory: str = "896m",
) -> Made:
    """A query that was not polled yet, of a job with so much `spark.driver_memory`."""
    within = within or context(directory)
    sink = Closable(within)
    assert isinstance(within.clock, TestClock)
    job = job_in(directory)
    job = job.model_copy(update={"spark": Spark(driver_memory=memory)})
    query = SinkQuery(job, sink, within, starting or Offsets({}), routed=ScriptedRouted)
    return Made(query, ScriptedSpark(), sink, within.clock)


def test_a_query_that_finds_nothing_new_after_a_failure_is_well(tmp_path: Path) -> None:
    its = made(tmp_path)
    its.poll()
    its.fail()
    its.clock.sleep(RESTART_MIN_S)
    for _ in range(2):
        its.poll()
        assert its.query.problem, "it has shown nothing yet"
    its.spark_query.lastProgress = ENDED
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
    its.poll()
    assert query.records_per_s == 0, "it has delivered nothing in this run"
    plan(tmp_path / "state", [Offsets({PLACE: 9})])
    its.spark_query.deliver(NoRows(), 0)
    delivered_per_s = query.records_per_s
    assert delivered_per_s > 0
    its.clock.sleep(5)
    its.poll()
    assert query.records_per_s == delivered_per_s, "the next batch may be on its way"
    its.clock.sleep(0.1)
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
    within, stream_id = context(tmp_path), {"logs": "5f2c"}
    its = made(tmp_path, within=within, starting=Offsets({PLACE: 40}, stream_id))
    its.poll()
    plan(within.state_dir, [Offsets({PLACE: end}, stream_id) for end in (140, 180)])
    for batch in (0, 0, 1):
        its.spark_query.deliver(NoRows(), batch)
    assert [end for end, _ in BatchJournal(within.state_dir).batches()] == [
        Offsets({PLACE: 40}, stream_id)
    ]


def test_what_is_lost_of_a_batch_is_not_counted_as_left_out_by_routes(tmp_path: Path) -> None:
    within, stream_id = context(tmp_path), {"logs": "5f2c"}
    its = made(tmp_path, within=within, starting=Offsets({PLACE: 40}, stream_id))
    its.poll()
    plan(within.state_dir, [Offsets({PLACE: 140}, stream_id)])
    its.spark_query.deliver(OnlyLosses(25), 0)
    detail = within.meter.stage("lake", received=0, lag=0).detail
    assert detail == {"left_out_lost": 25, "left_out_routing": 75}


def test_a_batch_that_is_too_large_is_reported_with_what_can_be_done() -> None:
    said = first_lines(
        "py4j.protocol.Py4JJavaError: An error occurred while calling o1.getResult.\n"
        ": org.apache.spark.SparkException: Job aborted due to stage failure: Total size of"
        " serialized results of 1 tasks (52.0 MiB) is bigger than spark.driver.maxResultSize"
    )
    assert "size-it.md" in said


JAVA = """py4j.protocol.Py4JJavaError: An error occurred while calling o1569.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.ThreadUtils$.awaitResult(ThreadUtils.scala:56)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""
WORKER = """An error occurred while calling o1569.getResult.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 5.0 failed
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "tasks.py", line 9, in read_task
penstock.router.errors.DataLossError: logs/0: offsets 5 to 9 are missing from the log

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(P.scala:1)
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2844)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "tasks.py", line 9, in read_task
penstock.router.errors.DataLossError: logs/0: offsets 5 to 9 are missing from the log
"""
LOST = "DataLossError: logs/0: offsets 5 to 9 are missing from the log"
NO_SPACE = "IOException: No space left on device"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (JAVA, NO_SPACE),
        (WORKER, LOST),
        (
            "An error occurred while calling o1.start.\n: java.lang.StackOverflowError\n\tat x",
            "StackOverflowError",
        ),
        (
            "[STREAM_FAILED] Query [id = 1] terminated with exception: An exception was raised by"
            " the Python Proxy.\nTraceback (most recent call last):\n  File x\n" + JAVA,
            NO_SPACE,
        ),
        (
            "An error occurred while calling o1569.getResult",
            "An error occurred while calling o1569",
        ),
        ("", "no reason was given"),
    ],
)
def test_a_reason_is_the_root_cause_and_not_what_py4j_and_spark_wrap_it_in(
    said: str, reason: str
) -> None:
    assert first_lines(said).startswith(reason)


@pytest.mark.parametrize(("said", "reason"), [(JAVA, NO_SPACE), (WORKER, LOST)])
def test_a_query_that_spark_refuses_to_start_fails_with_the_root_cause_and_starts_later(
    tmp_path: Path, said: str, reason: str
) -> None:
    its = made(tmp_path)
    its.spark.refuses = PySparkException(said)
    its.poll()
    assert its.query.problem == reason
    assert its.query.circuit.state == "open"
    its.spark.refuses = None
    its.clock.sleep(RESTART_MIN_S)
    its.poll()
    assert len(its.spark.queries) == 1


@pytest.mark.parametrize(("said", "reason"), [(JAVA, NO_SPACE), (WORKER, LOST)])
def test_a_query_that_failed_is_reported_with_the_root_cause(
    tmp_path: Path, said: str, reason: str
) -> None:
    """Be it planning, a task, collecting or a sink that failed: Spark's text has them all."""
    its = made(tmp_path)
    its.poll()
    its.spark_query.error = PySparkException(said)
    its.fail()
    assert its.query.problem == reason


LIFE = {"logs": "5f2c"}
MIB = 1024 * 1024


def planned(directory: Path, size: int, largest: LargestFrame | None = None) -> None:
    """As the source has planned the first batch."""
    planned = PlannedBytes({PLACE: 140}, size, largest is not None, largest)
    planned.write(context(directory).state_dir / "plan.json")


def begun(directory: Path) -> tuple[Made, Path]:
    """A query whose first batch is planned, and where Spark has that."""
    within = context(directory)
    its = made(directory, within=within, starting=Offsets({PLACE: 40}, LIFE))
    its.poll()
    plan(within.state_dir, [Offsets({PLACE: 140}, LIFE)])
    return its, within.state_dir / "spark" / "offsets" / "0"


def test_a_batch_that_turns_out_larger_is_planned_again_with_every_frame_measured(
    tmp_path: Path,
) -> None:
    its, offsets = begun(tmp_path)
    planned(tmp_path, MIB)
    assert its.spark.options["measureSizes"] == "false"
    with pytest.raises(PySparkException):
        its.spark_query.deliver(NotMade(PySparkException("x.LargerThanPlannedError: 9")), 0)
    its.spark_query.isActive = False
    its.poll()
    assert its.query.problem is None
    its.poll()
    assert its.spark.options["measureSizes"] == "true"
    assert not offsets.exists()


def test_a_batch_that_a_sink_may_have_in_part_stays_as_it_was_planned(tmp_path: Path) -> None:
    its, offsets = begun(tmp_path)
    BatchJournal(offsets.parents[2]).note(Offsets({PLACE: 140}, LIFE))
    its.query.stop()
    its, offsets = begun(tmp_path)
    planned(tmp_path, 900 * MIB)
    with pytest.raises(LargerThanPlannedError):
        its.spark_query.deliver(NoRows(), 0)
    its.spark_query.isActive = False
    its.poll()
    its.poll()
    assert its.spark.options["measureSizes"] == "true"
    assert offsets.exists()
    planned(tmp_path, 900 * MIB, LargestFrame("logs", 0, 41, 42, 10 * MIB))
    with pytest.raises(RecordTooLargeError, match=r"a batch of 943\.7 MB was begun"):
        its.spark_query.deliver(NoRows(), 0)


def test_a_record_that_is_too_large_is_reported_once_and_looked_at_again(tmp_path: Path) -> None:
    its, offsets = begun(tmp_path)
    with capture_logs() as logs:
        for _ in range(3):
            planned(tmp_path, 900 * MIB, LargestFrame("logs", 0, 41, 42, 900 * MIB))
            with pytest.raises(RecordTooLargeError):
                its.spark_query.deliver(NoRows(), 0)
            its.spark_query.isActive = False
            its.poll()
            problem = its.query.problem
            assert problem is not None
            assert problem.startswith("the record at logs/0 offset 41 has 943.7 MB")
            its.clock.sleep(60)
            its.poll()
    assert [it["event"] for it in logs].count("query_failed") == 1
    assert offsets.exists()


def test_a_batch_is_bounded_by_what_the_heap_has_room_for(tmp_path: Path) -> None:
    for memory, most in {"896m": 64, "640m": 43, "512m": 32}.items():
        directory = tmp_path / memory
        directory.mkdir()
        its = made(directory, memory=memory)
        its.poll()
        assert int(its.spark.options["maxBytesPerTrigger"]) // MIB == most


class Slow(NoRows):
    """A batch that takes 12.5 s to be made; notes what status says of its age meanwhile."""

    def __init__(self, its: Made, error: Exception | None = None) -> None:
        self._its = its
        self._error = error
        self.ages: list[float | None] = []

    @override
    def toArrow(self) -> Any:
        for seconds in (0, 2, 10.5):
            self._its.clock.sleep(seconds)
            self.ages.append(age(self._its))
        if self._error is not None:
            raise self._error
        return super().toArrow()


def age(its: Made) -> float | None:
    return its.query.batch_s(its.clock.monotonic_ns())


def test_the_age_of_a_batch_grows_while_it_is_in_work_and_there_is_none_between_batches(
    tmp_path: Path,
) -> None:
    its, _ = begun(tmp_path)
    its.clock.sleep(60)
    assert age(its) is None
    batch = Slow(its)
    its.spark_query.deliver(batch, 0)
    assert batch.ages == [0, 2, 12.5]
    assert age(its) is None
    failed = Slow(its, PySparkException("no executor"))
    with pytest.raises(PySparkException):
        its.spark_query.deliver(failed, 0)
    assert failed.ages == [0, 2, 12.5]
    assert age(its) is None


def test_a_query_does_not_end_between_a_batch_and_the_note_that_it_is_done(tmp_path: Path) -> None:
    """The batch would come again, and a sink that knows no record has it twice."""
    its = made(tmp_path)
    its.poll()
    plan(tmp_path / "state", [Offsets({PLACE: 9})])
    writes = [its.query.writes]
    its.spark_query.give(NoRows(), 0)
    writes.append(its.query.writes)
    ended = [its.query.halt()]
    its.query.go_on()
    ended += [its.query.rest(), not its.spark_query.isActive]
    its.spark_query.note_done(0)
    writes.append(its.query.writes)
    assert writes == [False, True, False]
    assert ended == [False, False, False]
    assert its.query.rest()
    assert not its.spark_query.isActive


def test_a_query_that_failed_before_its_note_is_not_waited_for(tmp_path: Path) -> None:
    its = made(tmp_path)
    its.poll()
    plan(tmp_path / "state", [Offsets({PLACE: 9})])
    its.spark_query.give(NoRows(), 0)
    its.spark_query.isActive = False
    assert not its.query.writes
    assert its.query.rest()


def test_tasks_whose_files_cannot_be_published_run_once_more(tmp_path: Path) -> None:
    within, spark = context(tmp_path), ScriptedSpark()
    sink = TakesBack(within)
    query = SinkQuery(job_in(tmp_path), sink, within, Offsets({}), routed=ScriptedRouted)
    query.poll(as_session(spark))
    plan(within.state_dir, [Offsets({PLACE: 9})])
    spark.query.deliver(TaskRows(), 0)
    assert sink.calls == ["begin", "writer", "publish", "begin", "writer", "commit"]
    assert query.received == 9


def test_a_sink_whose_tasks_write_is_given_the_offsets_at_which_they_cut_the_batch(
    tmp_path: Path,
) -> None:
    """Also where the batch comes again in other tasks, for the first ones were too large."""
    within, spark = context(tmp_path), ScriptedSpark()
    sink = TakesBack(within)
    query = SinkQuery(job_in(tmp_path), sink, within, Offsets({}), routed=ScriptedRouted)
    query.poll(as_session(spark))
    plan(within.state_dir, [Offsets({PLACE: 9})])
    for cuts in ([0, 5, 9], [0, 3, 6, 9]):
        tasks = tuple(PlannedTask(*PLACE, begin, end, 1) for begin, end in pairwise(cuts))
        PlannedBytes({PLACE: 9}, 2, False, None, tasks).write(within.state_dir / "plan.json")
        spark.query.deliver(TaskRows(), 0)
    again, other = {PLACE: (5,)}, {PLACE: (3, 6)}
    assert sink.cuts == [again, again, other, other], "a batch begins twice, for it is taken back"


class Sends(TakesBack):
    """Its destination has what tasks send."""

    publishes_in_tasks = True

    @override
    def publish(self, results: Sequence[Any]) -> bool:
        return True


def test_a_batch_that_may_be_there_in_part_is_cut_as_its_first_tasks_had_it(
    tmp_path: Path,
) -> None:
    """For as long as it comes again, whatever tasks it has then, and by a replay, too."""
    within = context(tmp_path)
    plan(within.state_dir, [Offsets({PLACE: 9}), Offsets({PLACE: 12})])
    seen = []
    for cuts in ([0, 5, 9], [0, 3, 6, 9], [0, 2, 9], [0, 5, 9]):
        spark, sink = ScriptedSpark(), Sends(within)
        query = SinkQuery(job_in(tmp_path), sink, within, Offsets({}), routed=ScriptedRouted)
        query.poll(as_session(spark))
        tasks = tuple(PlannedTask(*PLACE, begin, end, 1) for begin, end in pairwise(cuts))
        PlannedBytes({PLACE: 9}, 2, False, None, tasks).write(within.state_dir / "plan.json")
        batch = NotSaved()
        with pytest.raises(PySparkException):
            spark.query.give(batch, 0)
        seen.append((*sink.cuts, "writer" in sink.calls))
    first = {PLACE: (5,)}
    assert seen == [(first, True), (first, False), (first, False), (first, True)]
    assert BatchJournal(within.state_dir).cuts_of(Offsets({PLACE: 9})) == first


def test_a_sink_that_keeps_the_order_has_each_partition_read_by_one_task(tmp_path: Path) -> None:
    within, spark = context(tmp_path), ScriptedSpark()
    sink = TakesBack(within)
    sink.keeps_order = True
    query = SinkQuery(job_in(tmp_path), sink, within, Offsets({}), routed=ScriptedRouted)
    query.poll(as_session(spark))
    assert spark.options["wholePartitions"] == "true"
