"""The BigQuery sink in tasks of Spark that are killed, run again, run twice, or come too late."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.router.read.offsets import Offsets, StreamPartition
from penstock.router.sinks import SinkContext, make_sink
from penstock.router.sinks.bigquery.sink import BigQuery, BigQuerySink
from penstock.router.sinks.http.task_sink import CONNECTIONS
from tests.support.fake_bigquery import FakeBigQuery
from tests.support.killed_job import RECORDS, run_with_kills
from tests.support.sink_batches import batch, context, dead_letters, log_record
from tests.support.task_batches import run_task, written_by_task

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

COUNT = 12
EACH_ONCE = Counter(range(COUNT))
LOGS = StreamPartition("logs", 0)
RETRY = {"initial_backoff_s": 0.005, "max_backoff_s": 0.02, "confirmed_after_s": 0.02}


@pytest.fixture
def table() -> Iterator[FakeBigQuery]:
    made = FakeBigQuery()
    yield made
    CONNECTIONS.close()
    made.close()


def sink_of(table: FakeBigQuery, directory: Path, **more: Any) -> tuple[BigQuery, SinkContext]:
    """The sink of a job's process, and its context."""
    made = context(directory, **more)
    settings = {"type": "bigquery", "retry": RETRY, "batch": {"max_records": 4}}
    sink = make_sink(BigQuerySink.model_validate(settings | table.keys()), made)
    assert isinstance(sink, BigQuery)
    sink.open()
    return sink, made


def rows(first: int = 0, end: int = COUNT) -> Any:
    return batch([log_record(number) for number in range(first, end)], first=first)


def begin(sink: BigQuery, first: int = 0, end: int = COUNT) -> None:
    """A batch of the log comes."""
    before = Offsets({LOGS: first}, sink.context.stream_ids)
    sink.context.begin_batch(before, Offsets({LOGS: end}, sink.context.stream_ids))
    sink.begin()


def deliver(sink: BigQuery, first: int = 0, end: int = COUNT) -> None:
    begin(sink, first, end)
    sink.commit([written_by_task(sink, rows(first, end))])


def bodies(table: FakeBigQuery) -> list[int]:
    return [int(json.loads(row["record"])["body"].split()[1]) for row in table.rows()]


def counts(context: SinkContext) -> Counter[str]:
    return context.meter.counted()


def breaks_after(table: FakeBigQuery, appends: int, *, takes: bool = False) -> None:
    """Have the table take some appends; the next one gets no answer, whether taken or not."""

    def breaks(context: Any, take: Callable[[], Any]) -> Any:
        if takes:
            take()
        context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")

    table.faults = [lambda context, take: take()] * appends + [breaks]


def test_tasks_append_batch_after_batch_to_one_stream_of_a_partition(
    table: FakeBigQuery, tmp_path: Path
) -> None:
    sink, context = sink_of(table, tmp_path)
    for first, end in ((0, 5), (5, 5), (5, COUNT)):
        begin(sink, first, end)
        written = written_by_task(sink, rows(first, end))
        sink.commit([written])
        assert written.delivered == end - first
    assert bodies(table) == list(range(COUNT))
    assert len(table.streams) == 1
    assert context.meter.stage("x", received=COUNT, lag=0).sent == COUNT
    sink.close()


@pytest.mark.parametrize("takes", [True, False], ids=["taken", "not taken"])
@pytest.mark.parametrize("appends", [0, 1, 2])
def test_a_task_that_runs_again_repeats_nothing(
    table: FakeBigQuery, tmp_path: Path, appends: int, takes: bool
) -> None:
    sink, context = sink_of(table, tmp_path)
    begin(sink)
    writer = sink.writer()
    breaks_after(table, appends, takes=takes)
    run_task(writer, rows())  # nobody gets what it returns: its worker is killed
    CONNECTIONS.close()
    sink.commit([run_task(writer, rows())])
    assert table.stored() == EACH_ONCE
    assert dead_letters(context) == []
    deliver(sink, COUNT, COUNT + 4)
    assert table.stored() == Counter(range(COUNT + 4))
    assert counts(context)["unknown"] == 0
    sink.close()


@pytest.mark.parametrize("takes", [True, False], ids=["taken", "not taken"])
def test_a_batch_whose_tasks_were_killed_with_the_driver_is_there_once(
    table: FakeBigQuery, tmp_path: Path, takes: bool
) -> None:
    killed, _ = sink_of(table, tmp_path)
    begin(killed)
    breaks_after(table, 1, takes=takes)
    written_by_task(killed, rows())
    CONNECTIONS.close()
    killed.close()
    sink, context = sink_of(table, tmp_path)
    begin(sink)
    written = written_by_task(sink, rows())
    assert written.delivered == 0, "the driver knows what is there"
    sink.commit([written])
    assert table.stored() == EACH_ONCE
    assert counts(context)["already_there"] == (8 if takes else 4)
    begin(sink, COUNT, COUNT + 4)
    written = written_by_task(sink, rows(COUNT, COUNT + 4))
    assert written.delivered == 4, "and tasks go on"
    sink.commit([written])
    assert table.stored() == Counter(range(COUNT + 4))
    sink.close()


def test_a_batch_that_comes_again_after_it_was_committed_is_there_once(
    table: FakeBigQuery, tmp_path: Path
) -> None:
    """Spark had not noted that it was through: in the same process, and after a kill."""
    sink, _ = sink_of(table, tmp_path)
    deliver(sink)
    deliver(sink)
    sink.close()
    again, context = sink_of(table, tmp_path)
    deliver(again)
    deliver(again, COUNT, COUNT + 4)
    assert table.stored() == Counter(range(COUNT + 4))
    assert counts(context)["unknown"] == 0
    again.close()


def test_what_the_driver_and_tasks_delivered_of_a_killed_batch_is_there_once(
    table: FakeBigQuery, tmp_path: Path
) -> None:
    """One partition was the tasks' alone; of another the driver has delivered a part."""
    killed, _ = sink_of(table, tmp_path)
    other = batch([log_record(COUNT + number) for number in range(COUNT)], partition=1)
    at = {LOGS: 0, StreamPartition("logs", 1): 0}
    ids = killed.context.stream_ids
    end = Offsets(dict.fromkeys(at, COUNT), ids)
    killed.context.begin_batch(Offsets(at, ids), end)
    killed.begin()
    writer = killed.writer()
    first = run_task(writer, rows())
    breaks_after(table, 1)
    second = run_task(writer, other)
    assert (first.delivered, second.delivered) == (COUNT, 4)
    breaks_after(table, 1)
    table.faults *= 1000
    killed.context.stop.set()
    with pytest.raises(Exception, match="gave up"):
        killed.commit([first, second])
    killed.close()
    table.faults.clear()
    CONNECTIONS.close()
    sink, context = sink_of(table, tmp_path)
    sink.context.begin_batch(Offsets(at, ids), end)
    sink.begin()
    sink.commit([written_by_task(sink, it) for it in (rows(), other)])
    assert table.stored() == Counter(range(2 * COUNT))
    assert counts(context)["already_there"] >= COUNT + 4
    sink.close()


def test_a_task_that_goes_on_somewhere_appends_nothing_behind_the_driver(
    table: FakeBigQuery, tmp_path: Path
) -> None:
    """The driver appends what it was left with elsewhere, however it cuts that."""
    sink, context = sink_of(table, tmp_path)
    begin(sink)
    writer = sink.writer()
    breaks_after(table, 1)
    sink.commit([run_task(writer, rows())])
    CONNECTIONS.close()
    assert run_task(writer, rows()).delivered == 0
    assert table.stored() == EACH_ONCE
    assert dead_letters(context) == []
    sink.close()


@pytest.mark.parametrize("lost", [True, False], ids=["records lost", "other rules"])
def test_rows_whose_order_is_another_now_are_delivered_again_and_counted(
    table: FakeBigQuery, tmp_path: Path, lost: bool
) -> None:
    """A stream says how many rows it has, and not which: none may be missing."""
    killed, _ = sink_of(table, tmp_path)
    begin(killed)
    breaks_after(table, 1)
    written_by_task(killed, rows())
    CONNECTIONS.close()
    killed.close()
    sink, context = sink_of(table, tmp_path, rules="" if lost else "others")
    begin(sink)
    if lost:
        context.shorten()
    sink.commit([written_by_task(sink, rows(2))])
    assert set(table.stored()) == set(EACH_ONCE)
    assert table.stored()[3] == 2
    assert counts(context)["unknown"] == 1
    sink.close()


def test_rows_that_are_wrong_are_dead_letters_and_the_others_arrive(
    table: FakeBigQuery, tmp_path: Path
) -> None:
    sink, context = sink_of(table, tmp_path)
    records = [log_record(number) for number in range(COUNT)]
    records[5] = log_record(5, body="order 5 POISON")
    begin(sink)
    sink.commit([written_by_task(sink, batch(records))])
    assert table.stored() == EACH_ONCE - Counter([5])
    assert [(it["offset"], it["code"]) for it in dead_letters(context)] == [(5, "bigquery_row")]
    sink.close()


def test_a_job_whose_processes_are_killed_has_each_record_once(
    table: FakeBigQuery, tmp_path: Path, nats_url: str
) -> None:
    sink = {"type": "bigquery", **table.keys()}
    run_with_kills(tmp_path, nats_url, sink, table.port, lambda: table.stored().total())
    assert table.stored() == Counter(range(RECORDS))
