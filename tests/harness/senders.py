"""Real clients of every protocol of a collector, each with the list of what it was promised.

Those whose protocol has no acknowledgement promise nothing and claim nothing: what of them arrives
must still be what they sent, in their order, and not twice.
"""

import contextlib
import json
import logging
import logging.handlers
import shutil
import socket
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgpack
from fluent.sender import FluentSender
from opentelemetry._logs import LogRecord as OtelLogRecord
from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import (
    LogRecordExporter,
    LogRecordExportResult,
    SimpleLogRecordProcessor,
)
from opentelemetry.sdk.resources import Resource
from typing_extensions import override

from penstock.specs import Emitter, EmitterLimits, LogRecord, encode
from tests.harness.checkers.claims import Claims, text_of
from tests.support.collector import UnixSender

_TIMEOUT_S: Final = 3
_PATIENCE_S: Final = 300
_ROTATE_LINES: Final = 200


class Sender(ABC):
    """Numbers what it sends; `send` is called from one thread, `pause_s` apart."""

    def __init__(self, name: str, *, ordered: bool = True, pause_s: float = 0.02) -> None:
        self.name = name
        self.claims = Claims(ordered=ordered)
        self.pause_s = pause_s

    @abstractmethod
    def send(self) -> None:
        """Send the next record; an `OSError` means that the collector is away."""

    def finish(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Learn what was promised last, and let go of everything."""

    def following(self) -> tuple[int, str]:
        """The next number, which is issued with this, and its text."""
        number = self.claims.issued
        self.claims.issued += 1
        return number, text_of(self.name, number)


class ForwardChunks(Sender):
    """Fluent forward with a chunk for each message, as fluentd and Docker do it."""

    def __init__(self, port: int) -> None:
        super().__init__("chunks")
        self.claims.window = 0  # what is not acked is given up
        self._port = port
        self._connection: socket.socket | None = None

    @override
    def send(self) -> None:
        number, text = self.following()
        try:
            if self._connection is None:
                self._connection = socket.create_connection(("127.0.0.1", self._port), _TIMEOUT_S)
            message = [self.name, 5, {"message": text}, {"chunk": text}]
            self._connection.sendall(msgpack.packb(message))
            if self._connection.recv(4096) != msgpack.packb({"ack": text}):
                raise ConnectionError("no ack")
        except OSError:
            self.finish()
            raise
        self.claims.acked.add(number)

    @override
    def finish(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class FluentLogger(Sender):
    """fluent-logger for Python, which never asks for an ack."""

    def __init__(self, port: int) -> None:
        super().__init__("fluent")
        self.claims.window = 200  # it sends its whole buffer again
        self._sender = FluentSender(self.name, host="127.0.0.1", port=port, timeout=_TIMEOUT_S)

    @override
    def send(self) -> None:
        _, text = self.following()
        if not self._sender.emit(None, {"message": text}):
            self._sender.clear_last_error()

    @override
    def finish(self) -> None:
        self._sender.close()


class Sdk(Sender, LogRecordExporter):
    """The OpenTelemetry SDK with an exporter of its own, whose success is a promise."""

    def __init__(self, name: str, exporter: LogRecordExporter) -> None:
        super().__init__(name)
        self.claims.window = 8  # the exporter sends again by itself
        self._exporter = exporter
        self._number = -1
        self._provider = LoggerProvider(resource=Resource.create({"service.name": name}))
        self._provider.add_log_record_processor(SimpleLogRecordProcessor(self))
        self._logger = self._provider.get_logger("crash")

    @override
    def send(self) -> None:
        self._number, text = self.following()
        self._logger.emit(OtelLogRecord(body=text, severity_number=SeverityNumber.INFO))

    @override
    def export(self, batch: Sequence[Any]) -> LogRecordExportResult:
        """Called within `send`."""
        result = self._exporter.export(batch)
        if result is LogRecordExportResult.SUCCESS:
            self.claims.acked.add(self._number)
        return result

    @override
    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    @override
    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True

    @override
    def finish(self) -> None:
        self._provider.shutdown()


class StandardSyslog(Sender):
    """`logging.handlers.SysLogHandler` over TCP."""

    def __init__(self, port: int) -> None:
        super().__init__("syslog")
        self._address = ("127.0.0.1", port)
        self._handler: logging.handlers.SysLogHandler | None = None
        self._failed = False

    @override
    def send(self) -> None:
        _, text = self.following()
        if self._handler is None:
            self._handler = logging.handlers.SysLogHandler(
                self._address, socktype=socket.SOCK_STREAM
            )
            self._handler.handleError = self._fail  # type: ignore[assignment,method-assign]
        self._handler.emit(logging.LogRecord("x", logging.INFO, "", 1, text, None, None))
        if self._failed:
            self.finish()

    def _fail(self, _: logging.LogRecord) -> None:
        self._failed = True

    @override
    def finish(self) -> None:
        if self._handler is not None:
            self._handler.close()
        self._handler, self._failed = None, False


class LoggerCommand(Sender):
    """logger(1) over TCP; a connection for each message, so their order is nobody's."""

    def __init__(self, port: int) -> None:
        super().__init__("logger", ordered=False, pause_s=0.3)
        self._port = str(port)

    @override
    def send(self) -> None:
        _, text = self.following()
        where = ["-T", "--octet-count", "-n", "127.0.0.1", "-P", self._port]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                ["logger", *where, "--rfc5424", "-t", "app", text],
                stderr=subprocess.DEVNULL, check=False, timeout=_TIMEOUT_S,
            )  # fmt: skip


class SpecLibrary(Sender):
    """The spec library's emitter over the Unix socket, which sends again what is not acked."""

    def __init__(self, path: Path) -> None:
        super().__init__("specs")
        self.claims.window = 0
        limits = EmitterLimits(ack_timeout_ms=2000, max_backoff_ms=200, max_batch_age_ms=20)
        resource = {
            "service.name": "specs", "service.version": "1", "deployment.environment.name": "test",
        }  # fmt: skip
        self._emitter = Emitter(resource, socket_path=str(path), limits=limits)

    @override
    def send(self) -> None:
        _, text = self.following()
        if not self._emitter.emit("log", encode(LogRecord(severity_number=9, body=text))):
            raise AssertionError("the emitter's queue is full")

    @override
    def finish(self) -> None:
        assert self._emitter.flush(_PATIENCE_S), "the collector takes nothing more"
        counters = self._emitter.counters()
        assert not counters.dropped, counters
        self.claims.acked = set(range(counters.acked.get("log", 0)))
        self._emitter.close()


class Batches(Sender):
    """Batches of two lines on the wire as they are.

    Args:
        pair: Makes the two lines of their texts.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        pair: Callable[[str, str], list[bytes]],
        *,
        ordered: bool = True,
    ) -> None:
        super().__init__(name, ordered=ordered, pause_s=0.1)
        self.claims.window = 0
        self._pair = pair
        self._sender = UnixSender(path, name, self._lines, window=4)
        self._begun = False

    @override
    def send(self) -> None:
        if not self._begun:
            self._sender.__enter__()
            self._begun = True

    def _lines(self, batch: int) -> list[bytes]:
        """Lines of batch 1, 2, ...; the same ones when it is sent again."""
        threading.Event().wait(0.05)
        first, second = 2 * batch - 2, 2 * batch - 1
        self.claims.issued = max(self.claims.issued, second + 1)
        return self._pair(text_of(self.name, first), text_of(self.name, second))

    @override
    def finish(self) -> None:
        self._sender.stop()
        self.claims.acked = set(range(2 * self._sender.acked))


def _good_and_bad(first: str, second: str) -> list[bytes]:
    """A good line, and one that breaks its spec."""
    return [_log(first), second.encode()]


def _log_and_event(first: str, second: str) -> list[bytes]:
    """A log record and an event: each batch is taken apart, into both spools."""
    event = {
        "schema": "event/1.0", "kind": "event", "time_unix_nano": 5, "event_name": "crash.made",
        "record_id": sha256(second.encode()).hexdigest()[:32],
        "attributes": {"text": second}, "resource": {"service.name": "crash"},
    }  # fmt: skip
    return [_log(first), json.dumps(event).encode()]


def _log(text: str) -> bytes:
    record = {
        "schema": "log/1.0", "kind": "log", "time_unix_nano": 5, "severity_number": 9,
        "body": text, "resource": {"service.name": "crash"},
    }  # fmt: skip
    return json.dumps(record).encode()


class RotatedFile(Sender):
    """Lines in a file that is renamed again and again; each that is written is promised."""

    def __init__(self, path: Path) -> None:
        super().__init__("file", pause_s=0.01)
        self.claims.window, self.claims.span = 0, _ROTATE_LINES
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._rotations = 0

    @override
    def send(self) -> None:
        number, text = self.following()
        self._file.write(text.encode() + b"\n")
        self.claims.acked.add(number)
        if number % _ROTATE_LINES == _ROTATE_LINES - 1:
            self._file.close()
            self._rotations += 1
            self._path.rename(f"{self._path}.{self._rotations:06}")
            self._file = self._path.open("ab", buffering=0)

    @override
    def finish(self) -> None:
        self._file.close()


def make_senders(ports: dict[str, int], socket_path: Path, log: Path) -> list[Sender]:
    """One of each kind; logger(1) where it is."""
    http = f"http://127.0.0.1:{ports['http']}/v1/logs"
    grpc = GrpcLogs(endpoint=f"127.0.0.1:{ports['grpc']}", insecure=True, timeout=_TIMEOUT_S)
    made: list[Sender] = [
        ForwardChunks(ports["forward"]),
        FluentLogger(ports["forward"]),
        Sdk("sdk-grpc", grpc),
        Sdk("sdk-http", HttpLogs(http, timeout=_TIMEOUT_S)),
        StandardSyslog(ports["syslog"]),
        SpecLibrary(socket_path),
        Batches(socket_path, "mixed", _good_and_bad),
        Batches(socket_path, "urgent", _log_and_event, ordered=False),
        RotatedFile(log),
    ]
    return [*made, LoggerCommand(ports["syslog"])] if shutil.which("logger") else made


class Sending:
    """Senders, each in a thread, from the start of the block to `stop`, or to the end of it."""

    def __init__(self, senders: Sequence[Sender]) -> None:
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(one,), daemon=True) for one in senders
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._stop.set()

    def stop(self) -> None:
        """Send nothing more.

        Raises:
            RuntimeError: A sender went wrong, which is the harness's fault.
        """
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=60)
        if self._failures or any(thread.is_alive() for thread in self._threads):
            raise RuntimeError(f"senders went wrong or do not end: {self._failures}")

    def _run(self, sender: Sender) -> None:
        while not self._stop.wait(sender.pause_s):
            try:
                sender.send()
            except OSError:
                self._stop.wait(0.05)  # the collector is away
            except BaseException as error:  # noqa: BLE001 - told by `stop`
                self._failures.append(error)
                return
