"""Urgent queues go first, and what is plentiful cannot fill what is theirs."""

from random import Random

import pytest

from penstock.collector.delivery.core import Delivery, Effect, Flush, Publish, Stored, Take
from penstock.collector.delivery.ordered_queue import Batch, Limits, QueueKey

AUDIT = QueueKey("spool-urgent", "app", "telemetry.audit.x")
LIMITS = Limits(
    batch_records_max=1, batch_bytes_max=100, queue_flight_max=100, flight_bytes_max=1600
)


def core(*, urgent: bool = True) -> Delivery:
    return Delivery(LIMITS, jitter=lambda: 1.0, urgent=["spool-urgent"] if urgent else [])


def logs(number: int) -> QueueKey:
    return QueueKey("spool", "app", f"telemetry.logs.{number}")


def take(queue: QueueKey, sequence: int, *, size: int = 100) -> Take:
    return Take(queue, Batch(0, [sequence], [0], [bytes(size)], size))


def sent(effects: list[Effect]) -> list[str]:
    return [effect.queue.subject for effect in effects if isinstance(effect, Publish)]


def flood(delivery: Delivery, queues: int, records: int) -> list[Effect]:
    effects: list[Effect] = []
    for sequence in range(1, records + 1):
        for number in range(queues):
            effects += delivery.handle(take(logs(number), sequence), 0)
    return effects


def test_an_audit_record_is_sent_at_once_into_a_flood() -> None:
    delivery = core()
    assert len(sent(flood(delivery, 10, 10))) == 4, "the window at the start"
    assert sent(delivery.handle(take(AUDIT, 1), 0)) == ["telemetry.audit.x"]


def test_without_a_part_of_its_own_it_would_wait() -> None:
    delivery = core(urgent=False)
    flood(delivery, 10, 10)
    assert sent(delivery.handle(take(AUDIT, 1), 0)) == []


@pytest.mark.parametrize("seed", range(50))
def test_however_acks_come_no_log_is_sent_while_audit_waits(seed: int) -> None:
    random = Random(seed)
    delivery = core()
    flying = [effect for effect in flood(delivery, 5, 40) if isinstance(effect, Publish)]
    audit = 0
    now_ns = 0
    for _ in range(300):
        now_ns += random.randint(1, 5_000_000)
        effects: list[Effect] = []
        if random.random() < 0.3:
            audit += 1
            effects += delivery.handle(take(AUDIT, audit, size=random.randint(50, 400)), now_ns)
        if flying and random.random() < 0.7:
            answered = flying.pop(random.randrange(len(flying)))
            effects += delivery.handle(Stored(answered.request), now_ns)
        order = sent(effects)
        urgent = [subject == AUDIT.subject for subject in order]
        assert urgent == sorted(urgent, reverse=True), order
        waiting = delivery.queues[AUDIT].waiting if AUDIT in delivery.queues else ()
        assert not (waiting and any(not one for one in urgent)), "logs overtook audit"
        flying += [effect for effect in effects if isinstance(effect, Publish)]
    assert audit > 20


def test_a_flush_sends_what_is_urgent_first() -> None:
    delivery = Delivery(Limits(), jitter=lambda: 1.0, urgent=["spool-urgent"])
    for number in range(3):
        delivery.handle(take(logs(number), 1), 0)
    delivery.handle(take(AUDIT, 1), 0)
    assert sent(delivery.handle(Flush(), 0))[0] == "telemetry.audit.x"
