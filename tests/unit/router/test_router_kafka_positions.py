"""What the Kafka sink takes for sent already, and what it does not."""

import random
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typing_extensions import override

from penstock.router.sinks.kafka.positions import position_value, read_position
from penstock.router.sinks.kafka.sink import Kafka, KafkaSink, Message, Position, TroubleError
from tests.support.sink_batches import batch, context, dead_letters, log_record


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


def sink(directory: Path, broker: Broker, **keys: Any) -> Kafka:
    settings = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "topic": "t", **keys}
    settings |= {"retry": {"initial_backoff_s": 0.001, "max_paused_backoff_s": 0.001}}
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


class Refusing(Broker):
    """Refuses some offsets, as it does a message without a key in a compacted topic.

    Attributes:
        refused: These.
        dies_at: Number of the call from which on nothing is answered; it is taken or not.
    """

    def __init__(self, refused: Collection[int] = ()) -> None:
        super().__init__()
        self.refused = refused
        self.dies_at: int | None = None
        self.takes = False

    @override
    def send(
        self, messages: Sequence[Message], place: str, behind: Position
    ) -> dict[int, TroubleError]:
        wrong = [at for at, it in enumerate(messages) if it.offset in self.refused]
        if self.dies_at is not None:
            self.dies_at -= 1
            if self.dies_at < 0:
                if self.takes and not wrong:
                    super().send(messages, place, behind)
                raise KilledError
        if wrong:
            return {at: TroubleError("INVALID_RECORD", "it has no key") for at in wrong}
        # What a position says is kept as its message.
        said = read_position(position_value(behind))
        assert said is not None
        return super().send(messages, place, said)


class KilledError(Exception):
    """The job is killed here."""


@pytest.mark.parametrize("refused", [{1}, {0, 1, 2}, {0, 1, 2, 3, 11}, {2, 5, 6, 10}])
def test_refused_records_are_dead_letters_and_all_others_arrive(
    tmp_path: Path, refused: set[int]
) -> None:
    """Where the first three are refused, the last one is tried before the others."""
    broker = Refusing(refused)
    made = sink(tmp_path, broker)
    made.write(batch([log_record(number) for number in range(12)]))
    assert sorted(broker.offsets) == [it for it in range(12) if it not in refused]
    assert {it["offset"] for it in dead_letters(made.context)} == refused
    assert made.context.meter.counted()["already_there"] == 0


def test_a_refused_record_whose_dead_letter_could_not_be_written_is_asked_for_again(
    tmp_path: Path,
) -> None:
    broker = Refusing({1})
    rows = batch([log_record(number) for number in range(4)])
    first = sink(tmp_path, broker)
    first.context.dead_letters.write_text("in place of a directory")
    with pytest.raises(OSError, match="dead"):
        first.write(rows)
    assert broker.offsets == [0, 2, 3]
    first.context.dead_letters.unlink()
    again = sink(tmp_path, broker)
    again.write(rows)
    assert broker.offsets == [0, 2, 3]
    assert [it["offset"] for it in dead_letters(again.context)] == [1]
    broker.refused = ()
    sink(tmp_path, broker).write(rows)
    assert broker.offsets == [0, 2, 3, 1], "it would be there by now"


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_refused_and_wherever_the_job_is_killed_no_record_is_lost_or_there_twice(
    tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    count = dice.randint(1, 24)
    often = dice.choice([0, 0.2, 0.6])
    # Of a batch that is refused as a whole no record is given up.
    broker = Refusing({it for it in range(count - 1) if dice.random() < often})
    rows = batch([log_record(number) for number in range(count)])
    while True:
        broker.dies_at = dice.choice([None, *range(12)])
        broker.takes = dice.random() < 0.5
        made = sink(tmp_path, broker, batch={"max_records": dice.randint(1, 9)})
        try:
            made.write(rows)
        except KilledError:
            continue
        break
    found = Counter(broker.offsets)
    assert set(found.values()) <= {1}
    given_up = {it["offset"] for it in dead_letters(made.context)}
    assert given_up == set(broker.refused)
    assert found.keys() | given_up == set(range(count))


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
     b'{"first": 1, "end": 2, "digest": "x", "more": 1}',
     b'{"first": 1, "end": 2, "digest": "x", "passed_over": "none"}',
     b'{"first": 1, "end": 2, "digest": "x", "passed_over": 4}'],
)  # fmt: skip
def test_what_others_wrote_is_no_position(value: bytes) -> None:
    assert read_position(value) is None
    assert read_position(b'{"first":1,"end":2,"digest":"x"}') == Position(1, 2, "x")
    passing = Position(1, 20, "x", 0x2A)
    assert read_position(position_value(passing)) == passing
