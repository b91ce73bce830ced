"""From a batch to a sink: transforms by route, the pace, and what is laid aside."""

import json
import threading
from contextlib import nullcontext as does_not_raise
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from prometheus_client import CollectorRegistry
from typing_extensions import override

from penstock.base.clock import BlockingClock
from penstock.router.deadletters.writer import (
    MALFORMED_COLUMNS,
    FileLimits,
    Reason,
    send_each_to_dlq,
    send_to_dlq,
)
from penstock.router.job.batch_writer import BatchWriter
from penstock.router.job.config import JobConfig
from penstock.router.job.route_task import ROUTE_COLUMN
from penstock.router.job.settings import RateLimit
from penstock.router.read.offsets import digest_of
from penstock.router.sinks import Sink, SinkContext
from penstock.router.telemetry import StatusCollector
from penstock.service import Health, Status
from tests.unit.router.sink_rows import context, row, table
from tests.unit.router.test_router_config import load
from tests.unit.router.test_router_sinks import Pigeon, PigeonConfig

READY = Status(
    component="router",
    name="demo",
    version="1",
    health=Health.READY,
    reasons=(),
    stages=(),
    info={"sinks": {}},
)


class Notebook(Pigeon):
    """Keeps what it is given."""

    columns: tuple[str, ...] = ("value", "service")

    def __init__(self, sink_context: SinkContext) -> None:
        super().__init__(PigeonConfig(type="pigeon"), sink_context)
        self.batches: list[pa.Table] = []

    @override
    def write(self, rows: pa.Table) -> None:
        self.batches.append(rows)


class Greedy(Notebook):
    """Wants every column."""

    columns = ("*",)


MASK = {"mask": {"fields": ["resource.service.name"]}}
ROUTES: list[dict[str, Any]] = [
    {"name": "shy", "where": "kind = 'log'", "transforms": [MASK], "sinks": ["lake"]},
    {"name": "plain", "sinks": ["lake"]},
]


def numbered(*rows: tuple[int, dict[str, Any]]) -> pa.Table:
    numbers = pa.array([number for number, _ in rows], pa.int32())
    return table([each for _, each in rows]).append_column(ROUTE_COLUMN, numbers)


def marked(rows: pa.Table, reasons: dict[int, str]) -> pa.Table:
    """The rows, those at some places marked as malformed."""
    texts = [reasons.get(place) for place in range(rows.num_rows)]
    values = [
        value if text else None
        for value, text in zip(rows["value"].to_pylist(), texts, strict=True)
    ]
    for name in ("timestamp_ns", "key"):
        rows = rows.append_column(name, pa.nulls(rows.num_rows))
    rows = rows.append_column("malformed_value", pa.array(values, pa.binary()))
    return rows.append_column("malformed_reason", pa.array(texts, pa.string()))


def job(directory: Path, **keys: Any) -> JobConfig:
    return load(directory, **({"routes": ROUTES, "on_malformed": "route"} | keys))


def test_each_route_does_its_own_to_the_rows_it_takes(tmp_path: Path) -> None:
    sink = Notebook(context(tmp_path))
    batch_writer = BatchWriter(job(tmp_path), sink, context(tmp_path))
    assert batch_writer.steps.columns == [
        "value",
        "service",
        "offset",
        "partition",
        "stream",
        "subject",
        "_route",
    ]
    rows = numbered((1, row(3)), (0, row(2)), (1, row(1)), (0, row(0, value=b"?")))
    batch_writer.give(rows, 0)
    (given,) = sink.batches
    assert given.column_names == ["value", "service"]
    assert given["service"].to_pylist() == ["checkout", "***", "checkout"]


def test_rows_that_cannot_be_transformed_are_dead_letters_with_their_reason(tmp_path: Path) -> None:
    its = context(tmp_path)
    published: list[bytes] = []

    class Stream:
        def publish(self, lines: Any) -> int:
            published.extend(lines)
            return 0

    its = replace(its, dead_letter_stream=Stream())
    sink = Notebook(its)
    BatchWriter(job(tmp_path), sink, its).give(numbered((0, row(7, value=b"\xff?"))), 0)
    assert [it.num_rows for it in sink.batches] == [0]
    (path,) = (tmp_path / "dead" / "lake").glob("*.ndjson")
    assert path.name == f"logs.5f2c19aa-0-{7:020d}-{7:020d}.ndjson"
    dead_letter = json.loads(path.read_text())
    assert (dead_letter["code"], dead_letter["offset"], dead_letter["attempt"]) == (
        "not_a_record",
        7,
        1,
    )
    assert dead_letter["incarnation"] == "5f2c19aa00000000"
    assert dead_letter["value_base64"] == "/z8="
    assert [json.loads(line) for line in published] == [dead_letter]
    assert its.meter.stage("lake", received=1, lag=0).errors == 1


@pytest.mark.parametrize("routes", [ROUTES, [{"name": "plain", "sinks": ["lake"]}]])
def test_what_is_no_record_is_a_dead_letter_with_its_own_reason(
    tmp_path: Path, routes: list[dict[str, Any]]
) -> None:
    its = context(tmp_path)
    sink = Notebook(its)
    batch_writer = BatchWriter(job(tmp_path, routes=routes, on_malformed="dead_letters"), sink, its)
    assert set(batch_writer.steps.columns) >= MALFORMED_COLUMNS
    odd = {"value": b"\xff?", "subject": "telemetry.logs.odd"}
    rows = numbered((1, row(5, **odd)), (1, row(4)), (1, row(3, **odd)), (1, row(2, partition=1)))
    if routes is not ROUTES:
        rows = rows.drop_columns([ROUTE_COLUMN])
    batch_writer.give(marked(rows, {0: "five", 2: "three", 3: "two"}), 0)
    (given,) = sink.batches
    assert given.column_names == ["value", "service"]
    assert given["value"].to_pylist() == [b'{"kind":"log","number":4}']
    first, second = sorted((tmp_path / "dead" / "lake").glob("*.ndjson"))
    assert first.name == f"logs.5f2c19aa-0-{3:020d}-{5:020d}.{digest_of([3, 5])}.ndjson"
    dead_letters = [json.loads(line) for line in first.read_text().splitlines()]
    assert [
        (it["offset"], it["code"], it["reason"], it["value_base64"]) for it in dead_letters
    ] == [
        (3, "malformed", "three", "/z8="),
        (5, "malformed", "five", "/z8="),
    ]
    assert dead_letters[0]["subject"] == "telemetry.logs.odd"
    assert json.loads(second.read_text())["value"] == '{"kind":"log","number":2}'
    stage = its.meter.stage("lake", received=4, lag=0)
    assert (stage.errors, stage.detail["dead_letters"], stage.detail["malformed"]) == (3, 3, 3)


def test_of_a_batch_of_nothing_but_malformed_rows_a_sink_gets_none(tmp_path: Path) -> None:
    its = context(tmp_path)
    sink = Notebook(its)
    batch_writer = BatchWriter(job(tmp_path, on_malformed="dead_letters"), sink, its)
    batch_writer.give(marked(numbered((0, row(1)), (1, row(2))), {0: "no", 1: "no"}), 0)
    assert [it.num_rows for it in sink.batches] == [0]


def test_a_sink_that_wants_every_column_gets_no_marks(tmp_path: Path) -> None:
    batch_writer = BatchWriter(load(tmp_path), Greedy(context(tmp_path)), context(tmp_path))
    assert batch_writer.steps.columns[-2:] == ["malformed_reason", "malformed_value"]
    assert {"value", "malformed", "attributes", "time"} <= set(batch_writer.steps.columns)
    routed = BatchWriter(
        load(tmp_path, on_malformed="route"), Greedy(context(tmp_path)), context(tmp_path)
    )
    assert routed.steps.columns == batch_writer.steps.columns[:-2]


def test_letters_are_cut_into_files_of_bounded_size(tmp_path: Path) -> None:
    rows, two = table([row(it) for it in (4, 2, 3)]), FileLimits(dead_letters=2)
    paths = send_each_to_dlq(rows, [Reason("x", "y")] * 3, context(tmp_path), limits=two)
    kept = [[json.loads(it)["offset"] for it in path.read_text().splitlines()] for path in paths]
    assert kept == [[2, 3], [4]]


def test_what_a_sink_refuses_is_a_letter_as_it_lies_in_the_log(tmp_path: Path) -> None:
    its = context(tmp_path)
    reason = Reason("http_400", "no")

    class Picky(Notebook):
        @override
        def write(self, rows: pa.Table) -> None:
            send_to_dlq(rows.filter(pc.equal(rows["offset"], 2)), reason, its)

    Picky.columns = ("stream", "partition", "offset", "value", "service")
    rows = numbered(*((0, row(offset, value=VALUE % offset)) for offset in (1, 2)))
    BatchWriter(job(tmp_path), Picky(its), its).give(rows, 0)
    (path,) = (tmp_path / "dead" / "lake").glob("*.ndjson")
    assert json.loads(path.read_text())["value"].encode() == VALUE % 2


VALUE = b'{"kind":"log","resource":{"service.name":"checkout"},"number":%d}'


def test_a_sink_without_transforms_gets_the_batch_as_it_is(tmp_path: Path) -> None:
    its = context(tmp_path)
    sink = Notebook(its)
    batch_writer = BatchWriter(load(tmp_path, on_malformed="route"), sink, its)
    assert batch_writer.steps.columns == ["value", "service"]
    rows = table([row(1), row(0)]).select(batch_writer.steps.columns)
    batch_writer.give(rows, 0)
    assert sink.batches == [rows]


class Waits(threading.Event):
    """A wait lets the time of the clock pass."""

    def __init__(self, clock: BlockingClock) -> None:
        super().__init__()
        self._clock = clock
        self.waited: list[float] = []

    @override
    def wait(self, timeout: float | None = None) -> bool:
        if self.is_set():
            return True
        self.waited.append(timeout or 0)
        self._clock.sleep(timeout or 0)
        return False


def test_a_paced_sink_waits_between_batches(tmp_path: Path) -> None:
    its = context(tmp_path)
    stop = Waits(its.clock)
    its = replace(its, stop=stop)
    sinks = {"lake": {"type": "parquet", "path": "/x", "rate_limit": {"records_per_s": 2}}}
    sink: Sink = Notebook(its)
    batch_writer = BatchWriter(load(tmp_path, sinks=sinks, on_malformed="route"), sink, its)
    for batch in range(3):
        batch_writer.give(table([row(number) for number in range(4)]), batch)
    assert sum(stop.waited) == pytest.approx(3.0, abs=0.01)


def test_a_long_pause_of_a_rate_limit_is_counted_while_it_lasts(tmp_path: Path) -> None:
    """Who looks whether a sink moves does not take it for one that is stuck."""
    its = context(tmp_path)
    seen: list[int] = []
    limiter = RateLimit(records_per_s=1).limiter(its.clock.monotonic_ns())
    limiter.book(records=36, size=0, now_ns=its.clock.monotonic_ns())
    its = replace(its, stop=Waits(its.clock))
    while pause_ns := limiter.wait_ns(its.clock.monotonic_ns()):
        its.wait_for_rate(pause_ns)
        seen.append(its.meter.counted()["paced_ms"])
    assert seen == [10_000, 20_000, 30_000, 35_000]


def test_a_sink_of_others_need_not_know_what_came_later(tmp_path: Path) -> None:
    class Plain:
        columns = ("value",)

        def write(self, rows: pa.Table) -> None:
            assert rows.num_rows == 0

    plain: Any = Plain()
    batch_writer = BatchWriter(load(tmp_path), plain, context(tmp_path))
    batch_writer.start_over()
    with does_not_raise():
        batch_writer.give(marked(table([]), {}), 0)


def test_a_sink_gets_a_batch_without_any_row_for_it(tmp_path: Path) -> None:
    sink = Notebook(context(tmp_path))
    BatchWriter(load(tmp_path, routes=ROUTES), sink, context(tmp_path)).give(
        marked(numbered(), {}), 0
    )
    assert [it.num_rows for it in sink.batches] == [0]


class Timed(Notebook):
    """Has the time as a column, as a lake does."""

    columns = ("timestamp_ns", "time", "kind", "value")


def test_records_whose_time_is_that_of_the_log_are_counted_by_reason(tmp_path: Path) -> None:
    at_us = 1_795_000_000_123_456
    times = [at_us * 1000, None, "now", -1, 1 << 63]
    rows = pa.table(
        {
            "timestamp_ns": pa.array([at_us * 1000 + 7] * 6, pa.int64()),
            "time": pa.array([at_us] * 6, pa.timestamp("us", tz="UTC")),
            "kind": ["log"] * 5 + ["raw"],
            "value": [json.dumps({"kind": "log", "time_unix_nano": it}).encode() for it in times]
            + [b"no record"],
        }
    )
    its = context(tmp_path)
    routes = [{"name": "all", "sinks": ["lake"]}]
    BatchWriter(job(tmp_path, routes=routes), Timed(its), its).give(rows, 1)
    assert its.meter.counted() == {
        "time_replaced_missing": 1,
        "time_replaced_not_an_integer": 1,
        "time_replaced_before_1970": 1,
        "time_replaced_after_2262": 1,
    }
    registry = CollectorRegistry()
    stage = its.meter.stage("lake", received=6, lag=0)
    registry.register(StatusCollector(lambda: replace(READY, stages=(stage,))))
    labels = {"sink": "lake", "reason": "before_1970"}
    assert registry.get_sample_value("penstock_router_times_replaced_total", labels) == 1
