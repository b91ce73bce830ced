"""A batch that Spark's tasks write and the driver commits; tasks that fail, or run twice."""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from penstock.router.columns.passthrough import Unpacking, pack, pack_lost
from penstock.router.columns.projection import arrow_schema
from penstock.router.columns.schema import view
from penstock.router.job.batch_writer import BatchWriter
from penstock.router.job.config import JobConfig
from penstock.router.job.route_task import ROUTE_COLUMN, RouteTask, TaskResult
from penstock.router.read.offsets import Offsets, StreamPartition
from penstock.router.sinks import SinkContext
from penstock.router.sinks.parquet.client import LocalStaging
from penstock.router.sinks.parquet.sink import ParquetLake, ParquetSink
from penstock.service import UnavailableError
from tests.support.sink_batches import dead_letters
from tests.unit.router.sink_rows import context, row
from tests.unit.router.test_router_config import load

LOGS = StreamPartition("logs", 0)
SCHEMA = arrow_schema(view("records").columns)


def rows_of(first: int, end: int, **fields: Any) -> pa.Table:
    made = [row(offset, service=f"s{offset % 3}", **fields) for offset in range(first, end)]
    return pa.Table.from_pylist(made, schema=SCHEMA)


class Batch:
    """One batch of a job with a lake, and the tasks that write it.

    Args:
        directory: Of the lake, and of the sink's state.
        within: The sink's context.
        job: With routes to the sink `lake`.
    """

    def __init__(
        self, directory: Path, within: SinkContext | None = None, job: JobConfig | None = None
    ) -> None:
        self.lake = directory / "lake"
        self.context = within or context(directory)
        self.sink = ParquetLake(ParquetSink(type="parquet", path=self.lake), self.context)
        self.sink.open()
        self.job = job or load(directory)
        self.writer = BatchWriter(self.job, self.sink, self.context)

    def begin(self, end: int, before: int = 0) -> RouteTask:
        """The batch of these offsets begins."""
        stream_ids = self.context.stream_ids
        self.context.begin_batch(
            Offsets({LOGS: before}, stream_ids), Offsets({LOGS: end}, stream_ids)
        )
        columns = self.writer.steps.columns
        carried = [name for name in columns if name != ROUTE_COLUMN]
        schema = pa.schema([SCHEMA.field(name) for name in carried])
        part = self.writer.part(0, None)
        assert part is not None
        return RouteTask(Unpacking(ROUTE_COLUMN, schema, tuple(columns)), part)

    def run(self, task: RouteTask, parts: Sequence[pa.Table], *, lost: int = 0) -> TaskResult:
        """Run a copy of the task, as an executor does; its result comes back as a copy, too."""
        packed = []
        for part in parts:
            (carried,) = part.select(task.unpacking.passed_through.names).to_batches()
            packed.append(pack(carried.select([]), carried))
        if lost:
            packed.append(pack_lost(lost, pa.schema([])))
        routes = [pa.array([0 if part.num_rows else None], pa.int32()) for part in parts]
        routes += [pa.nulls(1, pa.int32())] if lost else []
        batches = [
            batch.append_column(ROUTE_COLUMN, route)
            for batch, route in zip(packed, routes, strict=True)
        ]
        copy: RouteTask = pickle.loads(pickle.dumps(task))
        result: TaskResult = pickle.loads(pickle.dumps(copy(iter(batches))))
        return result

    def visible(self) -> list[int]:
        """Offsets that any reader of hive-partitioned Parquet sees."""
        dataset = ds.dataset(self.lake, format="parquet", partitioning="hive")
        return sorted(dataset.to_table()["offset"].to_pylist()) if dataset.files else []

    def files(self) -> list[str]:
        return sorted(it.name for it in self.lake.glob("kind=*/**/*.parquet"))

    def unfinished(self) -> list[Path]:
        return list(self.lake.glob("_writing/*/*"))


def test_nothing_is_seen_of_a_batch_before_all_of_its_tasks_are_committed(tmp_path: Path) -> None:
    batch = Batch(tmp_path)
    task = batch.begin(20)
    results = [batch.run(task, [rows_of(0, 6), rows_of(6, 10)]), batch.run(task, [rows_of(10, 20)])]
    assert batch.visible() == []
    assert len(batch.unfinished()) == 2
    batch.writer.commit(results)
    assert batch.visible() == [*range(20)]
    assert batch.unfinished() == []
    stage = batch.context.meter.stage("lake", received=20, lag=0)
    assert (stage.sent, stage.detail["files"]) == (20, 2)


def test_of_a_task_that_ran_twice_or_failed_one_run_counts_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    batch = Batch(tmp_path)
    task = batch.begin(20)
    first, again = (batch.run(task, [rows_of(0, 10)]) for _ in range(2))
    assert first != again, "each run writes files of its own"
    batch.writer.commit([again, batch.run(task, [rows_of(10, 20)])])
    assert batch.visible() == [*range(20)]
    batch.begin(40, before=20)
    assert batch.unfinished() == []


def test_a_batch_that_comes_again_in_the_same_tasks_makes_the_same_files(tmp_path: Path) -> None:
    made = list[list[str]]()
    for is_killed in (True, False, False):  # killed before it could commit
        batch = Batch(tmp_path)
        task = batch.begin(20)
        results = [batch.run(task, [part]) for part in (rows_of(0, 10), rows_of(10, 20))]
        if not is_killed:
            batch.writer.commit(results)
            assert batch.visible() == [*range(20)]
        made.append(batch.files())
    assert made[0] == []
    assert made[1] == made[2]


def test_in_other_tasks_it_replaces_what_an_earlier_attempt_made(tmp_path: Path) -> None:
    for cut in (10, 7):
        batch = Batch(tmp_path)
        task = batch.begin(20)
        parts = [rows_of(0, cut), rows_of(cut, 20)]
        batch.writer.commit([batch.run(task, [part]) for part in parts])
        assert batch.visible() == [*range(20)]
        assert any(f"{cut - 1:020d}.parquet" in name for name in batch.files())


def test_a_replay_in_the_driver_makes_the_files_that_the_tasks_made(tmp_path: Path) -> None:
    batch = Batch(tmp_path)
    task = batch.begin(20)
    batch.writer.commit([batch.run(task, [rows_of(0, 10)]), batch.run(task, [rows_of(10, 20)])])
    before = batch.files()
    replay = Batch(tmp_path, replace(context(tmp_path), state_dir=tmp_path))
    replay.context.cuts[LOGS] = (10,)
    replay.writer.start_over()
    replay.writer.give(rows_of(0, 20), 0)
    assert replay.files() == before
    assert replay.visible() == [*range(20)]


def test_what_a_batch_has_lost_since_an_earlier_attempt_stays(tmp_path: Path) -> None:
    """And rows that a file of that attempt has are not written again under another name."""
    batch = Batch(tmp_path)
    batch.writer.commit([batch.run(batch.begin(20), [rows_of(0, 20)])])
    again = Batch(tmp_path)
    result = again.run(again.begin(20), [rows_of(5, 20)], lost=5)
    assert result.lost == 5
    again.context.shorten()
    again.writer.commit([result])
    assert again.visible() == [*range(20)]
    assert again.files() == batch.files()


def test_a_batch_without_rows_for_the_sink_removes_what_an_earlier_attempt_made(
    tmp_path: Path,
) -> None:
    batch = Batch(tmp_path)
    batch.writer.commit([batch.run(batch.begin(20), [rows_of(0, 20)])])
    again = Batch(tmp_path)
    again.writer.commit([again.run(again.begin(20), [])])
    assert again.files() == []


def test_a_task_lays_aside_and_counts_what_the_driver_would(tmp_path: Path) -> None:
    mask = {"mask": {"fields": ["resource.service.name"]}}
    routes = [{"name": "shy", "transforms": [mask], "sinks": ["lake"]}]
    odd = {"malformed": True, "malformed_reason": "no JSON", "malformed_value": b"?", "kind": "raw"}
    good = {"value": b'{"kind":"log","resource":{"service.name":"pay"}}'}
    parts = [
        rows_of(0, 2, **odd),
        rows_of(2, 4, value=b"\xff not an object"),
        rows_of(4, 9, **good, timestamp_ns=5),
    ]
    found = []
    for name in ("tasks", "driver"):
        directory = tmp_path / name
        directory.mkdir()
        batch = Batch(directory, job=load(directory, routes=routes))
        task = batch.begin(9)
        if name == "tasks":
            batch.writer.commit([batch.run(task, [part]) for part in parts])
        else:
            columns = [it for it in batch.writer.steps.columns if it != ROUTE_COLUMN]
            rows = pa.concat_tables(parts).select(columns)
            batch.writer.give(rows.append_column(ROUTE_COLUMN, pa.array([0] * 9, pa.int32())), 0)
        letters = [(it["offset"], it["code"], it["reason"]) for it in dead_letters(batch.context)]
        stage = batch.context.meter.stage("lake", received=9, lag=0)
        kept = {name: stage.detail.get(name) for name in ("malformed", "dead_letters")}
        found.append((letters, kept, stage.sent, batch.visible()))
    assert found[0] == found[1]
    assert [code for _, code, _ in found[0][0]] == ["malformed"] * 2 + ["not_a_record"] * 2
    assert found[0][3] == [*range(4, 9)]


def test_a_transform_that_remembers_keeps_its_sink_in_the_driver(tmp_path: Path) -> None:
    dedupe = {"dedupe": {"within_s": 60}}
    routes = [{"name": "once", "transforms": [dedupe], "sinks": ["lake"]}]
    batch = Batch(tmp_path, job=load(tmp_path, routes=routes))
    assert batch.writer.part(0, None) is None


def test_an_executor_that_does_not_see_the_drivers_directory_says_what_to_do(
    tmp_path: Path,
) -> None:
    staging = LocalStaging(tmp_path / "elsewhere", "sinks.lake.path")
    with pytest.raises(UnavailableError, match=r"sinks\.lake\.path: .* is not there on") as found:
        staging.write(lambda file: None)
    assert "network volume" in str(found.value.fix)
