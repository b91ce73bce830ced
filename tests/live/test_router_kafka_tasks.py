"""The Kafka sink in tasks of Spark that are killed, run again, run twice, or come too late."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.router.sinks.http.task_sink import CONNECTIONS
from penstock.router.sinks.kafka.sink import Kafka
from tests.support.kafka_case import KafkaCase
from tests.support.real_kafka import kafka_case
from tests.support.sink_batches import batch, dead_letters, log_record
from tests.support.sink_tasks import write_in_tasks
from tests.support.task_batches import run_task, written_by_task

pytestmark = pytest.mark.live

COUNT = 12
EACH_ONCE = Counter(range(COUNT))


@pytest.fixture
def case(tmp_path: Path) -> Iterator[KafkaCase]:
    with closing(kafka_case(tmp_path)) as made:
        yield made
        CONNECTIONS.close()


def sink_of(case: KafkaCase, **keys: Any) -> tuple[Kafka, Any]:
    sink, context = case.sink(batch={"max_records": 4}, **keys)
    assert isinstance(sink, Kafka)
    sink.begin()
    return sink, context


def rows(first: int = 0, end: int = COUNT, *, number: int | None = None, **columns: Any) -> Any:
    """Offsets of a partition; their records have numbers that begin there, too, or with another."""
    begin = first if number is None else number
    return batch([log_record(begin + it) for it in range(end - first)], first=first, **columns)


def already_there(context: Any) -> int:
    return int(context.meter.stage("x", received=COUNT, lag=0).detail.get("already_there", 0))


def worker_killed() -> None:
    """The next task is in another worker, which has no connection yet."""
    CONNECTIONS.close()


def test_tasks_write_batch_after_batch_each_partition_in_its_order(case: KafkaCase) -> None:
    sink, context = sink_of(case)
    for first, end in ((0, 8), (8, COUNT)):
        sink.begin()
        parts = [rows(first, end), rows(first, end, number=100 + first, partition=1)]
        written = [written_by_task(sink, part) for part in parts]
        assert [it.delivered for it in written] == [end - first] * 2
        sink.commit(written)
    found = case.numbers()
    assert [it for it in found if it < 100] == list(range(COUNT))
    assert [it for it in found if it >= 100] == list(range(100, 100 + COUNT))
    assert context.meter.stage("x", received=2 * COUNT, lag=0).sent == 2 * COUNT


@pytest.mark.parametrize("transactions", [1, 2, 3])
def test_a_task_that_runs_again_goes_on_behind_what_the_one_before_committed(
    case: KafkaCase, transactions: int
) -> None:
    sink, context = sink_of(case, timeout_s=2)
    writer = sink.writer()
    heal = case.breaks_after(transactions)
    run_task(writer, rows())  # its worker is killed, and nobody gets this
    worker_killed()
    heal()
    written = run_task(writer, rows())
    assert (written.delivered, written.unsettled) == (COUNT, ())
    sink.commit([written])
    assert case.numbers() == list(range(COUNT))
    assert already_there(context) == 4 * transactions
    assert dead_letters(context) == []


def test_a_batch_whose_tasks_were_killed_with_the_driver_is_there_once(case: KafkaCase) -> None:
    first, _ = sink_of(case, timeout_s=2)
    heal = case.breaks_after(2)
    written_by_task(first, rows())
    worker_killed()
    first.close()
    heal()
    sink, context = sink_of(case)
    sink.commit([written_by_task(sink, rows())])
    assert case.numbers() == list(range(COUNT))
    assert already_there(context) == 8


def test_two_runs_of_a_task_write_its_records_once(case: KafkaCase) -> None:
    """Spark speculates, and commits one of them."""
    sink, context = sink_of(case)
    writer = sink.writer()
    (other,) = write_in_tasks(sink, [rows()])
    assert run_task(writer, rows()).delivered == other.delivered == COUNT
    sink.commit([other])
    assert case.numbers() == list(range(COUNT))
    assert dead_letters(context) == []


def test_a_task_of_an_earlier_batch_writes_nothing(case: KafkaCase) -> None:
    """An executor was lost, and its task goes on long after another has done its work."""
    sink, context = sink_of(case)
    lost = sink.writer()
    for first, end in ((0, 8), (8, COUNT)):
        sink.begin()
        sink.commit([written_by_task(sink, rows(first, end))])
    worker_killed()
    written = run_task(lost, rows(0, 8))
    assert written.delivered == 0
    assert [it.result for it in written.unsettled] == [None, None]
    worker_killed()
    sink.begin()
    sink.commit([written_by_task(sink, rows(COUNT, COUNT + 2))])
    assert case.numbers() == list(range(COUNT + 2))
    assert already_there(context) == 0


def test_the_driver_goes_on_in_order_behind_what_tasks_have_written(case: KafkaCase) -> None:
    sink, context = sink_of(case, timeout_s=2)
    heal = case.breaks_after(1)
    written = written_by_task(sink, rows())
    assert written.delivered == 4
    heal()
    sink.commit([written])
    assert case.numbers() == list(range(COUNT))
    assert dead_letters(context) == []
    sink.begin()
    sink.commit([written_by_task(sink, rows(COUNT, COUNT + 4))])
    assert case.numbers() == list(range(COUNT + 4)), "and tasks go on behind the driver"


def test_a_record_that_a_task_cannot_deliver_is_a_dead_letter_with_its_reason(
    case: KafkaCase,
) -> None:
    sink, context = sink_of(case)
    records = [log_record(number) for number in range(COUNT)]
    records[7] = case.poison(7)
    written = written_by_task(sink, batch(records))
    assert written.delivered == COUNT - 1
    sink.commit([written])
    assert case.stored() == EACH_ONCE - Counter([7])
    (dead_letter,) = dead_letters(context)
    assert (dead_letter["offset"], dead_letter["code"]) == (7, "kafka_MSG_SIZE_TOO_LARGE")


def test_tasks_send_nothing_where_the_positions_cannot_be_read(case: KafkaCase) -> None:
    """The driver says what is wrong, and waits."""
    other = f"{case.run}.other"
    sink, context = sink_of(case, positions_topic=other, create=False, timeout_s=2)
    written = written_by_task(sink, rows())
    assert (written.delivered, len(written.unsettled)) == (0, 3)
    case.make_topic(other)
    sink.commit([written])
    assert case.numbers() == list(range(COUNT))
    assert dead_letters(context) == []
