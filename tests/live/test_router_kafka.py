"""What only the Kafka sink does: positions, what a broker refuses, who else produces."""

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer

from penstock.router.errors import StoppedError
from penstock.router.sinks import SinkContext
from penstock.router.sinks.kafka.client import Connection
from penstock.router.sinks.kafka.sink import Kafka, KafkaSink
from tests.support import sink_batches
from tests.support.certificates import Authority
from tests.support.kafka_case import KafkaCase
from tests.support.mock_kafka import ADD_PARTITIONS, PRODUCE
from tests.support.real_kafka import broker, kafka_case
from tests.support.server_cases import FAST
from tests.support.sink_batches import NOW_NS, batch, dead_letters, log_record
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

INVALID_RECORD = 87
TOO_LARGE = 10
UNKNOWN = -1
FENCED = 90
FINE = 0
DELIVERED = [FINE, FINE]
"""A transaction asks for the partition of the records, and for that of the position."""
COUNT = 12
EACH_ONCE = Counter(range(COUNT))


@pytest.fixture
def case(tmp_path: Path) -> Iterator[KafkaCase]:
    made = kafka_case(tmp_path)
    yield made
    made.close()


def rows(count: int = COUNT, **more: Any) -> Any:
    return batch([log_record(number) for number in range(count)], **more)


@contextmanager
def waiting(sink: Any, context: SinkContext, written: Any) -> Iterator[str]:
    """While it waits, what it says; it goes on after the block."""
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(sink.write, written)
        try:
            yield wait_until(lambda: context.meter.problem) or ""
            writing.result(60)
        finally:
            context.stop.set()


def stopped_at(sink: Any, context: SinkContext, written: Any) -> str:
    """What it says before it is ended while it waits."""
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(sink.write, written)
        problem = wait_until(lambda: context.meter.problem) or ""
        context.stop.set()
        with pytest.raises(StoppedError):
            writing.result(60)
    return problem


def died_after(case: KafkaCase, requests: int, written: Any) -> None:
    """A sink that delivers so many requests of four records, and then ends."""
    sink, context = case.sink(batch={"max_records": 4}, timeout_s=2)
    heal = case.breaks_after(requests)
    stopped_at(sink, context, written)
    sink.close()
    heal()


def test_a_message_has_its_place_its_time_and_its_record(case: KafkaCase) -> None:
    sink, _ = case.sink()
    sink.write(batch([log_record(3), b"\xff"], first=41, key=b"k"))
    first, second = case.messages()
    assert json.loads(first.value() or b"") == log_record(3)
    assert first.key() == b"k"
    assert first.timestamp()[1] == NOW_NS // 1_000_000
    assert first.headers() == [
        ("penstock_id", b"logs.5f2c19aa/0/41"),
        ("penstock_kind", b"log"),
        ("penstock_subject", b"telemetry.logs.checkout"),
    ]
    assert second.value() == b"\xff"


def test_a_sink_that_died_within_a_batch_goes_on_where_it_was(case: KafkaCase) -> None:
    died_after(case, 2, rows())
    assert case.stored() == Counter(range(8))
    sink, context = case.sink(batch={"max_records": 5})
    sink.write(rows())
    assert case.stored() == EACH_ONCE
    assert context.meter.stage("x", received=COUNT, lag=0).detail["already_there"] == 8


def test_a_batch_of_other_records_is_another_batch(case: KafkaCase) -> None:
    """A `where` that was changed meanwhile lets a record in that was not in the batch before."""
    every = rows()
    died_after(case, 2, every.filter([number != 2 for number in range(COUNT)]))
    sink, context = case.sink()
    sink.write(every)
    assert set(case.stored()) == set(EACH_ONCE)
    assert context.meter.stage("x", received=COUNT, lag=0).detail["already_there"] == 0


def test_what_is_delivered_again_on_purpose_is_there_again(case: KafkaCase) -> None:
    sink, _ = case.sink()
    sink.write(rows(4))
    sink.write(rows(8).slice(4))
    sink.write(rows(4).slice(1, 1))  # a letter, or a range of the log that is replayed
    assert case.stored() == Counter(range(8)) + Counter([1])


def test_partitions_of_the_log_have_positions_of_their_own(case: KafkaCase) -> None:
    sink, _ = case.sink()
    sink.write(rows(3))
    other, context = case.sink()
    other.write(batch([log_record(number) for number in range(3, 6)], partition=1))
    other.write(rows(3))
    assert case.stored() == Counter(range(6))
    assert context.meter.stage("x", received=6, lag=0).detail["already_there"] == 3


def test_a_record_that_the_broker_refuses_is_a_dead_letter(case: KafkaCase) -> None:
    """When the batch comes again it is asked for again, and the others are not."""
    for before in (DELIVERED, ()):
        sink, context = case.sink(batch={"max_records": 1})
        case.refuse(PRODUCE, *before, INVALID_RECORD)
        sink.write(rows(3))
        assert case.stored() == Counter([0, 2])
        (dead_letter,) = dead_letters(context)
        assert (dead_letter["offset"], dead_letter["code"]) == (1, "kafka_INVALID_RECORD")


def test_a_record_that_spoils_its_request_is_found_in_halves(case: KafkaCase) -> None:
    """The mock looks into no record: it is told which request of the bisection to refuse."""
    sink, context = case.sink()
    refused = [INVALID_RECORD]
    of_bisection = [
        refused,  # all
        DELIVERED,  # 0-5
        refused,  # 6-11
        refused,  # 6-8
        DELIVERED,  # 6
        refused,  # 7-8
        refused,  # 7
    ]
    case.refuse(ADD_PARTITIONS, *(error for errors in of_bisection for error in errors))
    sink.write(rows())
    assert case.stored() == EACH_ONCE - Counter([7])
    given_up = [(it["offset"], it["code"]) for it in dead_letters(context)]
    assert given_up == [(7, "kafka_INVALID_RECORD")]


def test_records_refused_at_the_beginning_of_a_batch_are_overtaken_by_no_other(
    case: KafkaCase,
) -> None:
    """They are as many as make a sink suspect its settings."""
    sink, context = case.sink(batch={"max_records": 2})
    of_bisection = [0, 1], [0], [1], [2, 3], [2]
    case.refuse(ADD_PARTITIONS, *[INVALID_RECORD] * len(of_bisection))
    sink.write(rows())
    assert case.numbers() == [*range(3, COUNT)]
    assert [it["offset"] for it in dead_letters(context)] == [0, 1, 2]


def test_a_batch_whose_records_were_all_refused_comes_in_its_order(case: KafkaCase) -> None:
    sink, context = case.sink(batch={"max_records": 5})
    heal = case.refuse(ADD_PARTITIONS, *[INVALID_RECORD] * 1000)
    with waiting(sink, context, rows()) as problem:
        assert "; rejected: every record is refused" in problem
        heal()
    assert case.numbers() == [*range(COUNT)]
    assert dead_letters(context) == []


def test_a_request_that_is_too_large_for_the_broker_goes_in_halves(case: KafkaCase) -> None:
    sink, context = case.sink()
    case.refuse(ADD_PARTITIONS, TOO_LARGE, TOO_LARGE)
    sink.write(rows())
    assert case.stored() == EACH_ONCE
    assert dead_letters(context) == []
    assert context.meter.stage("x", received=COUNT, lag=0).detail["requests"] == 5


def test_who_is_fenced_says_so_and_goes_on(case: KafkaCase) -> None:
    sink, context = case.sink()
    sink.write(rows(4))
    heal = case.refuse(ADD_PARTITIONS, FENCED, *[UNKNOWN] * 1000)
    with waiting(sink, context, rows(8).slice(4)) as problem:
        assert "fenced" in problem
        assert "paused" in problem
        heal()
    assert case.stored() == Counter(range(8))


def test_a_topic_of_positions_that_may_not_be_made_is_waited_for(case: KafkaCase) -> None:
    other = f"{case.run}.other"
    sink, context = case.sink(positions_topic=other, create=False)
    with waiting(sink, context, rows(2)) as problem:
        assert "UNKNOWN_TOPIC_OR_PART" in problem
        assert "paused" in problem
        case.make_topic(other)
    assert case.stored() == Counter(range(2))


@pytest.mark.parametrize("value", [b"7", b"\xff", b'{"order": 1}'])
def test_a_topic_of_positions_is_for_one_sink(case: KafkaCase, value: bytes) -> None:
    """Whatever others wrote there, under a key of ours as well, it is no position."""
    own = "penstock.job.sink/logs.5f2c19aa/0" if value != b"7" else "theirs"
    foreign = Producer({"bootstrap.servers": f"127.0.0.1:{case.door.port}"})
    foreign.produce(f"{case.run}.positions", value, own)
    assert foreign.flush(30) == 0
    sink, context = case.sink()
    problem = stopped_at(sink, context, rows(1))
    assert f"is not this sink's alone: {own}" in problem
    assert "paused" in problem
    assert dead_letters(context) == []


def connected(case: KafkaCase, directory: Path, **how: Any) -> tuple[Kafka, Connection]:
    """A sink and what it sends by."""
    config = KafkaSink.model_validate({"type": "kafka", **FAST, **case.keys()})
    made = sink_batches.context(directory)
    connection = Connection(config, f"{made.job}.{made.sink}", **how)
    sink = Kafka(config, made, connection=connection)
    sink.open()
    case.closing.append(sink.close)
    return sink, connection


def connections(case: KafkaCase) -> set[int]:
    """The ports of this process's connections to the broker."""
    found = psutil.Process().net_connections("tcp")
    connected = [it for it in found if it.status == psutil.CONN_ESTABLISHED]
    return {it.laddr.port for it in connected if it.raddr.port == case.door.port}


def test_positions_are_read_again_by_the_connections_that_are_there(
    case: KafkaCase, tmp_path: Path
) -> None:
    if broker() is not None:
        pytest.skip("clients of other tests connect to a real broker's door, too")
    sink, connection = connected(case, tmp_path)
    sink.write(rows(2))
    assert connection.committed().next_offset
    before = connections(case)
    assert before
    for count in (4, 6, 8):
        sink.write(rows(count).slice(count - 2))
        (position,) = connection.committed().positions.values()
        assert position.end == count
    assert connections(case) <= before
    sink.close()
    wait_until(lambda: not connections(case), what="a closed sink has none")


def test_a_producer_without_work_is_listened_to(case: KafkaCase, tmp_path: Path) -> None:
    """What it has to say would pile up, and an error that is there for good stay unknown."""
    sink, connection = connected(case, tmp_path, hear_s=0.01)
    sink.write(rows(2))
    connection.said = None
    case.door.close()
    wait_until(lambda: connection.said, what="the producer tells of its broker")


def test_a_queue_that_is_full_is_waited_for(case: KafkaCase, tmp_path: Path) -> None:
    sink, _ = connected(case, tmp_path, settings={"queue.buffering.max.messages": 2})
    context = sink.context
    sink.write(rows())
    assert case.stored() == EACH_ONCE
    assert dead_letters(context) == []


def test_a_connection_is_encrypted_with_an_authority_of_its_own(
    case: KafkaCase, tmp_path: Path
) -> None:
    ours = Authority(tmp_path / "ours")
    with case.encrypted(tmp_path / "theirs") as (port, theirs):
        keys = {
            "bootstrap_servers": f"127.0.0.1:{port}", "security_protocol": "ssl", "timeout_s": 2,
            "tls": {"ca_file": str(tmp_path / "authority.pem")},
        }  # fmt: skip
        trusted = tmp_path / "authority.pem"
        trusted.write_bytes(ours.cert.read_bytes())
        sink, context = case.sink(**keys)
        with waiting(sink, context, rows()) as problem:
            assert "_SSL" in problem
            assert "paused" in problem
            trusted.write_bytes(theirs.read_bytes())
        sink.close()
    assert case.stored() == EACH_ONCE
