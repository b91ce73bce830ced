"""A batch that one query reads for several sinks: each has its own part, and its own end."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from typing_extensions import override

from penstock.router.checkpoint.local import committed_offsets, offsets_in_work
from penstock.router.errors import StoppedError
from penstock.router.job.routes import SharedRoutes
from penstock.router.meter import Meter
from penstock.router.read.batch_sizes import PlannedBytes, PlannedTask
from penstock.router.read.offsets import Offsets, StreamPartition
from penstock.router.sinks import SinkContext, TaskSink
from penstock.router.sinks.sink import WriteResult
from penstock.router.spark.heap_budget import HeapBudget
from penstock.router.streaming.batches import SinkBatches
from penstock.router.streaming.group import Group, Left, PartFailedError
from tests.support.scripted_spark import ScriptedRouted, TaskRows, plan
from tests.support.waiting import wait_until
from tests.unit.router.sink_rows import TestClock
from tests.unit.router.test_router_config import load
from tests.unit.router.test_router_sinks import Pigeon, PigeonConfig

LOGS = StreamPartition("logs", 0)
LIFE = {"logs": "5f2c19aa00000000"}
NAMES = ("lake", "second", "third")


class Fails:
    """A writer that cannot write."""

    def write(self, rows: pa.RecordBatch) -> None:
        raise AssertionError("there are none")

    def close(self) -> WriteResult:
        raise OSError("no space left on device")


class Nothing(Fails):
    """A writer without rows."""

    @override
    def close(self) -> WriteResult:
        return WriteResult()


class Scripted(Pigeon, TaskSink):
    """Does at each step of a batch what a test says.

    Attributes:
        at: What is done, by the step.
    """

    def __init__(self, context: SinkContext) -> None:
        super().__init__(PigeonConfig(type="pigeon"), context)
        self.context = context
        self.at: dict[str, Callable[[], object]] = {}
        self.made: Fails = Nothing()

    @override
    def begin(self) -> None:
        self.at.get("begin", bool)()

    @override
    def writer(self) -> Fails:
        return self.made

    @override
    def publish(self, results: Sequence[Any]) -> bool:
        return self.at.get("publish", lambda: True)() is not False

    @override
    def commit(self, results: Sequence[Any]) -> None:
        self.at.get("commit", bool)()


class NotRead(TaskRows):
    """A batch that cannot be read."""

    @override
    def save(self) -> None:
        raise PySparkException("the log is away")


class Run:
    """Three sinks that read together, each at offset 5, and a batch up to 9."""

    def __init__(self, directory: Path) -> None:
        self.job = load(
            directory,
            work_dir=str(directory / "work"),
            sinks={name: {"type": "parquet", "path": str(directory / name)} for name in NAMES},
            routes=[{"name": "all", "sinks": list(NAMES)}],
        )
        self.left: list[Left] = []
        budget = HeapBudget(self.job.spark)
        self.sinks = {name: Scripted(self.context(directory, name)) for name in NAMES}
        self.batches = {
            name: SinkBatches(
                self.job, sink, sink.context, Offsets({LOGS: 0}, LIFE), budget,
                routed=ScriptedRouted,
            )
            for name, sink in self.sinks.items()
        }  # fmt: skip
        for name in NAMES:
            self.is_at(name, 5)
        routes = SharedRoutes(self.job, {it.name: it.columns for it in self.batches.values()})
        self.group = Group(
            list(self.batches.values()), routes, budget, directory / "tasks", self.left.append, 1.0
        )

    def context(self, directory: Path, name: str) -> SinkContext:
        state_dir = directory / "checkpoint" / name
        state_dir.mkdir(parents=True)
        return SinkContext(
            job="job", sink=name, stream_ids=dict(LIFE), state_dir=state_dir,
            dead_letters=directory / "dead", meter=Meter(), stop=threading.Event(),
            clock=TestClock(),
        )  # fmt: skip

    def is_at(self, name: str, offset: int) -> None:
        plan(self.state_dir(name), [Offsets({LOGS: offset}, LIFE)])
        commits = self.state_dir(name) / "spark" / "commits"
        commits.mkdir(exist_ok=True)
        (commits / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')

    def state_dir(self, name: str) -> Path:
        return self.sinks[name].context.state_dir

    def spark_plans(self, end: int = 9, begin: int = 5) -> None:
        """The leader's query has planned its second batch."""
        plan(self.state_dir("lake"), [Offsets({LOGS: begin}, LIFE), Offsets({LOGS: end}, LIFE)])
        tasks = (PlannedTask("logs", 0, begin, 7, 20), PlannedTask("logs", 0, 7, end, 20))
        planned = PlannedBytes({LOGS: end}, 40, is_measured=False, largest=None, tasks=tasks)
        planned.write(self.state_dir("lake") / "plan.json")

    def done(self, name: str) -> int:
        found = committed_offsets(self.state_dir(name) / "spark")
        assert found is not None
        return found.next[LOGS]

    def in_work(self, name: str) -> int | None:
        found = offsets_in_work(self.state_dir(name) / "spark")
        return None if found is None else found[1].next[LOGS]

    def reasons(self) -> dict[str, str]:
        return {it.sink: it.reason for it in self.left}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    for batches in made.batches.values():
        assert batches.wait_until_idle(30), "no thread is left"


def test_a_batch_is_each_sinks_own_on_disk(run: Run) -> None:
    run.spark_plans()
    run.group.deliver(TaskRows(), 1)
    assert run.left == []
    assert [run.done(name) for name in NAMES] == [5, 9, 9], "Spark notes the leader's"
    assert [batches.received for batches in run.batches.values()] == [4, 4, 4]
    plans = {(run.state_dir(name) / "plan.json").read_text() for name in NAMES}
    assert len(plans) == 1
    for name in NAMES[1:]:
        (line,) = (run.state_dir(name) / "deliveries.ndjson").read_text().splitlines()
        assert json.loads(line)["ranges"] == [["logs", LIFE["logs"], 0, 5, 9]]
        assert json.loads((run.state_dir(name) / "spark" / "metadata").read_text())["id"]


def test_of_a_batch_that_comes_again_only_those_get_rows_that_have_not_finished_it(
    run: Run,
) -> None:
    run.spark_plans()
    run.group.deliver(TaskRows(), 1)
    run.group.deliver(TaskRows(), 1)
    assert [batches.received for batches in run.batches.values()] == [8, 4, 4]
    assert run.left == []


def test_a_sink_that_is_ahead_gets_what_is_behind_its_position(run: Run) -> None:
    run.is_at("second", 8)
    run.spark_plans()
    run.group.deliver(TaskRows(), 1)
    assert run.left == []
    assert run.done("second") == 9
    assert run.batches["second"].received == 1
    found = PlannedBytes.read(run.state_dir("second") / "plan.json")
    assert found is not None
    assert found.tasks == (PlannedTask("logs", 0, 8, 9, 10),)


def test_a_sink_that_has_another_batch_to_finish_leaves(run: Run) -> None:
    run.spark_plans()
    offsets = run.state_dir("third") / "spark" / "offsets"
    (offsets / "1").write_text(f"v1\n{{}}\n{json.dumps(Offsets({LOGS: 7}, LIFE).to_json())}")
    run.group.deliver(TaskRows(), 1)
    assert run.reasons() == {"third": "it has another batch to finish"}
    assert run.in_work("third") == 7
    assert run.done("second") == 9


@pytest.mark.parametrize("step", ["begin", "commit"])
def test_a_sink_that_fails_leaves_and_the_others_go_on(run: Run, step: str) -> None:
    def fail() -> None:
        raise OSError("disk full")

    run.sinks["second"].at[step] = fail
    run.spark_plans()
    run.group.deliver(TaskRows(), 1)
    assert run.reasons() == {"second": "OSError: disk full"}
    assert isinstance(run.left[0].error, OSError)
    assert (run.done("second"), run.in_work("second"), run.done("third")) == (5, 9, 9)
    run.spark_plans(end=12, begin=9)
    run.group.deliver(TaskRows(), 1)
    assert (run.in_work("second"), run.done("third")) == (9, 12)


def test_a_writer_that_fails_in_a_task_is_its_sinks_matter(run: Run) -> None:
    run.sinks["third"].made = Fails()
    run.spark_plans()
    run.group.deliver(TaskRows(), 1)
    assert run.reasons() == {"third": "PartFailedError: OSError: no space left on device"}
    assert run.done("second") == 9
    run.sinks["lake"].made = Fails()
    with pytest.raises(PartFailedError, match="no space left"):
        run.group.deliver(TaskRows(), 1)
    assert run.group.leader_failed


@pytest.mark.parametrize("step", ["begin", "commit"])
def test_no_sink_waits_for_one_that_is_slow(run: Run, step: str) -> None:
    goes_on = threading.Event()
    run.sinks["second"].at[step] = lambda: goes_on.wait(60)
    run.spark_plans()
    run.group.deliver(TaskRows(), 1)
    assert list(run.reasons()) == ["second"]
    assert run.left[0].error is None
    assert run.batches["second"].is_busy
    assert run.done("third") == 9
    goes_on.set()
    wait_until(lambda: not run.batches["second"].is_busy)
    assert run.done("second") == (9 if step == "commit" else 5), "a late end counts, too"


@pytest.mark.parametrize("step", ["begin", "commit"])
def test_a_sink_that_fails_after_its_group_went_on_without_it_is_reported(
    run: Run, step: str
) -> None:
    goes_on = threading.Event()

    def fail_late() -> None:
        goes_on.wait(60)
        raise OSError("no space left on device")

    run.sinks["second"].at[step] = fail_late
    run.spark_plans()
    run.group.deliver(TaskRows(), 1)
    assert [(it.sink, it.error) for it in run.left] == [("second", None)]
    goes_on.set()
    wait_until(lambda: len(run.left) == 2)
    assert (run.left[1].sink, str(run.left[1].error)) == ("second", "no space left on device")


@pytest.mark.parametrize("step", ["begin", "commit"])
def test_a_slow_leader_goes_on_alone(run: Run, step: str) -> None:
    goes_on = threading.Event()
    run.sinks["lake"].at[step] = lambda: goes_on.wait(60)
    run.spark_plans()
    batch = threading.Thread(target=run.group.deliver, args=(TaskRows(), 1))
    batch.start()
    wait_until(lambda: len(run.left) == 3)
    assert [it.is_own for it in run.left] == [False, False, True]
    assert run.group.names == ["lake"]
    wait_until(lambda: not run.batches["third"].is_busy)
    assert run.done("third") == (9 if step == "commit" else 5)
    goes_on.set()
    batch.join(60)
    assert run.batches["lake"].received == 4


def test_what_cannot_be_read_fails_for_all(run: Run) -> None:
    run.spark_plans()
    with pytest.raises(PySparkException, match="the log is away"):
        run.group.deliver(NotRead(), 1)
    assert not run.group.leader_failed
    assert run.group.names == list(NAMES)
    assert run.left == []
    wait_until(lambda: not any(it.is_busy for it in run.batches.values()))
    assert [run.in_work(name) for name in NAMES] == [9, 9, 9]


def test_a_batch_that_is_larger_than_planned_is_planned_again_for_all(run: Run) -> None:
    class Larger(TaskRows):
        @override
        def save(self) -> None:
            raise PySparkException("x.LargerThanPlannedError: 9")

    run.spark_plans()
    with pytest.raises(PySparkException):
        run.group.deliver(Larger(), 1)
    wait_until(lambda: not any(it.is_busy for it in run.batches.values()))
    for name, batches in run.batches.items():
        batches.discard_replanned()
        assert run.in_work(name) is None
        assert batches.measures


def test_tasks_that_must_run_twice_are_the_sinks_own_matter(run: Run) -> None:
    run.sinks["second"].at["publish"] = lambda: False
    run.spark_plans()
    run.group.deliver(TaskRows(), 1)
    assert list(run.reasons()) == ["second"]
    assert run.left[0].error is None
    assert run.in_work("second") == 9


def test_a_sink_that_is_to_rest_leaves_before_the_next_batch(run: Run) -> None:
    run.batches["third"].is_to_rest = True
    run.spark_plans()
    run.group.deliver(TaskRows(), 1)
    assert [(it.sink, it.is_own) for it in run.left] == [("third", False)]
    assert run.in_work("third") is None
    run.batches["lake"].is_to_rest = True
    with pytest.raises(StoppedError):
        run.group.deliver(TaskRows(), 1)
