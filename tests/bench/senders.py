"""Log records as the senders of other products post them: the same record by each protocol.

A request has 512 of them. What differs is what a protocol says besides: Splunk and Datadog repeat
host and source with each record, Elasticsearch has a line before each. Loki says labels once, and
its records are text, as its senders have it.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any, Final

import orjson
import pyarrow as pa
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from penstock.collector.decode.senders.loki import PUSH

BATCH: Final = 512
_CONNECTIONS: Final = 4
_JSON: Final = {"content-type": "application/json"}
_LINES: Final = {"content-type": "application/x-ndjson"}
_PROTOBUF: Final = {"content-type": "application/x-protobuf"}
_TEXT: Final = "an order was paid by card in the shop at the corner"
_FIELDS: Final[Mapping[str, Any]] = {
    "http.request.method": "GET", "url.path": "/cart/checkout", "status_code": 200,
}  # fmt: skip
_TIME_S: Final = 1_700_000_000


def _event(number: int) -> dict[str, Any]:
    """A record as an object, as structured loggers write it."""
    return {"level": "info", "message": _TEXT, "duration_ms": number / 4, **_FIELDS}


def _lines(made: Callable[[int], Iterable[Any]]) -> bytes:
    return b"".join(orjson.dumps(one) + b"\n" for number in range(BATCH) for one in made(number))


def _splunk(number: int) -> Iterable[Any]:
    about = {"host": "host-1", "source": "till", "sourcetype": "shop", "index": "main"}
    yield {"time": _TIME_S + number / 1000, **about, "event": _event(number)}


def _elasticsearch(number: int) -> Iterable[Any]:
    yield {"create": {"_index": "logs-shop"}}
    yield {
        "@timestamp": f"2026-01-02T03:04:05.{number:03}Z", "host": {"name": "host-1"},
        "service": {"name": "shop"}, **_event(number),
    }  # fmt: skip


def _datadog() -> bytes:
    about = {"hostname": "host-1", "service": "shop", "ddsource": "till", "ddtags": "env:prod"}
    message = {"message": _TEXT, "status": "info"}
    return orjson.dumps(
        [
            {**about, **message, **_FIELDS, "timestamp": _TIME_S * 1000 + n, "duration_ms": n / 4}
            for n in range(BATCH)
        ]
    )


def _otlp() -> bytes:
    request = ExportLogsServiceRequest()
    element = request.resource_logs.add()
    for key, text in (("service.name", "shop"), ("host.name", "host-1")):
        element.resource.attributes.add(key=key).value.string_value = text
    records = element.scope_logs.add().log_records
    for number in range(BATCH):
        record = records.add(time_unix_nano=_TIME_S * 10**9 + number, severity_number=9)
        record.body.string_value = _TEXT
        for key, text in (("http.request.method", "GET"), ("url.path", "/cart/checkout")):
            record.attributes.add(key=key).value.string_value = text
        record.attributes.add(key="status_code").value.int_value = 200
        record.attributes.add(key="duration_ms").value.double_value = number / 4
    encoded: bytes = request.SerializeToString()
    return encoded


def _loki_text(number: int) -> str:
    return f"{_TEXT} GET /cart/checkout 200 in {number / 4} ms"


def _loki_json() -> bytes:
    values = [[f"{_TIME_S}{number:09}", _loki_text(number)] for number in range(BATCH)]
    labels = {"app": "shop", "env": "prod", "level": "info"}
    return orjson.dumps({"streams": [{"stream": labels, "values": values}]})


def _loki_protobuf() -> bytes:
    request = PUSH()
    stream = request.streams.add(labels='{app="shop", env="prod", level="info"}')
    for number in range(BATCH):
        entry = stream.entries.add(line=_loki_text(number).encode())
        entry.timestamp.seconds, entry.timestamp.nanos = _TIME_S, number
    packed: bytes = pa.compress(request.SerializeToString(), codec="snappy", asbytes=True)
    return packed


@dataclass(frozen=True, slots=True)
class Protocol:
    """One way to send.

    Attributes:
        source: Its type.
        make: Makes a request's body.
        key: The key of its address.
    """

    source: str
    path: str
    make: Callable[[], bytes]
    headers: Mapping[str, str] = field(default_factory=lambda: _JSON)
    key: str = "listen"

    def section(self, port: int) -> dict[str, Any]:
        """The source's section in a configuration."""
        others = {"grpc": None} if self.source == "otlp" else {}
        return {"type": self.source, self.key: f"127.0.0.1:{port}", **others}


PROTOCOLS: Final[Mapping[str, Protocol]] = {
    "otlp": Protocol("otlp", "/v1/logs", _otlp, _PROTOBUF, "http"),
    "http": Protocol("http", "/", lambda: _lines(lambda number: [_event(number)]), _LINES),
    "splunk_hec": Protocol("splunk_hec", "/services/collector", lambda: _lines(_splunk)),
    "loki, JSON": Protocol("loki", "/loki/api/v1/push", _loki_json),
    "loki, protobuf": Protocol("loki", "/loki/api/v1/push", _loki_protobuf, _PROTOBUF),
    "elasticsearch": Protocol("elasticsearch", "/_bulk", lambda: _lines(_elasticsearch), _LINES),
    "datadog": Protocol("datadog", "/api/v2/logs", _datadog),
}


def send(port: int, protocol: Protocol, requests: int) -> None:
    """Send one request again and again on a few connections, each answered before the next."""
    body, headers = protocol.make(), dict(protocol.headers)

    def send_some(count: int) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        for _ in range(count):
            connection.request("POST", protocol.path, body, headers)
            answer = connection.getresponse()
            said = answer.read()
            assert answer.status in (200, 202, 204), (answer.status, said[:500])
        connection.close()

    counts = [len(range(first, requests, _CONNECTIONS)) for first in range(_CONNECTIONS)]
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        list(pool.map(send_some, counts))
