"""Requests that Spark's tasks send, and what of them the driver settles."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typing_extensions import override

from penstock.router.columns.passthrough import Unpacking, pack
from penstock.router.columns.projection import arrow_schema
from penstock.router.columns.schema import view
from penstock.router.delivery.rate_limiter import Parallelism
from penstock.router.delivery.result import DeliveryResult
from penstock.router.errors import StoppedError
from penstock.router.job.batch_writer import BatchWriter
from penstock.router.job.route_task import ROUTE_COLUMN, RouteTask, TaskResult
from penstock.router.read.offsets import Offsets, StreamPartition
from penstock.router.sinks import SinkContext, make_sink
from penstock.router.sinks.http import task_sink
from penstock.router.sinks.http.request_sink import Request
from penstock.router.sinks.http.sink import HttpPost, HttpSink
from penstock.router.sinks.http.task_sink import (
    CONNECTIONS,
    SENDING_S_MAX,
    RequestWriter,
)
from tests.support.fault_door import Answered, Asked, Backend, FaultDoor, says
from tests.support.sink_batches import batch, context, dead_letters, log_record
from tests.support.sink_cases import FAST
from tests.support.task_batches import run_task, write_in_tasks, written_by_task
from tests.unit.router.sink_rows import TestClock
from tests.unit.router.test_router_config import load
from tests.unit.router.test_router_feed import Waits

LOGS = StreamPartition("logs", 0)


class Kept(Backend):
    """Takes everything."""

    def __init__(self) -> None:
        self.bodies: list[str] = []

    @override
    def handle(self, asked: Asked) -> Answered:
        self.bodies += [json.loads(line)["body"] for line in asked.body.splitlines()]
        return Answered(200)


@pytest.fixture
def door() -> Iterator[FaultDoor]:
    made = FaultDoor(Kept())
    yield made
    CONNECTIONS.close()
    made.close()


def post(door: FaultDoor, made: SinkContext, **keys: Any) -> HttpPost:
    settings = {"type": "http", "url": f"{door.url}/in", **FAST, "batch": {"max_records": 2}}
    sink = make_sink(HttpSink.model_validate(settings | keys), made)
    assert isinstance(sink, HttpPost)
    sink.open()
    door.closing.append(sink.close)
    return sink


def rows_of(first: int, end: int) -> pa.Table:
    return batch([log_record(number) for number in range(first, end)], first=first)


def keys_of(door: FaultDoor) -> list[str]:
    return [asked.headers["idempotency-key"].rpartition("/")[2] for asked in door.asked]


def test_requests_of_a_task_are_in_flight_together(door: FaultDoor, tmp_path: Path) -> None:
    together = threading.Barrier(3)

    def meet(asked: Asked) -> None:
        together.wait(10)

    door.rule = meet
    sink = post(door, context(tmp_path), max_in_flight=3)
    write_in_tasks(sink, rows_of(0, 6))
    assert sorted(keys_of(door)) == ["0-1", "2-3", "4-5"]
    assert sink.context.meter.stage("x", received=6, lag=0).sent == 6


def test_a_task_that_runs_again_and_a_replay_send_the_same_requests(
    door: FaultDoor, tmp_path: Path
) -> None:
    sink = post(door, context(tmp_path))
    parts = rows_of(0, 5), rows_of(5, 9)
    written_by_task(sink, parts[0])  # and its worker is killed
    write_in_tasks(sink, *parts)
    in_tasks = [(asked.headers["idempotency-key"], asked.body) for asked in door.asked]
    assert len(in_tasks) == 8
    assert len(set(in_tasks)) == 5
    door.asked.clear()
    sink.context.cuts[LOGS] = (5,)
    sink.write(rows_of(0, 9))
    assert {(it.headers["idempotency-key"], it.body) for it in door.asked} == set(in_tasks)


def test_a_batch_whose_tasks_are_cut_anew_makes_the_requests_of_the_first_ones(
    door: FaultDoor, tmp_path: Path
) -> None:
    """One of the first was larger than planned, and the others had sent."""
    job = Job(door, tmp_path)
    job.run(task_rows(0, 5), cuts=(5,))
    assert sorted(keys_of(door)) == ["0-1", "2-3", "4-4"]
    smaller = [(0, 3), (3, 6), (6, 9)]
    door.asked.clear()
    tasks = [job.run(task_rows(*it), cuts=(5,), is_recut=True) for it in smaller]
    assert not door.asked
    job.writer.commit(tasks)
    assert keys_of(door) == ["0-1", "2-3", "4-4", "5-6", "7-8"]
    assert job.context.meter.stage("x", received=9, lag=0).sent == 9


def test_after_a_failure_the_driver_goes_on_in_the_order_of_the_log(
    door: FaultDoor, tmp_path: Path
) -> None:
    """The answer that a task got is looked at before anything is sent again."""
    sink = post(door, context(tmp_path), max_in_flight=1)
    door.faults += [lambda asked, backend: backend.handle(asked), says(503)]
    written = written_by_task(sink, rows_of(0, 8))
    assert keys_of(door) == ["0-1", "2-3"]
    assert (written.delivered, len(written.unsettled)) == (2, 3)
    sink.commit([written])
    assert keys_of(door) == ["0-1", "2-3", "2-3", "4-5", "6-7"]
    assert door.backend.bodies == [log_record(number)["body"] for number in range(8)]  # type: ignore[attr-defined]
    stage = sink.context.meter.stage("x", received=8, lag=0)
    assert (stage.sent, stage.detail["retries"]) == (8, 1)
    assert door.asked[2].headers["penstock-attempt"] == "2"


def test_while_the_circuit_is_not_closed_tasks_send_nothing(
    door: FaultDoor, tmp_path: Path
) -> None:
    sink = post(door, context(tmp_path))
    sink.context.stop.set()
    door.rule = lambda asked: Answered(503)
    with pytest.raises(Exception, match="gave up"):
        write_in_tasks(sink, rows_of(0, 2))
    seen = len(door.asked)
    assert written_by_task(sink, rows_of(0, 4)).delivered == 0
    assert len(door.asked) == seen
    sink.context.stop.clear()
    door.rule = lambda asked: None
    write_in_tasks(sink, rows_of(0, 4))
    assert sink.context.meter.problem is None
    assert written_by_task(sink, rows_of(4, 8)).delivered == 4


def test_what_tasks_heard_at_once_of_the_destination_counts_once(
    door: FaultDoor, tmp_path: Path
) -> None:
    full = threading.Barrier(3)

    def is_full(asked: Asked) -> Answered | None:
        if len(door.asked) > 3:
            return None
        full.wait(10)
        return Answered(503)

    door.rule = is_full
    sink = post(door, context(tmp_path), max_in_flight=3)
    write_in_tasks(sink, rows_of(0, 8))
    stage = sink.context.meter.stage("x", received=8, lag=0)
    assert (stage.sent, stage.detail["retries"]) == (8, 1)
    assert keys_of(door)[3:] == ["0-1", "2-3", "4-5", "6-7"]


def test_a_slow_destination_does_not_keep_a_task_for_long(door: FaultDoor, tmp_path: Path) -> None:
    clock = TestClock()
    sink = post(door, context(tmp_path, clock=clock), max_in_flight=1)
    door.rule = lambda asked: clock.sleep(SENDING_S_MAX / 2)
    written = written_by_task(sink, rows_of(0, 8))
    assert (written.delivered, len(written.unsettled)) == (4, 2)
    sink.commit([written])
    assert keys_of(door) == ["0-1", "2-3", "4-5", "6-7"]


def test_a_task_that_others_share_waits_for_no_answer_for_long(
    door: FaultDoor, tmp_path: Path
) -> None:
    """The driver sends what has no answer again, over connections that nobody waits at."""
    answers = threading.Event()

    def holds(_: Asked) -> None:
        answers.wait(60)

    door.rule = holds
    sink = post(door, context(tmp_path, clock=TestClock()), max_in_flight=2)
    sink.begin()
    writer = replace(sink.shared_writer(), waits_for_s=0.2)
    for part in rows_of(0, 8).to_batches():
        writer.write(part)
    written = writer.close()
    assert (written.delivered, len(written.unsettled)) == (0, 4)
    assert [it.result for it in written.unsettled] == [None] * 4
    answers.set()
    sink.commit([written])
    assert set(keys_of(door)) == {"0-1", "2-3", "4-5", "6-7"}
    assert len(keys_of(door)) == 6, "the two in flight came twice"


class Fails(HttpPost):
    """Fails on one record, as a fault of its code would have it."""

    @override
    def exchange_in_task(self, request: Request) -> DeliveryResult | None:
        if any(b"order 2" in item.content for item in request.items):
            raise RuntimeError("a fault of this sink")
        return super().exchange_in_task(request)


@pytest.mark.parametrize("in_flight", [1, 2])
def test_after_a_task_that_failed_the_next_one_has_connections_for_itself(
    door: FaultDoor, tmp_path: Path, in_flight: int
) -> None:
    """Else what one thread of the first waits for still could be taken for another's answer."""
    answers = threading.Event()

    def holds(_: Asked) -> None:
        if in_flight > 1:
            answers.wait(60)

    door.rule = holds
    settings = {"type": "http", "url": f"{door.url}/in", **FAST, "batch": {"max_records": 2}}
    config = HttpSink.model_validate(settings | {"max_in_flight": in_flight})
    sink = Fails(config, context(tmp_path))
    sink.open()
    door.closing.append(sink.close)
    sink.begin()
    writer = replace(sink.shared_writer(), waits_for_s=0.2 if in_flight > 1 else None)
    with pytest.raises(RuntimeError, match="a fault of this sink"):
        run_task(writer, rows_of(0, 4))
    held = {asked.connection for asked in door.asked}
    assert len(held) == 1
    answers.set()
    assert run_task(writer, rows_of(4, 8)).delivered == 4
    assert held.isdisjoint(asked.connection for asked in door.asked[1:])


class Arrivals:
    """A rule of a door that takes down when how many records came.

    Attributes:
        came: Seconds since the first request could go, and records.
    """

    def __init__(self, clock: TestClock) -> None:
        self.came: list[tuple[float, int]] = []
        self._clock = clock
        self._begun_ns = clock.monotonic_ns()

    def __call__(self, asked: Asked) -> None:
        after_s = (self._clock.monotonic_ns() - self._begun_ns) / 1e9
        self.came.append((after_s, len(asked.body.splitlines())))

    def require_at_most(self, records_per_s: float, *, at_once: int) -> None:
        """Require that no more came until any moment than the rate allows, and so many before."""
        total = 0
        for after_s, records in self.came:
            total += records
            assert total <= records_per_s * after_s + at_once, self.came


def paced(door: FaultDoor, directory: Path, **keys: Any) -> tuple[HttpPost, Arrivals]:
    """A sink of two records a second, whose tasks get all of that; the time is its own."""
    clock = TestClock()
    its = replace(context(directory, clock=clock), stop=Waits(clock))
    arrivals = Arrivals(clock)
    door.rule = arrivals
    sink = post(door, its, rate_limit={"records_per_s": 2}, **keys)
    assert sink.rate_limiter is not None
    sink.share = sink.rate_limiter.lend(Parallelism(1, 1), clock.monotonic_ns())
    return sink, arrivals


@pytest.mark.parametrize("in_flight", [1, 3])
def test_with_a_rate_limit_requests_of_a_batch_are_apart_in_the_task_and_in_the_driver(
    door: FaultDoor, tmp_path: Path, in_flight: int
) -> None:
    sink, arrivals = paced(door, tmp_path, max_in_flight=in_flight)
    written = written_by_task(sink, rows_of(0, 20))
    assert written.delivered == 10, "as many as in five seconds"
    sink.commit([written])
    assert sorted(keys_of(door)) == sorted(f"{it}-{it + 1}" for it in range(0, 20, 2))
    arrivals.require_at_most(2, at_once=2 + 2)
    assert arrivals.came[-1][0] == pytest.approx((20 - 4) / 2)
    stage = sink.context.meter.stage("x", received=20, lag=0)
    assert (stage.sent, stage.detail["paced_ms"]) == (20, 8000)
    assert sink.rate_limiter is not None
    assert sink.rate_limiter.wait_ns(sink.context.clock.monotonic_ns()) == 10**9


def test_what_a_task_would_have_to_wait_for_for_long_the_driver_sends(
    door: FaultDoor, tmp_path: Path
) -> None:
    """A task that waits has one of Spark's slots, and other sinks may want it."""
    sink, arrivals = paced(door, tmp_path, batch={"max_records": 16})
    assert sink.share is not None
    sink.share = replace(sink.share, waits_for_s=5 / 4)
    before_ns = sink.context.clock.monotonic_ns()
    written = written_by_task(sink, rows_of(0, 20))
    assert (written.delivered, len(written.unsettled)) == (0, 2)
    assert sink.context.clock.monotonic_ns() == before_ns
    sink.commit([written])
    assert arrivals.came == [(0, 16), (7, 4)]


def test_a_task_and_the_driver_that_wait_for_the_pace_end_when_the_job_does(
    door: FaultDoor, tmp_path: Path
) -> None:
    sink, arrivals = paced(door, tmp_path, max_in_flight=1)
    ending = tmp_path / "ending"
    sink.context = replace(sink.context, ending=ending)

    def ends(asked: Asked) -> None:
        arrivals(asked)
        if len(arrivals.came) == 3:
            ending.touch()
            sink.context.stop.set()

    door.rule = ends
    written = written_by_task(sink, rows_of(0, 20))
    assert [after_s for after_s, _ in arrivals.came] == [0, 1, 2]
    assert (written.delivered, len(written.unsettled)) == (6, 7)
    with pytest.raises(StoppedError):
        sink.commit([written])
    assert sink.context.meter.stage("x", received=20, lag=0).sent >= 6
    assert {after_s for after_s, _ in arrivals.came} == {0, 1, 2}, "nothing has waited"


def test_a_task_that_runs_again_has_nothing_saved_up(
    door: FaultDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, arrivals = paced(door, tmp_path, max_in_flight=1)
    # Spark says the number of the attempt, and is not here.
    monkeypatch.setattr(task_sink, "_runs_again", lambda: True)
    written_by_task(sink, rows_of(0, 2))
    assert arrivals.came == [(1, 2)]


def test_batches_of_a_sink_that_paces_its_requests_wait_once_for_them(
    door: FaultDoor, tmp_path: Path
) -> None:
    """Be they written by tasks, by the driver, or cut by an earlier attempt."""
    clock = TestClock()
    arrivals = Arrivals(clock)
    door.rule = arrivals
    job = Job(door, tmp_path, clock, rate_limit={"records_per_s": 2})
    job.deliver(task_rows(0, 6))
    given = rows_of(6, 12)
    for name in ("malformed_reason", "malformed_value"):
        given = given.append_column(name, pa.nulls(given.num_rows, pa.string()))
    job.writer.give(given, 1)
    job.writer.commit([job.run(task_rows(12, 18), cuts=(15,), is_recut=True)])
    assert sum(records for _, records in arrivals.came) == 18
    arrivals.require_at_most(2, at_once=2 + 2)
    assert arrivals.came[-1][0] <= (18 - 2) / 2


def test_one_record_that_is_refused_does_not_end_its_task(door: FaultDoor, tmp_path: Path) -> None:
    sink = post(door, context(tmp_path), batch={"max_records": 1}, max_in_flight=2)
    door.rule = lambda asked: Answered(422) if b"order 5" in asked.body else None
    written = written_by_task(sink, rows_of(0, 10))
    assert (written.delivered, len(written.unsettled)) == (9, 1)
    sink.commit([written])
    (dead_letter,) = dead_letters(sink.context)
    assert (dead_letter["offset"], dead_letter["attempt"]) == (5, 1)
    assert len(door.asked) == 10


def task_rows(first: int, end: int) -> list[dict[str, Any]]:
    """Rows as a task gets them."""
    no_marks = {"malformed_reason": None, "malformed_value": None}
    return [row | no_marks for row in rows_of(first, end).to_pylist()]


class Job:
    """A job with one sink, whose tasks run here."""

    def __init__(
        self,
        door: FaultDoor,
        directory: Path,
        clock: TestClock | None = None,
        rate_limit: Any = None,
        **keys: Any,
    ) -> None:
        paced = {} if rate_limit is None else {"rate_limit": rate_limit}
        settings = {"type": "http", "url": f"{door.url}/in", **FAST, **paced}
        self.config = load(directory, sinks={"lake": settings}, **keys)
        self.context = context(directory, sink="lake", clock=clock)
        if clock is not None:
            self.context = replace(self.context, stop=Waits(clock))
        self.sink = post(door, self.context, **paced)
        self.writer = BatchWriter(self.config, self.sink, self.context)

    def deliver(self, rows: list[dict[str, Any]]) -> None:
        """A batch of one task."""
        self.writer.commit([self.run(rows)])

    def run(
        self, rows: list[dict[str, Any]], *, cuts: tuple[int, ...] = (), is_recut: bool = False
    ) -> TaskResult:
        """One task of a batch, which its first tasks cut at these offsets."""
        before, planned = Offsets({LOGS: 0}), Offsets({LOGS: 9}, self.context.stream_ids)
        self.context.begin_batch(before, planned, {LOGS: cuts} if cuts else {})
        columns = self.writer.steps.columns
        carried = [name for name in columns if name != ROUTE_COLUMN]
        known = {column.name: column for column in view("records").columns}
        schema = arrow_schema(known[name] for name in carried)
        part = self.writer.part(0, None, is_recut=is_recut)
        assert part is not None
        if isinstance(part.writer, RequestWriter):
            writer = replace(part.writer, clock=self.context.clock)
            part = replace(part, writer=writer)
        task = RouteTask(Unpacking(ROUTE_COLUMN, schema, tuple(columns)), part)
        (values,) = pa.Table.from_pylist(rows, schema=schema).to_batches()
        packed = pack(values.select([]), values)
        routes = pa.array([0] * packed.num_rows, pa.int32())
        return task(iter([packed.append_column(ROUTE_COLUMN, routes)]))


def test_a_dead_letter_of_a_task_is_the_record_before_its_transforms(
    door: FaultDoor, tmp_path: Path
) -> None:
    door.rule = lambda asked: Answered(422)
    routes = [{"name": "shy", "transforms": [{"drop": ["body"]}], "sinks": ["lake"]}]
    job = Job(door, tmp_path, routes=routes)
    job.deliver(task_rows(7, 8))
    assert b"order 7" not in door.asked[0].body
    (dead_letter,) = dead_letters(job.context)
    assert "order 7" in dead_letter["value"]
