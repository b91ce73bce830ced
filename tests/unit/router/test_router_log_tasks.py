"""Batches of which one route takes every record: tasks read the log themselves, past Spark SQL."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pyarrow as pa
import pytest

from penstock.logd.format.batch import Record, build_batch
from penstock.router.columns.schema import view
from penstock.router.job.route_task import (
    ROUTE_COLUMN,
    DeliverTask,
    PartFailure,
    RoutePart,
    RouteSteps,
    SharedDeliverTask,
    TaskDelivery,
    TaskResult,
)
from penstock.router.job.routes import Routed, SharedRoutes, only_route
from penstock.router.read.chunks import LOG_SCHEMA
from penstock.router.read.offsets import Offsets, Readable, Span, StreamPartition
from penstock.router.read.source import LogStreamReader
from penstock.router.read.tasks import TaskRows
from penstock.router.sinks.sink import WriteResult
from penstock.router.spark.heap_budget import HeapBudget
from penstock.router.streaming.batches import SinkBatches
from penstock.router.streaming.log_tasks import LogTasks
from tests.support.scripted_spark import plan
from tests.unit.router.source_log import NEEDED, FakeLog, source_of
from tests.unit.router.test_router_config import load
from tests.unit.router.test_router_tasks import Batch

LOGS = StreamPartition("logs", 0)
LIFE = {"logs": "a"}


class RecordLog(FakeLog):
    """A log of a record at each offset, of which a read may find some lost."""

    def __init__(self, readable: Readable, lost: int = 0) -> None:
        super().__init__(readable)
        self.lost = lost

    def rows(self, span: Span, **_: Any) -> Iterator[pa.RecordBatch]:
        for start in range(span.start, span.end, 5):
            offsets = range(start, min(start + 5, span.end))
            made = build_batch([Record("t.a", _record(it), it) for it in offsets])
            columns = [pa.array(offsets, pa.int64()), *made.columns[1:]]
            yield pa.RecordBatch.from_arrays(columns, schema=LOG_SCHEMA)


def _record(offset: int) -> bytes:
    if offset == 3:
        return b"no record"
    resource = {"service.name": f"s{offset}", "service.version": "1"}
    return json.dumps(
        {"kind": "log", "schema": "log/1.0", "body": "b", "resource": resource}
    ).encode()


class Tasks:
    """Spark as `LogTasks` sees it: runs each task here."""

    def __init__(self) -> None:
        self.count = 0
        self._parts: Sequence[Any] = ()
        self._task: Callable[[Any], Any] = bool

    def parallelize(self, parts: Sequence[Any], count: int) -> Self:
        assert len(parts) == count, "a task for each"
        self._parts, self.count = parts, count
        return self

    def map(self, task: Callable[[Any], Any]) -> Self:
        self._task = task
        return self

    def collect(self) -> list[Any]:
        return [self._task(part) for part in self._parts]


def reader_of(log: FakeLog, columns: Sequence[str], **options: str) -> LogStreamReader:
    source = source_of(log, NEEDED | {"view": "records"} | options)
    reader: LogStreamReader = source.streamReader(view("records").struct(columns))
    return reader


def offsets_of(rows: TaskRows) -> tuple[list[int], int]:
    found = [offset for batch in rows for offset in batch.column("offset").to_pylist()]
    return found, rows.lost


def test_each_task_of_a_batch_reads_its_part_and_says_what_is_lost() -> None:
    spark: Any = Tasks()
    log = RecordLog(Readable(0, 40), lost=1)
    tasks = LogTasks(reader_of(log, ["offset"], minPartitions="2"), spark)
    start, end = Offsets({LOGS: 10}, LIFE), Offsets({LOGS: 30}, LIFE)
    assert tasks.run(offsets_of, start, end) == [([*range(10, 20)], 1), ([*range(20, 30)], 1)]


def test_what_is_gone_of_a_batch_is_told_and_the_rest_read() -> None:
    spark: Any = Tasks()
    reader = reader_of(RecordLog(Readable(14, 40)), ["offset"], failOnDataLoss="false")
    found = LogTasks(reader, spark).run(offsets_of, Offsets({LOGS: 10}, LIFE), Offsets({LOGS: 20}))
    assert sorted(found) == [([], 4), ([*range(14, 20)], 0)]


def test_a_batch_without_records_is_one_task_that_reads_nothing() -> None:
    spark: Any = Tasks()
    tasks, here = (
        LogTasks(reader_of(RecordLog(Readable(0, 9)), ["offset"]), spark),
        Offsets({LOGS: 9}),
    )
    assert tasks.run(offsets_of, here, here) == [([], 0)]
    assert spark.count == 1


class Read:
    """The rows of a task."""

    def __init__(self, batches: Sequence[pa.RecordBatch], lost: int = 0) -> None:
        self.lost = lost
        self._batches = batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self._batches)


@pytest.mark.parametrize("with_transforms", [False, True])
def test_a_task_that_reads_writes_what_one_does_that_gets_rows_of_spark(
    tmp_path: Path, with_transforms: bool
) -> None:
    mask = {"mask": {"fields": ["resource.service.version"]}}
    route = {
        "name": "all",
        "sinks": ["lake"],
        **({"transforms": [mask]} if with_transforms else {}),
    }
    results = list[TaskResult]()
    lakes = list[pa.Table]()
    for way in ("spark", "log"):
        directory = tmp_path / way
        directory.mkdir()
        batch = Batch(directory, job=load(directory, routes=[route]))
        task = batch.begin(20)
        columns = tuple(batch.writer.steps.columns)
        reader = reader_of(RecordLog(Readable(0, 20)), [it for it in columns if it != ROUTE_COLUMN])
        (part,) = reader.partitions(
            Offsets({LOGS: 0}).to_json(), Offsets({LOGS: 20}, LIFE).to_json()
        )
        batches = [*reader.rows(part)]
        if way == "spark":
            result = batch.run(task, [pa.Table.from_batches([it]) for it in batches], lost=2)
        else:
            result = DeliverTask(TaskDelivery(0, columns, task.part))(Read(batches, lost=2))
        batch.writer.commit([result])
        results.append(result)
        lakes.append(rows_in(batch))
    one, other = results
    assert lakes[0].equals(lakes[1])
    assert len(lakes[0]) == 19
    assert (one.routed, one.lost, one.records, one.size, one.counts) == (
        other.routed, other.lost, other.records, other.size, other.counts
    )  # fmt: skip
    assert other.lost == 2
    assert one.malformed == other.malformed


def rows_in(batch: Batch) -> pa.Table:
    parts = [pa.parquet.read_table(it) for it in sorted(batch.lake.glob("kind=*/**/*.parquet"))]
    return pa.concat_tables(parts).sort_by("offset")


class Kept:
    """A writer that keeps the offsets of its rows, or refuses them."""

    def __init__(self, *, fails: bool = False) -> None:
        self.offsets = list[int]()
        self._fails = fails

    def write(self, rows: pa.RecordBatch) -> None:
        if self._fails:
            raise ValueError("not these")
        self.offsets += rows.column("offset").to_pylist()

    def close(self) -> WriteResult:
        return WriteResult()


def part_of(writer: Kept, begins: Mapping[StreamPartition, int]) -> RoutePart:
    steps = RouteSteps(["offset"], {}, gets_every=False, sends_malformed_to_dlq=False)
    return RoutePart(steps, writer, 0, None, begins)


def test_sinks_that_share_a_task_get_their_part_of_it_and_one_that_fails_fails_alone() -> None:
    writers = Kept(), Kept(fails=True), Kept()
    begins: list[dict[StreamPartition, int]] = [{}, {}, {LOGS: 5}]
    columns = ("stream", "partition", "offset")
    task = SharedDeliverTask(
        tuple(TaskDelivery(0, columns, part_of(*it)) for it in zip(writers, begins, strict=True))
    )
    reader = reader_of(RecordLog(Readable(0, 8), lost=2), columns)
    spark: Any = Tasks()
    ((first, failed, third),) = LogTasks(reader, spark).run(
        task, Offsets({LOGS: 0}), Offsets({LOGS: 8}, LIFE)
    )
    assert isinstance(first, TaskResult)
    assert isinstance(third, TaskResult)
    assert failed == PartFailure("ValueError: not these")
    assert (first.routed, third.routed) == (8, 3)
    assert (first.lost, third.lost) == (2, 2)
    assert writers[0].offsets == [*range(8)]
    assert writers[2].offsets == [5, 6, 7]


class Pooled:
    """A session whose tasks run here."""

    def __init__(self) -> None:
        self.sparkContext = Tasks()


def test_tasks_read_from_where_spark_has_noted_the_batch_before_to_where_it_ends(
    tmp_path: Path,
) -> None:
    batch = Batch(tmp_path)
    begins = Offsets({LOGS: 4}, {"logs": "an earlier life"})
    batches = SinkBatches(
        load(tmp_path), batch.sink, batch.context, begins, HeapBudget(load(tmp_path).spark)
    )
    ends = [Offsets({LOGS: 9}, LIFE, {LOGS: 1}), Offsets({LOGS: 20}, LIFE, {LOGS: 2})]
    plan(batch.context.state_dir, ends)
    assert batches.span(0) == (begins, ends[0])
    assert batches.span(1) == (ends[0], ends[1])


def test_each_query_of_a_sink_has_a_reader_of_its_own_or_none(tmp_path: Path) -> None:
    batch = Batch(tmp_path)
    budget = HeapBudget(load(tmp_path).spark)
    batches = SinkBatches(load(tmp_path), batch.sink, batch.context, Offsets({}), budget)
    closed = list[int]()
    spark: Any = Pooled()
    for number in range(2):
        reader: Any = SimpleNamespace(stop=partial(closed.append, number))
        batches.read_by(reader, spark)
        assert batches.log_tasks is not None
    assert closed == [0]
    batches.read_by(None, spark)
    assert closed == [0, 1]
    assert batches.log_tasks is None


EVERY = {"name": "every", "sinks": ["lake"]}
SOME = {"name": "some", "sinks": ["lake"], "where": "kind = 'log'"}
SELECT = {"name": "sql", "sinks": ["lake"], "transforms": [{"sql": "SELECT body FROM records"}]}


@pytest.mark.parametrize(
    ("keys", "route"),
    [
        ({"routes": [EVERY]}, 0),
        ({"routes": [EVERY, SOME]}, 0),
        ({"routes": [SOME]}, None),
        ({"routes": [SELECT]}, None),
        ({"routes": [SOME, EVERY]}, None),  # which of both is done to a record is Spark's to say
        ({"routes": [SOME | {"sinks": ["console"]}, EVERY]}, 1),
        ({"routes": [SOME | {"sinks": ["console"]}, EVERY], "routing": "first_match"}, None),
        ({"routes": [SOME | {"sinks": ["console"]}], "unmatched": {"sinks": ["lake"]}}, None),
    ],
)
def test_spark_makes_rows_where_a_condition_decides(
    tmp_path: Path, keys: dict[str, Any], route: int | None
) -> None:
    sinks = {"lake": {"type": "parquet", "path": "/l"}, "console": {"type": "console"}}
    listed = [*keys.pop("routes"), {"name": "shown", "sinks": ["console"]}]
    job = load(tmp_path, sinks=sinks, routes=listed, **keys)
    assert only_route(job, "lake") == route
    options = {"logd": "127.0.0.1:1", "subscribe": "logs"}
    for routes in (Routed(job, "lake", ["offset"]), SharedRoutes(job, {"lake": ["offset"]})):
        assert (routes.reader(options) is None) == (route is None)
