"""Senders that number what they send, and know which of it somebody has promised to keep.

Each sends records `0, 1, 2, ...` until it is told to stop. `promised` says how many of the first
ones must arrive: each exactly once, in order. What was sent and not promised may arrive, once at
the most.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import nats
import nats.errors
from fluent.sender import FluentSender
from nats.aio.client import Client
from nats.js.errors import APIError
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from typing_extensions import override

from penstock.specs import Emitter, EmitterLimits, LogRecord, encode
from penstock.specs.otel.exporter import PenstockSpanExporter
from tests.support.waiting import wait_until


class Sender(Protocol):
    """One sender of numbered records."""

    name: str

    def number_in(self, value: bytes) -> int | None:
        """The number of a stored payload; None when another sender sent it.

        Raises:
            AssertionError: The payload is this sender's, and not what was sent.
        """
        ...

    def promised(self) -> int:
        """How many of the first records must arrive."""
        ...

    def sent(self) -> int:
        """How many records were sent at all."""
        ...


@dataclass
class SpecsSender:
    """The spec library's emitter, over the collector's Unix socket."""

    socket_path: str
    name: str = "specs-app"
    lines: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        limits = EmitterLimits(ack_timeout_ms=2000, max_backoff_ms=200, max_batch_age_ms=20)
        self.emitter = Emitter(_resource(self.name), socket_path=self.socket_path, limits=limits)

    def send(self) -> None:
        """Emit the next record."""
        number = len(self.lines)
        record = LogRecord(
            severity_number=9 + 4 * (number % 3), body="numbered", attributes={"number": number}
        )
        line = encode(record)
        self.lines.append(line)
        assert self.emitter.emit("log", line)

    def number_in(self, value: bytes) -> int | None:
        if self.name.encode() not in value:
            return None
        number = int(json.loads(value)["attributes"]["number"])
        assert value.startswith(self.lines[number][:-1]), "the emitted bytes were changed"
        return number

    def promised(self) -> int:
        counters = self.emitter.counters()
        assert not counters.dropped, counters
        return counters.acked.get("log", 0)

    def sent(self) -> int:
        return len(self.lines)


@dataclass
class OtelSender:
    """The OpenTelemetry SDK, through our span exporter."""

    socket_path: str
    name: str = "otel-app"
    span_ids: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        limits = EmitterLimits(ack_timeout_ms=2000, max_backoff_ms=200, max_batch_age_ms=20)
        self.emitter = Emitter(_resource(self.name), socket_path=self.socket_path, limits=limits)
        self.provider = TracerProvider(resource=Resource.create(_resource(self.name)))
        exporter = PenstockSpanExporter(emitter=self.emitter)
        self.provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=50))
        self._tracer = self.provider.get_tracer("tests")

    def send(self) -> None:
        """Start and end the next span."""
        number = len(self.span_ids)
        with self._tracer.start_as_current_span("numbered", attributes={"number": number}) as span:
            self.span_ids.append(f"{span.get_span_context().span_id:016x}")

    def number_in(self, value: bytes) -> int | None:
        if self.name.encode() not in value:
            return None
        fields = json.loads(value)
        number = int(fields["attributes"]["number"])
        assert fields["span_id"] == self.span_ids[number]
        return number

    def promised(self) -> int:
        counters = self.emitter.counters()
        assert not counters.dropped, counters
        return counters.acked.get("span", 0)

    def sent(self) -> int:
        return len(self.span_ids)


@dataclass
class FluentdSender:
    """fluent-logger, which never asks for an ack: what the collector says it has is promised."""

    port: int
    name: str = "fluent-app"
    count: int = 0
    received: int = 0

    @contextmanager
    def connected(self) -> Iterator[FluentSender]:
        """A connection of its own, closed at the end."""
        sender = FluentSender(self.name, host="127.0.0.1", port=self.port)
        try:
            yield sender
        finally:
            sender.close()

    def send(self, sender: FluentSender) -> None:
        """Send the next record."""
        assert sender.emit("numbers", self._record(self.count)), sender.last_error
        self.count += 1

    def number_in(self, value: bytes) -> int | None:
        if self.name.encode() not in value:
            return None
        attributes = json.loads(value)["attributes"]
        number = int(attributes["number"])
        sent = self._record(number)
        assert {key: attributes.get(key) for key in sent} == sent
        return number

    def promised(self) -> int:
        return self.received

    def sent(self) -> int:
        return self.count

    @staticmethod
    def _record(number: int) -> dict[str, Any]:
        return {"number": number, "text": f"naïve ☃ {number}"}


@dataclass
class PlainSender:
    """A service that publishes to NATS and knows nothing of Penstock; nothing is promised to it."""

    name: str = "plain-service"
    count: int = 0

    async def send(self, client: Client) -> None:
        """Publish the next message."""
        await client.publish(f"telemetry.logs.{self.name}", self.payload(self.count))
        self.count += 1

    def payload(self, number: int) -> bytes:
        """Bytes that are neither UTF-8 nor JSON."""
        return f"{self.name} {number} ".encode() + bytes(range(256))

    def number_in(self, value: bytes) -> int | None:
        if not value.startswith(self.name.encode()):
            return None
        number = int(value.split(b" ", 2)[1])
        assert value == self.payload(number)
        return number

    def promised(self) -> int:
        return 0

    def sent(self) -> int:
        return self.count


@dataclass
class JetStreamSender(PlainSender):
    """A stock JetStream client: `js.publish()`, again with the same id until it is acked."""

    name: str = "jetstream-service"
    acked: int = 0
    retries: int = 0

    @override
    async def send(self, client: Client) -> None:
        """Publish the next message and wait for its ack."""
        number, self.count = self.count, self.count + 1
        headers = {"Nats-Msg-Id": f"{self.name}-{number}"}
        while True:
            try:
                ack = await client.jetstream().publish(
                    f"telemetry.events.{self.name}",
                    self.payload(number),
                    timeout=1,
                    headers=headers,
                )
            except (nats.errors.Error, APIError, TimeoutError):
                self.retries += 1
                await asyncio.sleep(0.05)
                continue
            assert ack.stream == "events"
            self.acked = number + 1
            return

    @override
    def promised(self) -> int:
        return self.acked


class InBackground:
    """Runs the senders that need no event loop of the test's own, each in a thread."""

    def __init__(self, senders: list[SpecsSender | OtelSender], *, pause_s: float) -> None:
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(sender, pause_s), daemon=True)
            for sender in senders
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Send nothing more."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=10)
            assert not thread.is_alive()

    def _run(self, sender: SpecsSender | OtelSender, pause_s: float) -> None:
        while not self._stop.wait(pause_s):
            sender.send()


class NatsInBackground:
    """Runs the senders that speak NATS, in a thread with an event loop of its own."""

    def __init__(self, url: str, senders: list[PlainSender], *, pause_s: float) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(url, senders, pause_s)), daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Send nothing more; returns when what is under way has been acked."""
        self._stop.set()
        self._thread.join(timeout=30)
        assert not self._thread.is_alive()

    async def _run(self, url: str, senders: list[PlainSender], pause_s: float) -> None:
        client = await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.1)
        async with asyncio.TaskGroup() as tasks:
            for sender in senders:
                tasks.create_task(self._send(client, sender, pause_s))
        await client.drain()

    async def _send(self, client: Client, sender: PlainSender, pause_s: float) -> None:
        while not self._stop.is_set():
            await sender.send(client)
            await asyncio.sleep(pause_s)


def wait_until_acked(sender: SpecsSender | OtelSender, *, within_s: float = 30) -> None:
    """Wait until the collector has promised to keep all that was sent."""
    if isinstance(sender, OtelSender):
        assert sender.provider.force_flush()
    assert sender.emitter.flush(within_s)
    wait_until(lambda: sender.promised() == sender.sent(), what=f"{sender.name} acked")


def _resource(service: str) -> dict[str, str]:
    return {
        "service.name": service,
        "service.version": "1.2.3",
        "deployment.environment.name": "test",
    }
