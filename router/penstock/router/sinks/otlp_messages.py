"""OTLP's messages from its JSON form, and requests put together of them.

An element (`ResourceLogs` and its like) is kept as the bytes of its resource, of its scope and of
its one member, so that elements with the same resource and scope are joined without decoding. The
three signals number these fields alike: a request's elements, an element's resource and scopes, a
scope's own and its members are 1, 1 and 2, 1 and 2; the scope's schema URL is 3.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from penstock.router.core.verdict import Fault, Sorted, Taken, Verdict
from penstock.router.sinks.protobuf import field_bytes

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Signal:
    """One of the three.

    Attributes:
        name: As the path of OTLP over HTTP ends.
        scopes: The key of an element's scopes in JSON.
        members: The key of a scope's members in JSON.
        member: The members' message.
        response: What an export is answered with.
        rejected: The field of a partial success that counts.
        method: Of gRPC.
    """

    name: str
    scopes: str
    members: str
    member: type[Message]
    response: type[Message]
    rejected: str
    method: str


_SERVICE: Final = "/opentelemetry.proto.collector"
SIGNALS: Final = {
    signal.name: signal
    for signal in (
        Signal("logs", "scopeLogs", "logRecords", LogRecord, logs.ExportLogsServiceResponse,
               "rejected_log_records", f"{_SERVICE}.logs.v1.LogsService/Export"),
        Signal("traces", "scopeSpans", "spans", Span, traces.ExportTraceServiceResponse,
               "rejected_spans", f"{_SERVICE}.trace.v1.TraceService/Export"),
        Signal("metrics", "scopeMetrics", "metrics", Metric, metrics.ExportMetricsServiceResponse,
               "rejected_data_points", f"{_SERVICE}.metrics.v1.MetricsService/Export"),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Element:
    """One record: the bytes of its resource (field 1 included), of its scope, of itself."""

    resource: bytes
    scope: bytes
    member: bytes


def encode_element(element: Json) -> tuple[str, Element, int]:
    """An element of one member: its signal, its parts, and its size alone in a request.

    Raises:
        KeyError, TypeError, ValueError: It is none.
    """
    signal = next(each for each in SIGNALS.values() if each.scopes in element)
    (scope,) = element[signal.scopes]
    (member,) = scope[signal.members]
    own = _bytes(InstrumentationScope, scope.get("scope", {}))
    url = scope.get("schemaUrl", "")
    made = Element(
        field_bytes(1, _bytes(Resource, element["resource"])),
        field_bytes(1, own) + (field_bytes(3, url.encode()) if url else b""),
        field_bytes(2, _bytes(signal.member, member)),
    )
    return signal.name, made, len(join_elements([made]))


def join_elements(elements: Sequence[Element]) -> bytes:
    """A whole request."""
    found = []
    for resource, of_resource in groupby(elements, key=lambda each: each.resource):
        scopes = []
        for scope, of_scope in groupby(of_resource, key=lambda each: each.scope):
            members = b"".join(each.member for each in of_scope)
            scopes.append(field_bytes(2, scope + members))
        found.append(field_bytes(1, resource + b"".join(scopes)))
    return b"".join(found)


def partial_success(signal: Signal, body: bytes, count: int) -> Verdict:
    """What an answer of success says of `count` records."""
    try:
        found: Any = signal.response.FromString(body)
    except DecodeError:
        # Receivers that answer JSON, text or nothing have taken the records all the same.
        return Taken()
    rejected = getattr(found.partial_success, signal.rejected)
    said = found.partial_success.error_message[:200]
    if rejected <= 0:
        return Taken()
    if rejected >= count:
        reason = f"the destination rejects it: {said}"
    else:
        reason = (
            f"the destination took all but {rejected} of the {count} records that were sent"
            f" together and does not say which: {said}"
        )
    fault = Fault("partial_success", reason)
    return Sorted(refused=tuple((place, fault) for place in range(count)))


def _bytes(kind: type[Message], fields: Json) -> bytes:
    message = kind()
    _fill(message, fields)
    return bytes(message.SerializeToString(deterministic=True))


def _fill(message: Any, fields: Json) -> None:
    """OTLP's JSON into a message; ids are hex there, which protobuf's own JSON reader refuses."""
    known = message.DESCRIPTOR.fields_by_camelcase_name
    for key, value in fields.items():
        field = known[key]
        if field.is_repeated:
            _extend(getattr(message, field.name), field, value)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            inner = getattr(message, field.name)
            inner.SetInParent()
            _fill(inner, value)
        else:
            setattr(message, field.name, _scalar(field, value))


def _extend(target: Any, field: FieldDescriptor, values: Any) -> None:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        for value in values:
            _fill(target.add(), value)
    else:
        target.extend(_scalar(field, value) for value in values)


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return base64.b64decode(value) if field.name == "bytes_value" else bytes.fromhex(value)
    if field.type in _WHOLE:
        return int(value)
    if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return float(value)
    return value


_WHOLE: Final = frozenset(
    {
        FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT32,
        FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64,
        FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_SFIXED32,
        FieldDescriptor.TYPE_SFIXED64, FieldDescriptor.TYPE_ENUM,
    }
)  # fmt: skip
