"""The emitter and a collector that is absent, slow, gone, or unwilling."""

import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.specs import Emitter, EmitterLimits
from penstock.specs.emit.delivery.core import Batch
from penstock.specs.emit.delivery.transport import Report, SocketLink
from tests.support.collector_socket import Answer, CollectorSocket, Received, take
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

LIMITS = EmitterLimits(
    max_queue_records=500,
    max_batch_records=50,
    max_batch_age_ms=5,
    initial_backoff_ms=5,
    max_backoff_ms=40,
    ack_timeout_ms=60_000,
)
RESOURCE = {"service.name": "test"}


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[CollectorSocket]:
    fake = CollectorSocket(tmp_path / "c.sock")
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def emitter(tmp_path: Path) -> Iterator[Emitter]:
    made = Emitter(RESOURCE, socket_path=str(tmp_path / "c.sock"), limits=LIMITS)
    yield made
    made.close(timeout_s=0.0)


def say(emitter: Emitter, *bodies: str, severity: int = 9) -> None:
    for body in bodies:
        emitter.emit(
            "log", json.dumps({"body": body, "severity_number": severity}).encode(), severity
        )


def numbered(start: int, stop: int) -> list[str]:
    return [f"r{number}" for number in range(start, stop)]


def check_reconciles(emitter: Emitter, taken: int) -> None:
    """Nothing is lost without being counted."""
    counters = emitter.counters()
    dropped = sum(sum(reasons.values()) for reasons in counters.dropped.values())
    held = counters.queued + counters.in_flight
    assert sum(counters.emitted.values()) == sum(counters.acked.values()) + dropped + held
    assert sum(counters.acked.values()) == taken


def test_records_arrive_in_order_with_the_resource_in_the_header(
    emitter: Emitter, collector: CollectorSocket
) -> None:
    say(emitter, *numbered(0, 400))
    assert emitter.flush(10)
    assert collector.bodies() == numbered(0, 400)
    assert [b.header["seq"] for b in collector.batches] == list(
        range(1, len(collector.batches) + 1)
    )
    assert collector.batches[0].header["resource"]["service.name"] == "test"
    check_reconciles(emitter, 400)


def test_queue_is_kept_while_the_collector_is_absent(tmp_path: Path, emitter: Emitter) -> None:
    say(emitter, *numbered(0, 100))
    assert not emitter.flush(0.05)
    late = CollectorSocket(tmp_path / "c.sock")
    late.start()
    assert emitter.flush(10)
    late.stop()
    assert late.bodies() == numbered(0, 100)
    check_reconciles(emitter, 100)


def test_oldest_and_least_severe_go_first_and_are_reported(
    tmp_path: Path, emitter: Emitter
) -> None:
    say(emitter, *numbered(0, 200), severity=17)
    say(emitter, *numbered(200, 700))
    assert emitter.counters().dropped == {"log": {"queue_full": 200}}
    late = CollectorSocket(tmp_path / "c.sock")
    late.start()
    assert emitter.flush(10)
    late.stop()
    assert late.bodies() == numbered(0, 200) + numbered(400, 700)
    assert late.batches[-1].header["dropped"] == {"log": {"queue_full": 200}}
    check_reconciles(emitter, 500)


def test_batch_is_sent_again_with_its_sequence_when_its_ack_got_lost(
    emitter: Emitter, collector: CollectorSocket
) -> None:
    def silent_once(received: Received) -> Answer:
        if len(collector.batches) == 1:
            return None
        return take(received)

    collector.answer, collector.takes_silently = silent_once, True
    say(emitter, *numbered(0, 120))
    wait_until(lambda: collector.batches, what="first batch")
    collector.hang_up()
    assert emitter.flush(10)
    assert collector.batches[1].header["seq"] == collector.batches[0].header["seq"] == 1
    assert collector.batches[1].repeat
    assert collector.batches[1].lines == collector.batches[0].lines
    assert collector.bodies() == numbered(0, 120)
    check_reconciles(emitter, 120)


def test_collector_that_dies_mid_batch_gets_it_again(tmp_path: Path, emitter: Emitter) -> None:
    for generation in range(4):
        fake = CollectorSocket(tmp_path / "c.sock", answer=lambda _: None)
        fake.start()
        say(emitter, *numbered(generation * 60, generation * 60 + 60))
        wait_until(lambda fake=fake: fake.batches, what="a batch")  # type: ignore[misc]
        assert {batch.header["seq"] for batch in fake.batches} == {1}
        fake.stop()
    well = CollectorSocket(tmp_path / "c.sock")
    well.start()
    assert emitter.flush(10)
    well.stop()
    assert well.bodies() == numbered(0, 240)
    check_reconciles(emitter, 240)


def test_stalled_collector_is_reconnected_to(tmp_path: Path, collector: CollectorSocket) -> None:
    limits = replace(LIMITS, ack_timeout_ms=300)
    emitter = Emitter(RESOURCE, socket_path=str(tmp_path / "c.sock"), limits=limits)
    collector.answer = lambda _: None
    say(emitter, "a")
    wait_until(lambda: collector.connections >= 3, what="reconnects after the ack timeout")
    collector.answer = take
    assert emitter.flush(10)
    assert collector.bodies() == ["a"]
    emitter.close()


def test_batch_refused_for_now_comes_again_and_nothing_overtakes_it(
    emitter: Emitter, collector: CollectorSocket
) -> None:
    refusals = iter(range(5))

    def unwilling(received: Received) -> Answer:
        if next(refusals, None) is not None:
            return {"nack": received.header["seq"], "reason": "spool full", "retry": True}
        return take(received)

    collector.answer = unwilling
    say(emitter, *numbered(0, 150))
    assert emitter.flush(10)
    assert collector.bodies() == numbered(0, 150)
    assert [b.header["seq"] for b in collector.batches][:6] == [1] * 6
    check_reconciles(emitter, 150)


def test_batch_refused_for_good_is_counted_and_the_next_ones_go_on(
    emitter: Emitter, collector: CollectorSocket
) -> None:
    def picky(received: Received) -> Answer:
        if received.header["seq"] == 1:
            return {"nack": 1, "reason": "not a batch", "retry": False}
        return take(received)

    collector.answer = picky
    say(emitter, *numbered(0, 120))
    assert emitter.flush(10)
    assert emitter.counters().dropped == {"log": {"refused": collector.refused}}
    check_reconciles(emitter, 120 - collector.refused)


def test_answer_that_is_none_ends_the_connection(
    emitter: Emitter, collector: CollectorSocket
) -> None:
    def babbling(received: Received) -> Answer:
        return take(received) if collector.connections > 1 else {"hello": "world"}

    collector.answer = babbling
    say(emitter, "a")
    assert emitter.flush(10)
    assert collector.connections == 2
    assert collector.bodies() == ["a"]


def test_caller_is_never_held_up(tmp_path: Path, emitter: Emitter) -> None:
    """With a collector that reads nothing: sockets and queue are full, calls stay short.

    One call in ten may have lost the processor; nearly all of them find the queue full.
    """
    stalled = CollectorSocket(tmp_path / "c.sock", answer=lambda _: None)
    stalled.start()
    line = json.dumps({"body": "x" * 4000}).encode()
    waits = []
    for _ in range(20_000):
        begin = time.perf_counter()
        emitter.emit("log", line)
        waits.append(time.perf_counter() - begin)
    stalled.stop()
    waits.sort()
    assert waits[int(len(waits) * 0.9)] < 0.001
    counters = emitter.counters()
    assert counters.emitted == {"log": 20_000}
    assert counters.queued <= 500
    check_reconciles(emitter, 0)


def test_threads_keep_their_own_order(emitter: Emitter, collector: CollectorSocket) -> None:
    def work(name: str) -> None:
        for number in range(100):
            say(emitter, f"{name}-{number}")

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert emitter.flush(10)
    for name in "abcd":
        mine = [body for body in collector.bodies() if body.startswith(name)]
        assert mine == [f"{name}-{number}" for number in range(100)]
    check_reconciles(emitter, 400)


def test_connection_that_ends_is_noticed_at_once(
    tmp_path: Path, collector: CollectorSocket
) -> None:
    """Not only when the ack timeout, far away here, is over."""
    patient = Emitter(
        RESOURCE,
        socket_path=str(tmp_path / "c.sock"),
        limits=EmitterLimits(ack_timeout_ms=600_000, max_batch_age_ms=1, initial_backoff_ms=1),
    )
    collector.answer = lambda _: None
    say(patient, "a")
    wait_until(lambda: collector.batches, what="first batch")
    collector.answer = take
    collector.hang_up()
    assert patient.flush(10)
    assert collector.bodies() == ["a"]
    patient.close()


def test_half_written_frame_does_not_reach_into_the_next_connection(tmp_path: Path) -> None:
    path = str(tmp_path / "full.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        link = SocketLink(path, "me", b"{}")
        assert link.connect()
        link.send(Batch(1, ((1, "log", b"x" * 4_000_000),)), Report())
        link.pump()
        assert (link.interest() or (0, 0))[1] & select.POLLOUT
        assert link.connect()
        assert not (link.interest() or (0, 0))[1] & select.POLLOUT
        link.close()


def test_a_process_with_the_instance_id_of_the_one_before_is_another_sender(
    tmp_path: Path, collector: CollectorSocket
) -> None:
    """A pod's restarted container gets the same id from its environment; nothing of it repeats."""
    for body in ("before", "after"):
        emitter = Emitter(
            RESOURCE | {"service.instance.id": "pod-1"}, socket_path=str(tmp_path / "c.sock")
        )
        say(emitter, body)
        assert emitter.close(10)
    assert collector.bodies() == ["before", "after"]
    assert {b.header["resource"]["service.instance.id"] for b in collector.batches} == {"pod-1"}


def test_an_emitter_that_was_closed_and_is_used_again_sends(
    emitter: Emitter, collector: CollectorSocket
) -> None:
    """`logging.shutdown` and `dictConfig` close handlers that stay in use."""
    say(emitter, "before")
    assert emitter.close(10)
    say(emitter, "after")
    assert emitter.flush(10)
    assert collector.bodies() == ["before", "after"]
