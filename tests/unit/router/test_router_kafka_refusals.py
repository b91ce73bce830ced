"""What the Kafka sink does when a broker refuses a message of a transaction."""

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from penstock.router.sinks.kafka.producer import PartitionProducer, Target
from penstock.router.sinks.kafka.sink import Message, Position

_LATE = KafkaError._TIMED_OUT  # noqa: SLF001 - librdkafka names its own errors so, and no other way


class Producer:
    """Delivers the first message, is refused the second, and keeps those behind for an abort."""

    def __init__(self) -> None:
        self.reports: list[Callable[[Any, Any], None]] = []
        self.flushes = 0
        self.ended: list[str] = []

    def begin_transaction(self) -> None:
        self.reports.clear()

    def produce(
        self, topic: str, value: Any, key: Any, *, on_delivery: Callable[[Any, Any], None], **_: Any
    ) -> None:
        self.reports.append(on_delivery)

    def flush(self, seconds: float) -> int:
        self.flushes += 1
        if self.flushes == 2:
            invalid = KafkaError(KafkaError.INVALID_RECORD)
            self.reports[0](None, None)
            self.reports[1](invalid, None)
        return len(self.reports)

    def abort_transaction(self, seconds: float) -> None:
        """What was on its way waits for the abort since it was refused: the next call drops it."""
        self.ended.append("abort")
        if len(self.ended) == 1:
            late = KafkaError(_LATE, "to flush", False, True, False)
            raise KafkaException(late)

    def purge(self) -> None:
        self.ended.append("purge")

    def commit_transaction(self, seconds: float) -> None:
        self.ended.append("commit")


def test_what_is_behind_a_refused_message_is_not_waited_for() -> None:
    """Nor does the producer go with it: a new one has every position to read."""
    producer: Any = Producer()
    target = Target("topic", "positions", b"logs/0", timeout_s=10)
    before, behind = Position(0, 0, "digest"), Position(0, 4, "digest")
    of_partition = PartitionProducer(producer, target, before, lambda error: None)
    messages = [Message(None, b"{}", (), 0, "logs/0", offset) for offset in range(4)]
    refused = of_partition.send(messages, b"{}", behind)
    assert [(place, why.name) for place, why in refused.items()] == [(1, "INVALID_RECORD")]
    assert producer.flushes == 2
    assert producer.ended == ["abort", "abort"]
    assert of_partition.position == before
    assert not of_partition.is_over
