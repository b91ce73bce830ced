"""What a protocol acknowledged is in the log, whenever the collector is killed."""

import http.client
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.support.collector import Collector, bodies
from tests.support.logd import Logd
from tests.support.processes import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

STREAMS = [{"name": "logs", "subject": "telemetry.logs.>"}]


class Promises:
    """Sends numbered records until stopped; keeps those that were acknowledged."""

    def __init__(self, name: str, send: Callable[[str], bool]) -> None:
        self.kept: list[str] = []
        self._name = name
        self._send = send
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            body = f"{self._name} {number}"
            try:
                acknowledged = self._send(body)
            except (OSError, http.client.HTTPException):
                self._stop.wait(0.02)  # the collector is away
                continue
            if acknowledged:
                self.kept.append(body)
            number += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=20)
        assert not self._thread.is_alive()


def send_otlp(port: int) -> Callable[[str], bool]:
    def send(body: str) -> bool:
        record = {"timeUnixNano": "5", "body": {"stringValue": body}}
        request = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            headers = {"content-type": "application/json"}
            connection.request("POST", "/v1/logs", json.dumps(request), headers)
            return connection.getresponse().status == 200
        finally:
            connection.close()

    return send


def send_forward(port: int) -> Callable[[str], bool]:
    def send(body: str) -> bool:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(msgpack.packb(["app", 5, {"message": body}, {"chunk": body}]))
            return bool(connection.recv(4096) == msgpack.packb({"ack": body}))

    return send


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, nats_url: str) -> None:
    otlp, forward = free_port(), free_port()
    sources: list[dict[str, Any]] = [
        {"type": "otlp", "grpc": None, "http": f"127.0.0.1:{otlp}"},
        {"type": "forward", "listen": f"127.0.0.1:{forward}"},
    ]
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "collector", nats_url, sources) as collector,
    ):
        senders = [Promises("otlp", send_otlp(otlp)), Promises("forward", send_forward(forward))]
        for _ in range(4):
            before = [len(sender.kept) for sender in senders]
            wait_until(
                lambda b=before: all(  # type: ignore[misc]
                    len(sender.kept) > count + 20 for sender, count in zip(senders, b, strict=True)
                )
            )
            collector.restart(kill=True)
        for sender in senders:
            sender.stop()
        wait_until(collector.is_idle)
        delivered = bodies(logd.values("logs"))
        for sender in senders:
            assert set(sender.kept) <= set(delivered)
            assert sender.kept == sorted(sender.kept, key=lambda body: int(body.split()[1]))
        sent_again = len(delivered) - len(set(delivered))
        assert sent_again <= 4 * len(senders)  # one that was in flight at each kill
