"""What the Kafka sink takes for sent already, and what it does not."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import ValidationError
from typing_extensions import override

from penstock.router.sinks.kafka.positions import read_position
from penstock.router.sinks.kafka.sink import Kafka, KafkaSink, Message, Position, TroubleError
from tests.support.sink_batches import batch, context, log_record


class Broker:
    """Takes everything, and keeps the positions; outlives the sinks."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.positions: dict[str, Position] = {}

    def position(self, place: str) -> Position | None:
        return self.positions.get(place)

    def send(
        self, messages: Sequence[Message], place: str, behind: Position
    ) -> dict[int, TroubleError]:
        self.offsets += [it.offset for it in messages]
        self.positions[place] = behind
        return {}


def sink(directory: Path, broker: Broker) -> Kafka:
    settings = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "topic": "t"}
    return Kafka(KafkaSink.model_validate(settings), context(directory), connection=broker)


def test_a_batch_that_comes_again_is_known_and_a_replay_of_it_is_sent(tmp_path: Path) -> None:
    broker = Broker()
    rows = batch([log_record(number) for number in range(3)])
    sink(tmp_path, broker).write(rows)
    sink(tmp_path, broker).write(rows)
    assert broker.offsets == [0, 1, 2]
    for _ in range(2):
        replaying = sink(tmp_path, broker)
        replaying.start_over()
        replaying.write(rows)
    assert broker.offsets == [0, 1, 2] * 3


def test_a_request_of_a_replay_is_known_when_it_is_tried_again(tmp_path: Path) -> None:
    """Its transaction was committed, and nobody heard so."""

    class Silent(Broker):
        is_silent = True

        @override
        def send(
            self, messages: Sequence[Message], place: str, behind: Position
        ) -> dict[int, TroubleError]:
            found = super().send(messages, place, behind)
            if self.is_silent:
                self.is_silent = False
                raise TroubleError("_TIMED_OUT", "nobody knows")
            return found

    broker = Silent()
    settings = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "topic": "t"}
    retry = {"retry": {"initial_backoff_s": 0.001, "max_backoff_s": 0.001}}
    config = KafkaSink.model_validate(settings | retry)
    made = Kafka(config, context(tmp_path), connection=broker)
    made.start_over()
    made.write(batch([log_record(number) for number in range(3)]))
    assert broker.offsets == [0, 1, 2]
    assert made.context.meter.counted()["already_there"] == 3


def test_a_replay_leaves_the_position_of_the_batch_in_work(tmp_path: Path) -> None:
    broker = Broker()
    rows = batch([log_record(number) for number in range(4)])
    killed = sink(tmp_path, broker)
    killed.write(rows.slice(0, 2))  # as far as it came
    replaying = sink(tmp_path, broker)
    replaying.start_over()
    replaying.write(batch([log_record(9)], first=9))
    sink(tmp_path, broker).write(rows)
    assert broker.offsets == [0, 1, 9, 2, 3]


def test_positions_may_not_go_among_the_records(tmp_path: Path) -> None:
    settings = {
        "type": "kafka",
        "bootstrap_servers": "127.0.0.1:1",
        "topic": "t",
        "positions_topic": "t",
    }
    with pytest.raises(ValidationError, match="positions_topic must be another one than topic"):
        KafkaSink.model_validate(settings)


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b"[]", b"7", b"{}", b'{"first": 1, "end": 2}', b'{"a": {"b": 1}}',
     b'{"first": 1, "end": "2", "digest": "x"}',
     b'{"first": 1, "end": 2, "digest": "x", "more": 1}'],
)  # fmt: skip
def test_what_others_wrote_is_no_position(value: bytes) -> None:
    assert read_position(value) is None
    assert read_position(b'{"first":1,"end":2,"digest":"x"}') == Position(1, 2, "x")
