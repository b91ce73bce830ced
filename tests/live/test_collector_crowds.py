"""More than a collector can hold: crowds of senders, slow ones, and messages that expand.

Memory is the kernel's account of the process (`VmHWM`, reset before), so that it is also of what
libraries hold.
"""

import gzip
import http.server
import resource
import selectors
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import grpc
import msgpack
import pytest
import zstandard
from typing_extensions import override

from penstock.collector.limits import (
    MIB,
    READ_AHEAD_BYTES,
    READ_BYTES,
    UNIT_DECOMPRESSED_BYTES_MAX,
)
from tests.support.collector import Collector, UnixSender, bodies, encode_batch, log_line
from tests.support.logd import Logd
from tests.support.processes import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

STREAMS = [
    {"name": "logs", "subject": "telemetry.logs.>"},
    {"name": "metrics", "subject": "telemetry.metrics.>"},
]
CROWD = 10_000
CONNECTION_BYTES = 40 * 1024
"""What an idle connection may cost: a task, a transport, a reader and its buffers."""
UNREAD_BYTES = READ_AHEAD_BYTES + 2 * READ_BYTES
"""What is read of a connection beyond the budget: `penstock.collector.sources.network.listener`."""
SLACK_BYTES = 48 * MIB
"""What the allocator keeps, and the pipeline holds besides."""


def memory_of(pid: int, field: str = "VmHWM") -> int:
    """Bytes: the most it had, or has (`VmRSS`)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


@contextmanager
def growing_at_most(pid: int, size: int) -> Iterator[None]:
    """The process has at no time this much more memory than now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    before = memory_of(pid, "VmRSS")
    yield
    grown = memory_of(pid) - before
    assert grown < size, f"{grown >> 20} MiB, of {size >> 20}"


@contextmanager
def descriptors(pid: int, count: int) -> Iterator[int]:
    """Let both processes have so many files open; yields fewer where no more are allowed."""
    own = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(count, own[1] - 1000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 1000, own[1]))
    theirs = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (count + 1000, theirs[1]))
    try:
        yield count
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, own)


def test_ten_thousand_connections_are_served_and_one_more_than_allowed_is_not(
    tmp_path: Path, nats_url: str
) -> None:
    """All are open at once, and each sends its message in two halves, far apart."""
    port = free_port()
    syslog = {"type": "syslog", "udp": None, "tcp": f"127.0.0.1:{port}", "max_connections": CROWD}
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "collector", nats_url, [syslog]) as collector,
        descriptors(collector.daemon.pid, CROWD) as count,
        ExitStack() as stack,
    ):
        with growing_at_most(collector.daemon.pid, count * CONNECTION_BYTES + SLACK_BYTES):
            crowd = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
                for _ in range(count)
            ]
            for number, sender in enumerate(crowd):
                sender.sendall(b"<13>number %d" % number)
            if count == CROWD:
                with socket.create_connection(("127.0.0.1", port), timeout=60) as late:
                    assert late.recv(1) == b""
            for sender in crowd:
                sender.sendall(b" end\n")
            wait_until(lambda: collector.account("syslog").get("delivered") == count, within_s=60)
        wait_until(collector.is_idle)
        expected = {f"number {number} end" for number in range(count)}
        assert set(bodies(logd.values("logs"))) == expected


def test_slow_senders_of_large_messages_hold_no_more_than_they_may(
    tmp_path: Path, nats_url: str
) -> None:
    """Each sends most of a large message and stops: together many times what may be held."""
    port, senders, part = free_port(), 200, 2 * MIB
    source = {"type": "forward", "listen": f"127.0.0.1:{port}"}
    receive = {"max_bytes": 32 * MIB, "max_source_bytes": 32 * MIB}
    unfinished = msgpack.packb(["app", 0, {"message": "x" * (part * 2)}])[:part]
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "collector", nats_url, [source], receive=receive) as collector,
        ExitStack() as stack,
    ):

        def ended() -> int:
            detail = collector.daemon.stage("source/forward")["detail"]
            return int(detail.get("connections_ended_no_room", 0))

        bound = 2 * 32 * MIB + senders * UNREAD_BYTES + SLACK_BYTES  # what grows is copied
        assert bound < senders * part // 2
        with growing_at_most(collector.daemon.pid, bound):
            _pour(stack, port, senders, unfinished, until=lambda: ended() > 0)
            with socket.create_connection(("127.0.0.1", port), timeout=120) as good:
                good.sendall(msgpack.packb(["app", 0, {"message": "small"}, {"chunk": "c"}]))
                stack.close()  # who holds room leaves
                assert msgpack.unpackb(good.recv(100)) == {"ack": "c"}
        wait_until(collector.is_idle)
        assert bodies(logd.values("logs")) == ["small"]


def _pour(
    stack: ExitStack, port: int, senders: int, data: bytes, *, until: Callable[[], bool]
) -> None:
    """Send as much as is taken on many connections, until something is so."""
    selector = stack.enter_context(selectors.DefaultSelector())
    for _ in range(senders):
        connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        stack.callback(connection.close)
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_WRITE, [0])

    def is_enough() -> bool:
        for key, _ in selector.select(timeout=0):
            sent, connection = key.data, key.fileobj
            assert isinstance(connection, socket.socket)
            try:
                sent[0] += connection.send(data[sent[0] :])
            except OSError:
                selector.unregister(connection)
            else:
                if sent[0] == len(data):
                    selector.unregister(connection)
        return until()

    wait_until(is_enough, within_s=60)


# Messages that expand.

BOMB = bytes(300 * MIB)


class Exporter(http.server.BaseHTTPRequestHandler):
    """Answers a scrape with something small that expands."""

    @cached_property
    def body(self) -> bytes:
        return gzip.compress(BOMB)

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-encoding", "gzip")
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    @override
    def log_message(self, *_: object) -> None: ...


@contextmanager
def exporter() -> Iterator[int]:
    """Its port."""
    with http.server.HTTPServer(("127.0.0.1", 0), Exporter) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join(timeout=20)


def send_forward(port: int, kind: str, data: bytes) -> None:
    """A compressed chunk; whether it is acknowledged is the collector's to say."""
    option = {"compressed": kind, "chunk": "bomb"}
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(msgpack.packb(["app", data, option]))
        connection.recv(100)


def send_http(port: int, kind: str, data: bytes) -> None:
    """An OTLP request, which is refused."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/logs",
        data,
        {"content-type": "application/x-protobuf", "content-encoding": kind},
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    with refused.value:
        assert refused.value.code == 413


def send_grpc(port: int) -> None:
    """An OTLP request that grpc itself compresses."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        export: Any = channel.unary_unary(
            "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
        )
        with pytest.raises(grpc.RpcError) as refused:
            export(BOMB, compression=grpc.Compression.Gzip, timeout=120)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def send_unix(path: Path) -> None:
    """A batch whose lines are compressed."""
    body = zstandard.compress(b"\n".join([log_line(1), BOMB]))
    frame = encode_batch("bomber", 1, [body], codec="zstd", count=2)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.settimeout(60)
        connection.sendall(frame)
        connection.recv(1000)


def test_no_message_of_any_protocol_expands_beyond_its_bound(tmp_path: Path, nats_url: str) -> None:
    path = tmp_path / "s.sock"
    forward, http_port, grpc_port = free_port(), free_port(), free_port()
    with (
        exporter() as scraped,
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(
            tmp_path / "collector", nats_url,
            [
                {"type": "unix", "path": str(path)},
                {"type": "forward", "listen": f"127.0.0.1:{forward}"},
                {"type": "otlp", "grpc": f"127.0.0.1:{grpc_port}",
                 "http": f"127.0.0.1:{http_port}"},
                {"type": "prometheus", "targets": [f"http://127.0.0.1:{scraped}/metrics"],
                 "interval_s": 1},
            ],
        ) as collector,
        UnixSender(path, "a", lambda n: [log_line(n)]) as sender,
    ):  # fmt: skip
        pid = collector.daemon.pid
        with growing_at_most(pid, 2 * UNIT_DECOMPRESSED_BYTES_MAX + SLACK_BYTES):
            for kind, packed in (
                ("gzip", gzip.compress(BOMB)), ("zstd", zstandard.compress(BOMB))
            ):  # fmt: skip
                send_forward(forward, kind, packed)
                send_http(http_port, kind, packed)
            send_grpc(grpc_port)
            send_unix(path)
            acked = sender.acked
            wait_until(lambda: sender.acked > acked + 20)
            sender.stop()
            wait_until(collector.is_idle, within_s=60)
        assert collector.daemon.pid == pid
        numbers = [int(body.split()[1]) for body in bodies(logd.values("logs"))]
        assert numbers == [*range(1, len(numbers) + 1)], "repeated, missing or out of order"
        assert len(numbers) >= sender.acked
