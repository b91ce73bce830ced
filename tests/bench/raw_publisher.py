"""A publisher lean enough not to be what is measured: raw NATS protocol, acks counted by bytes.

Every message carries its own reply subject under one wildcard inbox, so a JetStream server and logd
are asked for exactly the same: an ack of each message. At most `window` messages are unanswered.
"""

import asyncio
from dataclasses import dataclass
from urllib.parse import urlsplit

from typing_extensions import override

from penstock.service.clock import SystemClock

_INBOX = "_INBOX.bench"


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run showed.

    Attributes:
        rate: Acked messages a second.
        p50_ms: Median time from write to ack.
        p99_ms: 99th percentile of the same.
        refused: Answers that were errors.
    """

    rate: float
    p50_ms: float
    p99_ms: float
    refused: int


class _Acks(asyncio.Protocol):
    """Counts answers, finds each one's message by its reply subject, and keeps the times."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.answered = 0
        self.refused = 0
        self.sent_ns: list[int] = []
        self.latency_ns: list[int] = []
        self.progress = asyncio.Event()
        self.clock = SystemClock()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(
            b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
            b"SUB " + _INBOX.encode() + b".* 1\r\n"
        )

    @override
    def data_received(self, data: bytes) -> None:
        self.buffer += data
        now_ns = self.clock.monotonic_ns()
        start = 0
        while (end := self.buffer.find(b"\r\n", start)) >= 0:
            line = bytes(self.buffer[start:end])
            if line.startswith((b"MSG ", b"HMSG ")):
                size = int(line.rsplit(b" ", 1)[1])
                if len(self.buffer) < end + 2 + size + 2:
                    break
                self._answer(line, self.buffer[end + 2 : end + 2 + size], now_ns)
                start = end + 2 + size + 2
                continue
            if line == b"PING":
                self.transport.write(b"PONG\r\n")
            assert not line.startswith(b"-ERR"), line
            start = end + 2
        del self.buffer[:start]
        self.progress.set()

    def _answer(self, line: bytes, payload: bytearray, now_ns: int) -> None:
        number = int(line.split(b" ", 2)[1].rsplit(b".", 1)[1])
        self.latency_ns.append(now_ns - self.sent_ns[number])
        self.answered += 1
        self.refused += b'"error"' in payload or line.startswith(b"HMSG")


async def publish_acked(
    url: str, subject: str, *, count: int, size_bytes: int, window: int
) -> Figures:
    """Publish `count` messages of `size_bytes`, with `window` in flight, and await every ack."""
    address = urlsplit(url)
    assert address.hostname is not None
    loop = asyncio.get_running_loop()
    transport, acks = await loop.create_connection(_Acks, address.hostname, address.port or 4222)
    payload = bytes(i % 95 + 32 for i in range(size_bytes))
    started_ns = acks.clock.monotonic_ns()
    sent = 0
    async with asyncio.timeout(120):
        while acks.answered < count:
            burst = min(window - (sent - acks.answered), count - sent)
            if burst > 0:
                acks.sent_ns += [acks.clock.monotonic_ns()] * burst
                transport.write(
                    b"".join(
                        b"PUB %b %b.%d %d\r\n%b\r\n"
                        % (subject.encode(), _INBOX.encode(), number, size_bytes, payload)
                        for number in range(sent, sent + burst)
                    )
                )
                sent += burst
            acks.progress.clear()
            await acks.progress.wait()
    elapsed_s = (acks.clock.monotonic_ns() - started_ns) / 1e9
    transport.close()
    latencies = sorted(acks.latency_ns)
    return Figures(
        rate=count / elapsed_s,
        p50_ms=latencies[len(latencies) // 2] / 1e6,
        p99_ms=latencies[len(latencies) * 99 // 100] / 1e6,
        refused=acks.refused,
    )
