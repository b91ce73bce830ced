"""What only a real broker does to the Kafka sink: it looks into messages, and fences producers."""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from tests.support.killed_job import RECORDS, run_with_kills
from tests.support.real_kafka import RealKafkaCase, broker
from tests.support.sink_batches import NOW_NS, SCHEMA, batch, dead_letters, log_record
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

DAY_NS = 86_400 * 10**9
COUNT = 12
PARTS = (range(4), range(4, 8))


@pytest.fixture
def case(tmp_path: Path) -> Iterator[RealKafkaCase]:
    named = broker()
    if named is None:
        pytest.skip("`make test-extended` names a broker")
    made = RealKafkaCase(tmp_path, named)
    yield made
    made.close()


def letters_of(context: Any) -> list[tuple[int, str]]:
    return [(letter["offset"], letter["code"]) for letter in dead_letters(context)]


def producer_of(case: RealKafkaCase, partition: int = 0) -> Producer:
    """One that takes the partition of the log from the sink."""
    own = f"penstock.job.sink/logs.5f2c19aa/{partition}"
    servers = f"127.0.0.1:{case.door.port}"
    return Producer({"bootstrap.servers": servers, "transactional.id": own})


def rows_but(odd: int, **columns: Any) -> Any:
    """Records with a key of their own; the columns of one are others."""
    rows = [
        {**row, "key": b"%d" % row["offset"], **(columns if row["offset"] == odd else {})}
        for row in batch([log_record(number) for number in range(COUNT)]).to_pylist()
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@pytest.mark.parametrize("max_records", [1, 5, COUNT])
def test_a_key_that_a_compacted_topic_misses_is_a_dead_letter(
    case: RealKafkaCase, max_records: int
) -> None:
    """Nor does it hold up the others: what is behind it in the transaction is never answered."""
    topic = f"{case.run}.compacted"
    case.make_topic(topic, **{"cleanup.policy": "compact"})
    sink, context = case.sink(topic=topic, batch={"max_records": max_records}, timeout_s=100)
    sink.write(rows_but(7, key=None))
    case.run = topic
    assert case.stored() == Counter(range(COUNT)) - Counter([7])
    assert letters_of(context) == [(7, "kafka_INVALID_RECORD")]


def test_a_time_that_the_topic_does_not_take_is_a_dead_letter(case: RealKafkaCase) -> None:
    topic = f"{case.run}.fresh"
    case.make_topic(topic, **{"message.timestamp.before.max.ms": "3600000"})
    sink, context = case.sink(topic=topic)
    records = [log_record(number) for number in range(COUNT)]
    records[7] |= {"time_unix_nano": NOW_NS - DAY_NS}
    sink.write(batch(records))
    case.run = topic
    assert case.stored() == Counter(range(COUNT)) - Counter([7])
    assert letters_of(context) == [(7, "kafka_INVALID_TIMESTAMP")]


def test_what_is_too_large_for_the_topic_goes_in_halves(case: RealKafkaCase) -> None:
    topic = f"{case.run}.small"
    case.make_topic(topic, **{"max.message.bytes": "3000"})
    sink, context = case.sink(topic=topic, compression="none", max_message_bytes=100_000)
    records = [log_record(number) for number in range(COUNT)]
    records[7] |= {"padding": "x" * 4000}
    sink.write(batch(records))
    case.run = topic
    assert case.stored() == Counter(range(COUNT)) - Counter([7])
    assert letters_of(context) == [(7, "kafka_MSG_SIZE_TOO_LARGE")]


def test_who_is_fenced_by_another_router_goes_on_once(case: RealKafkaCase) -> None:
    sink, context = case.sink()
    first, rest = (batch([log_record(it) for it in part], first=part[0]) for part in PARTS)
    sink.write(first)
    other = producer_of(case)
    other.init_transactions(30)
    sink.write(rest)
    assert case.stored() == Counter(range(8))
    assert "retries" in context.meter.stage("x", received=8, lag=0).detail
    assert dead_letters(context) == []


def test_a_task_that_another_one_fences_leaves_the_rest_to_the_driver(case: RealKafkaCase) -> None:
    case.in_tasks = True
    sink, context = case.sink(batch={"max_records": 2})
    sink.write(batch([log_record(it) for it in PARTS[0]]))
    producer_of(case).init_transactions(30)
    sink.write(batch([log_record(it) for it in PARTS[1]], first=PARTS[1][0]))
    assert case.numbers() == list(range(8))
    assert dead_letters(context) == []
    assert context.meter.problem is None


def test_a_transaction_that_a_killed_task_has_open_is_ended_by_the_next(
    case: RealKafkaCase,
) -> None:
    case.in_tasks = True
    killed = producer_of(case)
    killed.init_transactions(30)
    killed.begin_transaction()
    killed.produce(case.run, json.dumps(log_record(0)).encode())
    assert killed.flush(30) == 0
    sink, context = case.sink()
    sink.write(batch([log_record(number) for number in range(COUNT)]))
    assert case.numbers() == list(range(COUNT))
    with pytest.raises(KafkaException):
        killed.commit_transaction(30)
    assert case.numbers() == list(range(COUNT))
    assert dead_letters(context) == []


def test_transactions_that_tasks_have_open_hide_nothing_from_the_driver(
    case: RealKafkaCase,
) -> None:
    """The job was killed as a whole; what its tasks had open in each partition is ended at once."""
    sink, context = case.sink(timeout_s=10)
    parts = [batch([log_record(number)], partition=number) for number in range(3)]
    open_ = [producer_of(case, number) for number in range(3)]
    for producer in open_:
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(case.keys()["positions_topic"], b"{}", b"nobody sees it")
        assert producer.flush(30) == 0
    sink.write(pa.concat_tables(parts))
    assert case.numbers() == [0, 1, 2]
    assert context.meter.stage("x", received=3, lag=0).errors == 0
    assert dead_letters(context) == []


def test_a_job_whose_processes_are_killed_has_each_record_once_and_in_order(
    case: RealKafkaCase, tmp_path: Path, nats_url: str
) -> None:
    sink = {"type": "kafka", **case.keys()}
    run_with_kills(tmp_path, nats_url, sink, case.door.port, lambda: len(case.numbers()))
    assert case.numbers() == list(range(RECORDS))


def test_a_broker_that_stands_still_loses_and_doubles_nothing(case: RealKafkaCase) -> None:
    sink, context = case.sink(batch={"max_records": 2}, timeout_s=1)
    first, rest = (batch([log_record(it) for it in part], first=part[0]) for part in PARTS)
    sink.write(first)
    os.kill(case.real.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        try:
            writing = pool.submit(sink.write, rest)
            wait_until(lambda: "retries" in context.meter.stage("x", received=0, lag=0).detail)
        finally:
            os.kill(case.real.pid, signal.SIGCONT)
        writing.result(60)
    assert case.stored() == Counter(range(8))
    assert dead_letters(context) == []


def test_the_topic_of_positions_is_made_and_compacted(case: RealKafkaCase) -> None:
    positions = f"{case.run}.made"
    sink, _ = case.sink(positions_topic=positions)
    sink.write(batch([log_record(0)]))
    asked = ConfigResource(ResourceType.TOPIC, positions)
    settings = case.admin.describe_configs([asked])[asked].result(30)
    assert settings["cleanup.policy"].value == "compact"
    assert case.stored() == Counter([0])
