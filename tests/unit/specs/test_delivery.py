"""The delivery core, one transition at a time; its whole behaviour is simulated elsewhere."""

import pytest

from penstock.specs import EmitterLimits
from penstock.specs.emit.delivery.core import (
    Acked,
    Close,
    Connect,
    Connected,
    Delivery,
    Link,
    Lost,
    Nacked,
    Send,
    Tick,
)
from penstock.specs.emit.delivery.queue import RecordQueue, line_of

MS = 1_000_000
LIMITS = EmitterLimits(
    max_batch_records=2,
    max_batch_bytes=100,
    max_batch_age_ms=10,
    ack_timeout_ms=1000,
    initial_backoff_ms=100,
    max_backoff_ms=400,
)


@pytest.fixture
def queue() -> RecordQueue:
    return RecordQueue(records_max=10, bytes_max=1000)


@pytest.fixture
def delivery(queue: RecordQueue) -> Delivery:
    return Delivery(queue, LIMITS)


def offer(queue: RecordQueue, *lines: bytes) -> None:
    for line in lines:
        queue.offer("log", 1, line)


def up(delivery: Delivery, queue: RecordQueue) -> None:
    offer(queue, b"first")
    assert delivery.handle(Tick(), 0) == [Connect()]
    assert delivery.handle(Connected(), 0) == []


def sent(effects: list[object]) -> list[bytes]:
    (send,) = effects
    assert isinstance(send, Send)
    return [line_of(record) for record in send.batch.records]


def test_nothing_happens_without_records(delivery: Delivery) -> None:
    assert delivery.handle(Tick(), 0) == []
    assert delivery.next_deadline_ns() is None
    assert delivery.idle


def test_batch_waits_until_it_is_old_enough(delivery: Delivery, queue: RecordQueue) -> None:
    up(delivery, queue)
    assert delivery.next_deadline_ns() == 10 * MS
    assert delivery.handle(Tick(), 10 * MS - 1) == []
    assert sent([*delivery.handle(Tick(), 10 * MS)]) == [b"first"]


def test_full_batch_goes_at_once(delivery: Delivery, queue: RecordQueue) -> None:
    up(delivery, queue)
    offer(queue, b"second", b"third")
    assert sent([*delivery.handle(Tick(), 1)]) == [b"first", b"second"]


def test_hurry_sends_at_once_until_all_is_answered(delivery: Delivery, queue: RecordQueue) -> None:
    up(delivery, queue)
    delivery.flush_now()
    assert sent([*delivery.handle(Tick(), 1)]) == [b"first"]
    offer(queue, b"late")
    assert sent([*delivery.handle(Acked(1), 2)]) == [b"late"]
    assert delivery.handle(Acked(2), 3) == []
    offer(queue, b"later")
    assert delivery.handle(Tick(), 4) == []


def test_only_one_batch_is_unanswered(delivery: Delivery, queue: RecordQueue) -> None:
    up(delivery, queue)
    offer(queue, b"second", b"third", b"fourth")
    delivery.handle(Tick(), 1)
    assert delivery.handle(Tick(), 50 * MS) == []
    assert delivery.in_flight == 2
    assert sent([*delivery.handle(Acked(1), 51 * MS)]) == [b"third", b"fourth"]


@pytest.mark.parametrize("answer", [Acked(7), Nacked(7, retry=False, jitter=0), Nacked(7, True, 0)])
def test_answer_to_another_batch_means_nothing(
    delivery: Delivery, queue: RecordQueue, answer: Acked | Nacked
) -> None:
    up(delivery, queue)
    offer(queue, b"second")
    delivery.handle(Tick(), 1)
    assert delivery.handle(answer, 2) == []
    assert delivery.in_flight == 2
    assert delivery.link is Link.UP


def test_backoff_doubles_to_its_bound_and_starts_over_after_an_answer(
    delivery: Delivery, queue: RecordQueue
) -> None:
    offer(queue, b"first", b"second")
    now, waits = 0, []
    for _ in range(4):
        assert delivery.handle(Tick(), now) == [Connect()]
        assert delivery.handle(Lost(jitter=1.0), now) == []
        deadline = delivery.next_deadline_ns()
        assert deadline is not None
        waits.append((deadline - now) // MS)
        now = deadline
    assert waits == [100, 200, 400, 400]
    delivery.handle(Tick(), now)
    delivery.handle(Connected(), now)
    delivery.handle(Acked(1), now)
    offer(queue, b"third")
    delivery.handle(Lost(jitter=0.0), now)
    assert delivery.next_deadline_ns() == now + 50 * MS


def test_silence_and_refusal_for_now_end_the_connection(
    delivery: Delivery, queue: RecordQueue
) -> None:
    up(delivery, queue)
    delivery.flush_now()
    delivery.handle(Tick(), 0)
    assert delivery.handle(Tick(), 1000 * MS - 1) == []
    assert delivery.handle(Tick(), 1000 * MS) == [Close()]
    assert delivery.handle(Tick(), 1100 * MS) == [Connect()]
    assert sent([*delivery.handle(Connected(), 1100 * MS)]) == [b"first"]
    assert delivery.handle(Nacked(1, retry=True, jitter=0.5), 1100 * MS) == [Close()]
    assert delivery.link is Link.DOWN


def test_connect_that_is_never_answered_is_given_up(delivery: Delivery, queue: RecordQueue) -> None:
    offer(queue, b"first")
    assert delivery.handle(Tick(), 0) == [Connect()]
    assert delivery.next_deadline_ns() == 1000 * MS
    assert delivery.handle(Tick(), 1000 * MS) == [Close()]


def test_connected_out_of_turn_means_nothing(delivery: Delivery, queue: RecordQueue) -> None:
    offer(queue, b"first")
    assert delivery.handle(Connected(), 0) == [Connect()]
    assert delivery.link is Link.CONNECTING
