"""What the senders of `tests.bench.senders` send: the same records by each protocol.

Log records, spans and metric points. No two records of a body are alike, nor those of two bodies.
What differs is what a protocol says besides: Splunk and Datadog repeat host and source with each
record, Elasticsearch has a line before each. Loki says labels once, and its records are text, as
are those of syslog and of lines of text. CEF and LEEF have an event of a firewall's kind around
the same fields. The bodies of OTLP in JSON are made from those in protobuf.
"""

import base64
import hashlib
from collections.abc import Callable
from typing import Any, Final

import msgpack
import orjson
import pyarrow as pa
from google.protobuf.json_format import MessageToDict, ParseDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from penstock.collector.decode.senders.datadog import PAYLOAD
from penstock.collector.decode.senders.loki import PUSH
from penstock.collector.decode.senders.remote_write import WRITE_1, WRITE_2

BATCH: Final = 512
"""Records of a body."""
_TIME_S: Final = 1_700_000_000
_TIME_NS: Final = _TIME_S * 10**9
_GAUGE: Final = 2
"""The type of a gauge in remote write 2.0."""
_DATADOG_GAUGE: Final = 3
Body = Callable[[int], bytes]
"""Return the body of a number; the bodies of two numbers have no record in common."""


def shop_event(number: int) -> tuple[str, str, str, int]:
    """The method, path, text and status of a record; no two texts are alike."""
    method = ("GET", "POST", "GET", "PUT")[number % 4]
    path = f"/{('cart', 'order', 'stock')[number % 3]}/{number % 997}/checkout"
    body = (
        f"order o-{number:08} of customer {number * 7919 % 100_000} was paid in shop {number % 7}"
    )
    return method, path, body, (200, 200, 201, 404)[number % 4]


def an_id(number: int, size: int) -> bytes:
    """An id of so many bytes, as random as those of senders, and always the same."""
    return hashlib.blake2b(number.to_bytes(4), digest_size=size).digest()


def _numbers(body: int) -> range:
    return range(body * BATCH, (body + 1) * BATCH)


def _duration_ms(number: int) -> float:
    return number % 4000 / 4


def _fields(number: int) -> dict[str, Any]:
    method, path, _, status = shop_event(number)
    return {"http.request.method": method, "url.path": path, "status_code": status,
            "duration_ms": _duration_ms(number)}  # fmt: skip


def _object(number: int) -> dict[str, Any]:
    """A record as an object, as structured loggers write it."""
    return {"level": "info", "message": shop_event(number)[2], **_fields(number)}


def _text(number: int) -> str:
    """A record as a line of text."""
    method, path, text, status = shop_event(number)
    return f"{text} {method} {path} {status} in {_duration_ms(number)} ms"


def _tags(number: int) -> dict[str, str]:
    method, path, _, _ = shop_event(number)
    return {"http.request.method": method, "http.route": path, "server.address": "host-1"}


def _labels(number: int) -> dict[str, str]:
    """Those of one of 8,192 series; a body has 512 of them."""
    series = number % 8192
    tags = {key.replace(".", "_"): text for key, text in _tags(series).items()}
    return {**tags, "till": str(series)}


def json_lines(*made: Callable[[int], Any]) -> Body:
    """Lines of JSON; a record is as many lines as there are functions that make one."""

    def body(number: int) -> bytes:
        return b"".join(orjson.dumps(one(it)) + b"\n" for it in _numbers(number) for one in made)

    return body


def messages(made: Callable[[int], str], end: str) -> Body:
    """Texts, each with what ends it."""
    return lambda body: "".join(made(number) + end for number in _numbers(body)).encode()


# Log records.

objects: Final = json_lines(_object)
text_lines: Final = messages(_text, "\n")


def object_array(body: int) -> bytes:
    """An array of objects."""
    return orjson.dumps([_object(number) for number in _numbers(body)])


def _logs(body: int) -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    element = request.resource_logs.add()
    for key, text in (("service.name", "shop"), ("host.name", "host-1")):
        element.resource.attributes.add(key=key).value.string_value = text
    records = element.scope_logs.add().log_records
    for number in _numbers(body):
        method, path, text, status = shop_event(number)
        record = records.add(time_unix_nano=_TIME_NS + number, severity_number=9)
        record.body.string_value = text
        for key, value in (("http.request.method", method), ("url.path", path)):
            record.attributes.add(key=key).value.string_value = value
        record.attributes.add(key="status_code").value.int_value = status
        record.attributes.add(key="duration_ms").value.double_value = _duration_ms(number)
    return request


def _splunk(number: int) -> Any:
    about = {"host": "host-1", "source": "till", "sourcetype": "shop", "index": "main"}
    return {"time": _TIME_S + number / 1000, **about, "event": _object(number)}


splunk_events: Final = json_lines(_splunk)


def _create(_: int) -> Any:
    return {"create": {"_index": "logs-shop"}}


def _document(number: int) -> Any:
    time = f"2026-01-02T03:04:05.{number % 1000:03}Z"
    return {"@timestamp": time, "host": {"name": "host-1"}, "service": {"name": "shop"},
            **_object(number)}  # fmt: skip


bulk: Final = json_lines(_create, _document)


def datadog_logs(body: int) -> bytes:
    """An array of logs."""
    about = {"hostname": "host-1", "service": "shop", "ddsource": "till", "ddtags": "env:prod"}
    return orjson.dumps(
        [
            {**about, "message": shop_event(number)[2], "status": "info", **_fields(number),
             "timestamp": _TIME_S * 1000 + number}
            for number in _numbers(body)
        ]
    )  # fmt: skip


def loki_json(body: int) -> bytes:
    """A push of one stream."""
    values = [[f"{_TIME_NS + number}", _text(number)] for number in _numbers(body)]
    labels = {"app": "shop", "env": "prod", "level": "info"}
    return orjson.dumps({"streams": [{"stream": labels, "values": values}]})


def loki_protobuf(body: int) -> bytes:
    """A push of one stream, compressed by Snappy."""
    request = PUSH()
    stream = request.streams.add(labels='{app="shop", env="prod", level="info"}')
    for number in _numbers(body):
        entry = stream.entries.add(line=_text(number).encode())
        entry.timestamp.seconds, entry.timestamp.nanos = _TIME_S, number
    return _snappy(request)


def forward_entries(body: int) -> bytes:
    """The entries of a chunk, one after the other."""
    return b"".join(msgpack.packb([_TIME_S, _object(number)]) for number in _numbers(body))


def syslog(body: int) -> bytes:
    """Messages of RFC 5424, each behind its length (RFC 6587)."""
    head = "<134>1 2026-01-02T03:04:05.123456Z host-1 shop 4711 - - "
    texts = (f"{head}{_text(number)}".encode() for number in _numbers(body))
    return b"".join(b"%d %b" % (len(text), text) for text in texts)


def _logfmt(number: int) -> str:
    fields = " ".join(f"{key}={value}" for key, value in _fields(number).items())
    return f'level=info msg="{shop_event(number)[2]}" {fields}'


def _gelf(number: int) -> str:
    about = {"version": "1.1", "host": "host-1", "timestamp": _TIME_S + number / 1000, "level": 6}
    fields = {f"_{key}": value for key, value in _fields(number).items()}
    message = {"short_message": shop_event(number)[2], "_service": "shop"}
    return orjson.dumps({**about, **message, **fields}).decode()


def _extensions(number: int, between: str) -> str:
    method, path, text, status = shop_event(number)
    fields = {"requestMethod": method, "request": path, "outcome": status, "src": "10.0.0.7",
              "spt": 1024 + number % 60_000, "msg": text}  # fmt: skip
    return between.join(f"{key}={value}" for key, value in fields.items())


def _cef(number: int) -> str:
    return f"CEF:0|Shop|till|1.2|{number % 100}|order paid|3|{_extensions(number, ' ')}"


def _leef(number: int) -> str:
    return f"LEEF:1.0|Shop|till|1.2|{number % 100}|sev=3\t" + _extensions(number, "\t")


logfmt: Final = messages(_logfmt, "\n")
gelf: Final = messages(_gelf, "\0")
cef: Final = messages(_cef, "\n")
leef: Final = messages(_leef, "\n")


# Spans.


def _begin_ns(number: int) -> int:
    return _TIME_NS + number * 1000


def _spans(body: int) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    element = request.resource_spans.add()
    element.resource.attributes.add(key="service.name").value.string_value = "shop"
    spans = element.scope_spans.add().spans
    for number in _numbers(body):
        span = spans.add(
            trace_id=an_id(number, 16), span_id=an_id(number, 8), kind=2, name="GET /cart",
            start_time_unix_nano=_begin_ns(number),
            end_time_unix_nano=_begin_ns(number) + 5_000_000,
        )  # fmt: skip
        for key, text in _tags(number).items():
            span.attributes.add(key=key).value.string_value = text
    return request


def zipkin_spans(body: int) -> bytes:
    """An array of spans."""
    return orjson.dumps(
        [
            {
                "traceId": an_id(number, 16).hex(), "id": an_id(number, 8).hex(), "kind": "SERVER",
                "name": "GET /cart", "timestamp": _begin_ns(number) // 1000, "duration": 5000,
                "localEndpoint": {"serviceName": "shop"}, "tags": _tags(number),
            }
            for number in _numbers(body)
        ]
    )  # fmt: skip


# Metric points.


def _points(body: int) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    element = request.resource_metrics.add()
    element.resource.attributes.add(key="service.name").value.string_value = "shop"
    metric = element.scope_metrics.add().metrics.add(name="queue_depth", unit="1")
    for number in _numbers(body):
        point = metric.gauge.data_points.add(
            time_unix_nano=_begin_ns(number), as_double=_duration_ms(number)
        )
        for key, text in _labels(number).items():
            point.attributes.add(key=key).value.string_value = text
    return request


def _series(number: int) -> dict[str, str]:
    return {"__name__": "queue_depth", "job": "shop", **_labels(number)}


def remote_write_1(body: int) -> bytes:
    """A request of version 1.0, compressed by Snappy."""
    request = WRITE_1()
    for number in _numbers(body):
        series = request.timeseries.add()
        for name, value in sorted(_series(number).items()):
            series.labels.add(name=name, value=value)
        series.samples.add(value=_duration_ms(number), timestamp=_begin_ns(number) // 10**6)
    return _snappy(request)


def remote_write_2(body: int) -> bytes:
    """A request of version 2.0, compressed by Snappy."""
    request, symbols = WRITE_2(), {"": 0}
    for number in _numbers(body):
        series = request.timeseries.add()
        for pair in sorted(_series(number).items()):
            series.labels_refs.extend(symbols.setdefault(text, len(symbols)) for text in pair)
        series.samples.add(value=_duration_ms(number), timestamp=_begin_ns(number) // 10**6)
        series.metadata.type = _GAUGE
    request.symbols.extend(symbols)
    return _snappy(request)


def _datadog_series(number: int) -> dict[str, Any]:
    return {
        "metric": "queue_depth", "type": _DATADOG_GAUGE,
        "points": [{"timestamp": _TIME_S + number % 1000, "value": _duration_ms(number)}],
        "resources": [{"type": "host", "name": "host-1"}],
        "tags": ["service:shop", *(f"{key}:{text}" for key, text in _labels(number).items())],
    }  # fmt: skip


def datadog_series(body: int) -> bytes:
    """Series in JSON, as the API client sends them."""
    return orjson.dumps({"series": list(map(_datadog_series, _numbers(body)))})


def datadog_payload(body: int) -> bytes:
    """Series in protobuf, as the agent sends them."""
    return _encoded(ParseDict({"series": list(map(_datadog_series, _numbers(body)))}, PAYLOAD()))


def _statsd(number: int) -> str:
    tags = ",".join(f"{key}:{text}" for key, text in _labels(number).items())
    return f"queue_depth:{_duration_ms(number)}|g|#{tags}"


statsd: Final = messages(_statsd, "\n")
"""Samples of gauges with DogStatsD's tags."""


# Forms of messages.


def _encoded(message: Any) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded


def _snappy(message: Any) -> bytes:
    packed: bytes = pa.compress(_encoded(message), codec="snappy", asbytes=True)
    return packed


def in_protobuf(make: Callable[[int], Any]) -> Body:
    """Bodies in protobuf."""
    return lambda body: _encoded(make(body))


def in_json(make: Callable[[int], Any]) -> Body:
    """Bodies in OTLP's JSON, whose ids are hexadecimal."""
    return lambda body: orjson.dumps(
        _with_ids(MessageToDict(make(body), use_integers_for_enums=True))
    )


otlp_logs, otlp_spans, otlp_points = map(in_protobuf, (_logs, _spans, _points))
otlp_logs_json, otlp_spans_json, otlp_points_json = map(in_json, (_logs, _spans, _points))


def _with_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_ids(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64decode(one).hex() if key in {"traceId", "spanId"} else _with_ids(one)
        for key, one in value.items()
    }
