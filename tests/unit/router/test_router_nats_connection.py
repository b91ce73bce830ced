"""The NATS sink's connection, to who answers what nats-py cannot read: no attempt is the last."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import structlog

from penstock.router.sinks.nats.client import Connection
from penstock.router.sinks.nats.sink import Fate, Message, NatsSink
from tests.support.waiting import wait_until

INFO = (
    b'INFO {"server_id":"a","version":"2.10.0","max_payload":1048576,"proto":1,"headers":true}\r\n'
)
GREETING = INFO + b"PONG\r\n"
MESSAGE = Message("x.logs", b"{}", {})

UNREADABLE = pytest.mark.parametrize(
    "unreadable",
    [
        b"",
        b"INFO\r\n",
        b"INFO []\r\n",
        b"INFO {\r\n",
        b"INFO \xff\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        INFO + b"-ERR\r\n",
        INFO + b"-ERR 'maximum payload violation'\r\n",
        b"a" * 200_000,
    ],
    ids=lambda it: repr(it[:24]),
)


@contextmanager
def door(*answers: bytes) -> Iterator[int]:
    """Says to each connection what comes next, the last thing to all others; its port."""
    server = socket.create_server(("127.0.0.1", 0))
    left = list(answers)
    taken: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            taken.append(connection)
            said = left.pop(0) if len(left) > 1 else left[0]
            connection.sendall(said)
            if not said.startswith(INFO):
                connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()
        for connection in taken:
            connection.close()


def connection(port: int, **how: Any) -> Connection:
    given = {"type": "nats", "servers": f"nats://127.0.0.1:{port}", "subject": "x.{kind}"}
    return Connection(NatsSink.model_validate(given | {"timeout_s": 0.5}), "job/sink", **how)


@UNREADABLE
def test_a_first_answer_that_nats_py_cannot_read_is_an_outage(unreadable: bytes) -> None:
    with door(unreadable, unreadable, GREETING) as port:
        made = connection(port)
        try:
            for _ in range(2):
                with pytest.raises(ConnectionError):
                    made.open()
            assert made.open() == 1_048_576
        finally:
            made.close()


@pytest.mark.parametrize(
    "unreadable",
    [b"INFO []\r\n", b"INFO {\r\n", b"-ERR 'maximum payload violation'\r\n", b"?" * 99],
)
def test_what_nats_py_cannot_read_later_costs_one_attempt(unreadable: bytes) -> None:
    with door(GREETING + unreadable, GREETING) as port:
        made = connection(port)
        try:
            made.open()
            (outcome,), problem = made.exchange([MESSAGE])
            assert outcome.fate is Fate.UNKNOWN
            assert problem
            assert made.open() == 1_048_576
        finally:
            made.close()


def test_what_fails_on_its_event_loop_is_an_event_of_the_log(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """As in every daemon: no traceback on standard error beside it."""
    loop = asyncio.new_event_loop()
    with structlog.testing.capture_logs() as logs, door(GREETING) as port:
        made = connection(port, new_loop=lambda: loop)
        try:
            made.open()
            loop.call_soon_threadsafe([].pop)
            wait_until(
                lambda: "event_loop_error" in [it["event"] for it in logs],
                what="the failure is in the log",
            )
        finally:
            made.close()
    (told,) = (it for it in logs if it["event"] == "event_loop_error")
    assert told["log_level"] == "error"
    assert "pop from empty list" in repr(told["exc_info"])
    assert "Traceback" not in capfd.readouterr().err
