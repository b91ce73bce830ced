"""A real collector process for tests, and a sender that speaks the Unix-socket framing itself."""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.support.processes import Daemon, free_port

_LENGTH = struct.Struct(">I")


class Collector:
    """One collector on its own data directory; it keeps its addresses over restarts."""

    def __init__(
        self, directory: Path, nats_url: str, sources: list[dict[str, Any]], **options: Any
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.data_dir = directory / "data"
        self.config: dict[str, Any] = {
            "name": "host-1",
            "data_dir": str(self.data_dir),
            "nats": {"url": nats_url, "ack_timeout_s": 1},
            "admin": f"127.0.0.1:{free_port()}",
            "sources": sources,
            "batch": {"max_age_ms": 20},
            "checkpoint_interval_s": 0.2,
        } | options
        self.daemon = Daemon("collector", self.config, directory)

    def __enter__(self) -> Self:
        self.daemon.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.daemon.close()

    def restart(self, *, kill: bool = False) -> None:
        """Stop (or kill -9) and start again on the same data and addresses."""
        if kill:
            self.daemon.kill()
        else:
            assert self.daemon.stop() == 0, self.daemon.log()[-3000:]
        self.daemon.start()

    def account(self, source: str) -> dict[str, Any]:
        """One source's reconciliation; empty before its first record."""
        accounts = self.daemon.status()["info"].get("reconciliation", {})
        found: dict[str, Any] = accounts.get(source, {})
        return found

    def is_idle(self) -> bool:
        """Whether nothing is held and every account balances."""
        accounts = self.daemon.status()["info"].get("reconciliation", {})
        return bool(accounts) and all(
            account["held"] == 0 and account["difference"] == 0 for account in accounts.values()
        )


def log_line(number: int, *, service: str = "shop", filler: int = 0, noise: str = "") -> bytes:
    """A valid log record with a number in it."""
    return json.dumps(
        {
            "schema": "log/1.0",
            "kind": "log",
            "time_unix_nano": 1_700_000_000_000_000_000 + number,
            "severity_number": 9,
            "body": f"number {number}" + "x" * filler + noise,
            "resource": {"service.name": service},
        },
        separators=(",", ":"),
    ).encode()


def encode_batch(sender: str, sequence: int, lines: list[bytes], **more: Any) -> bytes:
    """A framed batch."""
    header = {"batch": 1, "sender": sender, "seq": sequence, "count": len(lines), **more}
    body = json.dumps(header).encode() + b"\n" + b"\n".join(lines)
    return _LENGTH.pack(len(body)) + body


class UnixSender:
    """Sends numbered batches until stopped; sends what is unanswered again after reconnecting.

    Args:
        make_lines: The lines of batch number n.
        window: Maximum batches without an answer.
        upto: Last batch that it may send, an attribute that may be raised; None: all.
    """

    def __init__(
        self,
        path: Path,
        sender: str,
        make_lines: Callable[[int], list[bytes]],
        *,
        window: int = 8,
        upto: int | None = None,
    ) -> None:
        self.upto = upto
        self._path = path
        self._sender = sender
        self._make_lines = make_lines
        self._window = window
        self._stop = threading.Event()
        self.acked = 0
        self.nacks: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Send no more; `acked` is final."""
        self._stop.set()
        self._thread.join(timeout=10)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.settimeout(0.2)
                    connection.connect(str(self._path))
                    self._talk(connection)
            except OSError:
                time.sleep(0.02)  # the collector is away: this is the sender's backoff

    def _talk(self, connection: socket.socket) -> None:
        following = self.acked + 1
        received = b""
        while not self._stop.is_set():
            allowed = self.acked + self._window
            while following <= (allowed if self.upto is None else min(allowed, self.upto)):
                lines = self._make_lines(following)
                connection.settimeout(5)
                connection.sendall(encode_batch(self._sender, following, lines))
                following += 1
            connection.settimeout(0.2)
            try:
                data = connection.recv(65536)
            except TimeoutError:
                continue
            if not data:
                return
            received += data
            while len(received) >= 4 and len(received) >= 4 + _LENGTH.unpack(received[:4])[0]:
                end = 4 + _LENGTH.unpack(received[:4])[0]
                answer, received = json.loads(received[4:end]), received[end:]
                if "nack" in answer:
                    self.nacks.append(answer)
                    return
                assert answer["ack"] == self.acked + 1, "acks skip or repeat"
                self.acked = answer["ack"]


def bodies(values: list[bytes | None]) -> list[str]:
    """The bodies of stored log records."""
    return [json.loads(value)["body"] for value in values if value is not None]
