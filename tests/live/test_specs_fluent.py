"""The Fluent forward handler and agents: that of Penstock's own protocol code, and bad ones."""

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import specs
from penstock.collector.sources.forward.protocol import (
    Event,
    MessageReader,
    decode_message,
    encode_ack,
)
from penstock.specs import EmitterLimits
from penstock.specs.emit.fluent import FluentHandler
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

LIMITS = EmitterLimits(
    max_queue_records=500, max_batch_records=50, max_batch_age_ms=5, initial_backoff_ms=5,
    max_backoff_ms=40, ack_timeout_ms=60_000,
)  # fmt: skip


class Agent:
    """Takes forward messages over TCP; `answers` says whether chunks are acknowledged."""

    def __init__(self, *, answers: bool = True) -> None:
        self.answers = answers
        self.events: list[Event] = []
        self.messages = 0
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join()

    def hang_up(self) -> None:
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        reader = MessageReader()
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(65536):
                for message in reader.feed(data):
                    self.messages += 1
                    if self.answers or message.chunk is None:
                        found = decode_message(message.raw)
                        self.events += [event for event in found if isinstance(event, Event)]
                    if self.answers and message.chunk is not None:
                        connection.sendall(encode_ack(message.chunk))


@pytest.fixture
def agent() -> Iterator[Agent]:
    made = Agent()
    yield made
    made.stop()


@contextlib.contextmanager
def logger_to(agent: Agent, **options: Any) -> Iterator[tuple[logging.Logger, FluentHandler]]:
    handler = FluentHandler("shop.orders", port=agent.port, limits=LIMITS, **options)
    # Known to nobody: pytest, too, would keep what it logs, and cannot hand on what is not UTF-8.
    logger = logging.Logger("fluent_test", logging.DEBUG)  # noqa: LOG001
    logger.addHandler(handler)
    try:
        yield logger, handler
    finally:
        logger.removeHandler(handler)
        handler.close()


def flushed(handler: FluentHandler) -> None:
    """All that was said has its answer; `flush` itself waits for two seconds at most."""
    handler.flush()
    wait_until(lambda: not handler.counters().queued + handler.counters().in_flight)


def check_reconciles(handler: FluentHandler, arrived: int) -> None:
    counters = handler.counters()
    dropped = sum(counters.dropped.get("log", {}).values())
    held = counters.queued + counters.in_flight
    assert counters.emitted["log"] == counters.acked.get("log", 0) + dropped + held
    assert counters.acked.get("log", 0) == arrived


def test_records_arrive_in_order_with_what_is_bound(agent: Agent) -> None:
    with logger_to(agent) as (logger, handler), specs.bind(user_id="u-1"):
        for number in range(200):
            logger.warning("order %d", number, extra={"number": number, "password": "p"})
        flushed(handler)
        check_reconciles(handler, 200)
    assert [event.record["number"] for event in agent.events] == list(range(200))
    first = agent.events[0]
    assert (first.tag, first.record["message"], first.record["level"]) == (
        "shop.orders", "order 0", "WARN",
    )  # fmt: skip
    assert first.record["user.id"] == "[redacted:pseudonym]", "there is no key to hash it with"
    assert first.record["password"] == "[redacted:secret]"
    assert first.time_ns is not None


def test_agents_that_do_not_answer_chunks_can_be_spoken_to(agent: Agent) -> None:
    agent.answers = False
    with logger_to(agent, acknowledged=False) as (logger, handler):
        logger.info("a \ud800")
        flushed(handler)
        check_reconciles(handler, 1)
        wait_until(lambda: agent.events, what="the record")
    assert agent.events[0].record["message"] == "a ?"


def test_a_chunk_that_was_not_acknowledged_comes_again(agent: Agent) -> None:
    agent.answers = False
    with logger_to(agent) as (logger, handler):
        logger.info("a")
        wait_until(lambda: agent.messages, what="the first chunk")
        agent.answers = True
        agent.hang_up()
        flushed(handler)
        check_reconciles(handler, 1)
    assert [event.record["message"] for event in agent.events] == ["a"]


def test_an_agent_that_stalls_or_is_not_there_holds_nobody_up(agent: Agent) -> None:
    agent.answers = False
    with logger_to(agent) as (logger, handler):
        for number in range(5_000):
            logger.info("x" * 1000, extra={"number": number})
        counters = handler.counters()
        assert counters.emitted == {"log": 5_000}
        assert counters.queued <= 500
        check_reconciles(handler, 0)
        agent.answers = True
        agent.hang_up()
        flushed(handler)
        # What the agent took and could not answer any more came to it twice.
        check_reconciles(handler, len({event.record["number"] for event in agent.events}))
    assert agent.events[-1].record["number"] == 4_999


def test_an_address_that_means_nothing_costs_nothing() -> None:
    handler = FluentHandler("a", host="nowhere.invalid", limits=LIMITS)
    handler.handle(logging.makeLogRecord({"msg": "a", "levelno": 20}))
    assert handler.counters().queued + handler.counters().in_flight == 1
    handler.close()


def test_a_peer_that_is_no_agent_is_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        handler = FluentHandler("a", port=listener.getsockname()[1], limits=LIMITS)
        handler.handle(logging.makeLogRecord({"msg": "a", "levelno": 20}))
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(1000)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            again, _ = listener.accept()
            with again:
                assert b"a" in again.recv(1000)
        handler.close()


def test_what_is_sensitive_stays_here(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HASH_KEY", "k1:0123456789abcdef")
    with logger_to(agent) as (logger, handler), specs.bind(user_id="alice-17"):
        logger.warning("card 4111 1111 1111 1111 of x@example.com", extra={"to": "y@example.com"})
        flushed(handler)
        check_reconciles(handler, 1)
    (event,) = agent.events
    assert event.record["message"] == "card [redacted:pci] of [redacted:pii]"
    assert event.record["to"] == "[redacted:pii]"
    assert str(event.record["user.id"]).startswith("hk1:")
