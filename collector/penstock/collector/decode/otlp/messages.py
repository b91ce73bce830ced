"""OTLP requests as JSON objects, and its answers, in both encodings (opentelemetry-proto 1.x).

A protobuf request becomes the object that OTLP's own JSON mapping has for it, so that everything
behind this file knows one form: keys in lower camel case, ids in hex, enumerations as numbers.
64-bit integers stay integers, since nothing here is JavaScript. `google.protobuf.json_format` is
not OTLP's mapping: it writes ids in base64 and refuses hex.
"""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import orjson

from penstock.base.lazy_module import LazyModule
from penstock.collector.errors import RemoteProtocolError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message
    from google.rpc import error_details_pb2, status_pb2
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
else:  # `penstock.collector.sources.otlp` has them imported, on a thread
    error_details_pb2 = LazyModule("google.rpc.error_details_pb2")
    status_pb2 = LazyModule("google.rpc.status_pb2")
    logs_service_pb2 = LazyModule("opentelemetry.proto.collector.logs.v1.logs_service_pb2")
    metrics_service_pb2 = LazyModule("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    trace_service_pb2 = LazyModule("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

DECODER: Final = "penstock.collector.decode.otlp.logs"
"""Module to import, on a thread, before a request is decoded; it imports protobuf."""

Json = dict[str, Any]
_IDS: Final = frozenset({"trace_id", "span_id", "parent_span_id"})
_SIMPLE: Final = {
    "string_value": "stringValue",
    "int_value": "intValue",
    "bool_value": "boolValue",
    "double_value": "doubleValue",
}
_ERROR_CHARACTERS_MAX: Final = 1024
_NULL_DEPTH_MAX: Final = 64
"""Depth to which nulls are searched; OTLP's objects nest 10 deep, and values within values."""


class Encoding(Enum):
    """Encoding of a request; its response has the same."""

    PROTOBUF = "application/x-protobuf"
    JSON = "application/json"


@dataclass(frozen=True, slots=True, eq=False)
class Signal:
    """One of OTLP's services.

    Attributes:
        name: The name in the HTTP path ``/v1/<name>``.
        service: Full name of the gRPC service; its method is ``Export``.
        types: Module that protobuf's compiler made of the service.
        elements: The request's only field: resources with what they emitted.
        rejected: The partial success's field that counts what was not taken.
        members: Name of the counted items, for people.
    """

    name: str
    service: str
    types: Any
    elements: str
    rejected: str
    members: str

    def request(self) -> "Message":
        """An empty request."""
        made: Message = self._message("Request")
        return made

    def response(self) -> Any:
        """An empty response."""
        return self._message("Response")

    def _message(self, kind: str) -> Any:
        return getattr(self.types, f"Export{self.service.rpartition('.')[2]}{kind}")()


_PACKAGE: Final = "opentelemetry.proto.collector"
SIGNALS: Final = (
    Signal(
        "logs", f"{_PACKAGE}.logs.v1.LogsService",
        logs_service_pb2, "resourceLogs", "rejected_log_records", "log records",
    ),
    Signal(
        "traces", f"{_PACKAGE}.trace.v1.TraceService",
        trace_service_pb2, "resourceSpans", "rejected_spans", "spans",
    ),
    Signal(
        "metrics", f"{_PACKAGE}.metrics.v1.MetricsService",
        metrics_service_pb2, "resourceMetrics", "rejected_data_points", "data points",
    ),
)  # fmt: skip
LOGS: Final = SIGNALS[0]


def decode_request(signal: Signal, body: bytes, encoding: Encoding) -> list[Json]:
    """The request's elements, each a resource with what it emitted.

    Raises:
        RemoteProtocolError: It is no such request.
    """
    if encoding is Encoding.JSON:
        return _decode_json(signal, body)
    elements: list[Json] = as_json(parse_request(signal, body)).get(signal.elements, [])
    return elements


def parse_request(signal: Signal, body: bytes) -> "Message":
    """A protobuf request as it is.

    Raises:
        RemoteProtocolError: It is none.
    """
    from google.protobuf.message import DecodeError

    request = signal.request()
    try:
        request.ParseFromString(body)
    except DecodeError:
        raise RemoteProtocolError(f"not a protobuf request for {signal.name}") from None
    return request


def as_json(message: "Message") -> Json:
    """A message as the object that OTLP's JSON mapping has for it."""
    readers = _readers(message.DESCRIPTOR)
    found: Json = {}
    for field, value in message.ListFields():
        name, read = readers[field.number]
        found[name] = read(value)
    return found


def encode_response(signal: Signal, encoding: Encoding, rejected: int, message: str) -> bytes:
    """The answer to a request that was taken, in part when `rejected` says so."""
    message = message[:_ERROR_CHARACTERS_MAX]
    if encoding is Encoding.JSON:
        first, *rest = signal.rejected.split("_")
        key = first + "".join(word.capitalize() for word in rest)
        partial = {key: str(rejected), "errorMessage": message}
        return orjson.dumps({"partialSuccess": partial} if rejected else {})
    response = signal.response()
    if rejected:
        setattr(response.partial_success, signal.rejected, rejected)
        response.partial_success.error_message = message
    encoded: bytes = response.SerializeToString()
    return encoded


def encode_status(
    encoding: Encoding, code: int, message: str, *, retry_after_s: int | None = None
) -> bytes:
    """The answer to a request that was not taken: a ``google.rpc.Status``.

    Args:
        encoding: The request's.
        code: The gRPC status code.
        message: Description of the error, and the fix.
        retry_after_s: Seconds after which a retry may succeed; None: never.
    """
    message = message[:_ERROR_CHARACTERS_MAX]
    if encoding is Encoding.JSON:
        status: Json = {"code": code, "message": message}
        if retry_after_s is not None:
            kind = "type.googleapis.com/google.rpc.RetryInfo"
            status["details"] = [{"@type": kind, "retryDelay": f"{retry_after_s}s"}]
        return orjson.dumps(status)
    made = status_pb2.Status(code=code, message=message)
    if retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.seconds = retry_after_s
        made.details.add().Pack(retry)
    encoded: bytes = made.SerializeToString()
    return encoded


def _decode_json(signal: Signal, body: bytes) -> list[Json]:
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RemoteProtocolError(f"not JSON: {error}") from None
    if b"null" in body:
        request = _without_nulls(request, _NULL_DEPTH_MAX)
    elements = request.get(signal.elements, []) if isinstance(request, dict) else None
    if not isinstance(elements, list) or not all(isinstance(item, dict) for item in elements):
        raise RemoteProtocolError(f"not a JSON request for {signal.name}: {signal.elements} [...]")
    return elements


def _without_nulls(value: Any, depth: int) -> Any:
    """Return the value without members that are null; in protobuf's JSON they count as absent."""
    if depth == 0:
        return value
    if isinstance(value, dict):
        return {k: _without_nulls(v, depth - 1) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(item, depth - 1) for item in value]
    return value


def _key_value(message: Any) -> Json:
    """`as_json` for the message that half of every request is made of."""
    return {"key": message.key, "value": _any_value(message.value)}


def _any_value(message: Any) -> Json:
    """`as_json` for the other half."""
    kind = message.WhichOneof("value")
    read = _SIMPLE.get(kind)
    return as_json(message) if read is None else {read: getattr(message, kind)}


@lru_cache(maxsize=256)
def _readers(descriptor: "Descriptor") -> dict[int, tuple[str, Callable[[Any], Any]]]:
    return {field.number: (field.json_name, _reader(field)) for field in descriptor.fields}


def _reader(field: "FieldDescriptor") -> Callable[[Any], Any]:
    if field.message_type is not None:
        one = _QUICK.get(field.message_type.full_name, as_json)
    elif field.type == field.TYPE_BYTES:
        one = bytes.hex if field.name in _IDS else _base64
    else:
        return list if field.is_repeated else _same
    return (lambda values: [one(value) for value in values]) if field.is_repeated else one


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _same(value: Any) -> Any:
    return value


_QUICK: Final[dict[str, Callable[[Any], Any]]] = {
    "opentelemetry.proto.common.v1.AnyValue": _any_value,
    "opentelemetry.proto.common.v1.KeyValue": _key_value,
}
