"""Senders of each protocol that a source takes from a network, and the addresses that they need.

Over HTTP and gRPC 4 requests are under way, and as many chunks of Fluent's forward protocol. Over
TCP, where nothing is acknowledged, one connection is written to as fast as it takes.
"""

import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection
from itertools import cycle, islice
from typing import Any, Final

import grpc
import msgpack

from tests.bench import protocol_bodies as bodies

DIFFERENT: Final = 64
"""Bodies that differ from each other; then they repeat."""
_IN_FLIGHT: Final = 4
_JSON: Final = {"content-type": "application/json"}
_LINES: Final = {"content-type": "application/x-ndjson"}
_TEXT: Final = {"content-type": "text/plain"}
_PROTOBUF: Final = {"content-type": "application/x-protobuf"}
_SNAPPY: Final = {**_PROTOBUF, "content-encoding": "snappy"}
_WRITE_2: Final = {
    "content-type": "application/x-protobuf;proto=io.prometheus.write.v2.Request",
    "content-encoding": "snappy",
}
Send = Callable[[int, Sequence[bytes], int], None]
"""Sends so many requests to a port, whose bodies come from the sequence in turns."""


def export(
    service: str, port: int, given: Sequence[bytes], requests: int, in_flight: int = _IN_FLIGHT
) -> None:
    """Send OTLP over gRPC."""
    method = f"/opentelemetry.proto.collector.{service}/Export"
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary(method)
        under_way: deque[Any] = deque()
        for body in _each(given, requests):
            if len(under_way) == in_flight:
                assert under_way.popleft().result() == b"", "refused in part"
            under_way.append(call.future(body))
        for future in under_way:
            assert future.result() == b"", "refused in part"


def forward(port: int, given: Sequence[bytes], requests: int, in_flight: int = _IN_FLIGHT) -> None:
    """Send chunks of Fluent's forward protocol, whose entries are the bodies."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        unpacker, acked = msgpack.Unpacker(), 0
        for number, packed in enumerate(_each(given, requests), 1):
            connection.sendall(msgpack.packb(["shop", packed, {"chunk": str(number)}]))
            while number - acked >= (in_flight if number < requests else 1):
                unpacker.feed(connection.recv(65536))
                acked += sum(1 for _ in unpacker)


def _post(
    path: str, headers: Mapping[str, str], port: int, given: Sequence[bytes], requests: int
) -> None:
    """Send requests on a few connections, each answered before the next."""

    def send_some(first: int) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        for number in range(first, requests, _IN_FLIGHT):
            connection.request("POST", path, given[number % len(given)], dict(headers))
            answer = connection.getresponse()
            content = answer.read()
            assert answer.status in (200, 202, 204), (answer.status, content[:500])
        connection.close()

    with ThreadPoolExecutor(_IN_FLIGHT) as pool:
        list(pool.map(send_some, range(_IN_FLIGHT)))


def _write(port: int, given: Sequence[bytes], requests: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        for body in _each(given, requests):
            connection.sendall(body)


def _each(given: Sequence[bytes], count: int) -> Iterator[bytes]:
    return islice(cycle(given), count)


@dataclass(frozen=True, slots=True)
class Protocol:
    """One way to send.

    Attributes:
        source: The type of the source that takes it.
        send: Sends bodies.
        make: Makes the body of a number.
        key: The key of the source's address.
        options: The source's other keys.
        counter: What the source's stage counts for each record; None: delivered records count.
    """

    source: str
    send: Send
    make: bodies.Body
    key: str = "listen"
    options: Mapping[str, Any] = field(default_factory=dict)
    counter: str | None = None

    def section(self, port: int) -> dict[str, Any]:
        """The source's section in a configuration."""
        return {"type": self.source, self.key: f"127.0.0.1:{port}", **self.options}


def _over_http(
    source: str, path: str, make: bodies.Body, headers: Mapping[str, str] = _JSON
) -> Protocol:
    return Protocol(source, partial(_post, path, headers), make)


def _over_tcp(source: str, make: bodies.Body, **more: Any) -> Protocol:
    return Protocol(source, _write, make, "tcp", **more)


def _otlp(
    name: str, path: str, in_protobuf: bodies.Body, in_json: bodies.Body, what: str
) -> dict[str, Protocol]:
    """OTLP's three transports; the first one is that to which others are compared."""
    binary, text = partial(_post, path, _PROTOBUF), partial(_post, path, _JSON)
    return {
        f"otlp{what}": Protocol("otlp", binary, in_protobuf, "http", {"grpc": None}),
        f"otlp{what}, JSON": Protocol("otlp", text, in_json, "http", {"grpc": None}),
        f"otlp{what}, gRPC": Protocol(
            "otlp", partial(export, name), in_protobuf, "grpc", {"http": None}
        ),
    }


def _socket(codec: str, make: bodies.Body) -> Protocol:
    return _over_tcp("socket", make, options={"codec": codec})


_LOKI: Final = "/loki/api/v1/push"
_HEC: Final = "/services/collector"
_REMOTE: Final = "/api/v1/write"
_LOGS: Final[Mapping[str, Protocol]] = {
    **_otlp("logs.v1.LogsService", "/v1/logs", bodies.otlp_logs, bodies.otlp_logs_json, ""),
    "http, NDJSON": _over_http("http", "/", bodies.objects, _LINES),
    "http, JSON": _over_http("http", "/", bodies.object_array),
    "http, text": _over_http("http", "/", bodies.text_lines, _TEXT),
    "splunk_hec, events": _over_http("splunk_hec", _HEC, bodies.splunk_events),
    "splunk_hec, raw": _over_http(
        "splunk_hec", f"{_HEC}/raw?host=host-1&sourcetype=shop", bodies.text_lines, _TEXT
    ),
    "loki, JSON": _over_http("loki", _LOKI, bodies.loki_json),
    "loki, protobuf": _over_http("loki", _LOKI, bodies.loki_protobuf, _PROTOBUF),
    "elasticsearch": _over_http("elasticsearch", "/_bulk", bodies.bulk, _LINES),
    "datadog": _over_http("datadog", "/api/v2/logs", bodies.datadog_logs),
    "forward": Protocol("forward", forward, bodies.forward_entries),
    "syslog": _over_tcp("syslog", bodies.syslog, options={"udp": None}),
    "socket, text": _socket("text", bodies.text_lines),
    "socket, JSON": _socket("json", bodies.objects),
    "socket, logfmt": _socket("logfmt", bodies.logfmt),
    "socket, GELF": _socket("gelf", bodies.gelf),
    "socket, CEF": _socket("cef", bodies.cef),
    "socket, LEEF": _socket("leef", bodies.leef),
}
_SPANS: Final[Mapping[str, Protocol]] = {
    **_otlp(
        "trace.v1.TraceService", "/v1/traces", bodies.otlp_spans, bodies.otlp_spans_json, ", spans"
    ),
    "zipkin": _over_http("zipkin", "/api/v2/spans", bodies.zipkin_spans),
}
_POINTS: Final[Mapping[str, Protocol]] = {
    **_otlp(
        "metrics.v1.MetricsService", "/v1/metrics", bodies.otlp_points, bodies.otlp_points_json,
        ", points",
    ),
    "prometheus_remote_write 1.0": _over_http(
        "prometheus_remote_write", _REMOTE, bodies.remote_write_1, _SNAPPY
    ),
    "prometheus_remote_write 2.0": _over_http(
        "prometheus_remote_write", _REMOTE, bodies.remote_write_2, _WRITE_2
    ),
    "datadog, JSON": _over_http("datadog", "/api/v2/series", bodies.datadog_series),
    "datadog, protobuf": _over_http(
        "datadog", "/api/v2/series", bodies.datadog_payload, _PROTOBUF
    ),
    "statsd": _over_tcp(
        "statsd", bodies.statsd, counter="samples_aggregated",
        options={"udp": None, "flush_interval_s": 1},
    ),
}  # fmt: skip
FAMILIES: Final[Mapping[str, Mapping[str, Protocol]]] = {
    "log records": _LOGS,
    "spans": _SPANS,
    "metric points": _POINTS,
}
"""Protocols by what they send; the first of each is OTLP's."""
PROTOCOLS: Final[Mapping[str, Protocol]] = {**_LOGS, **_SPANS, **_POINTS}
