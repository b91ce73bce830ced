"""OTLP's messages from its JSON form, and requests put together of them.

An element (`ResourceLogs` and its like) is kept as the bytes of its resource, of its scope and of
its one member, so that elements with the same resource and scope are joined without decoding. The
three signals number these fields alike: a request's elements, an element's resource and scopes, a
scope's own and its members are 1, 1 and 2, 1 and 2; the scope's schema URL is 3.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from penstock.router.columns.json_objects import read_json, write_json
from penstock.router.delivery.result import DeliveryResult, Fault, PartialFailure, Success
from penstock.router.sinks.http.encode import cached
from penstock.router.sinks.http.protobuf import field_bytes, field_size
from penstock.specs.formats.otlp import resource_to_otlp

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Signal:
    """One of the three.

    Attributes:
        name: Last part of the path of OTLP over HTTP.
        scopes: The key of an element's scopes in JSON.
        members: The key of a scope's members in JSON.
        member: The members' message.
        response: Message that answers an export.
        rejected: The field of a partial success that counts.
        method: Method of gRPC.
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
_SIGNAL_OF: Final = {signal.scopes: signal for signal in SIGNALS.values()}


class Element(NamedTuple):
    """One record: the bytes of its resource (field 1 included), of its scope, of itself."""

    resource: bytes
    scope: bytes
    member: bytes


def encode_element(element: Json, resource: Json | None = None) -> tuple[str, Element, int]:
    """An element of one member: its signal, its parts, and its size alone in a request.

    It is taken apart; its own resource does not matter.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: It is none.
    """
    signal = next(filter(None, map(_SIGNAL_OF.get, element)))
    (scope,) = element[signal.scopes]
    (member,) = scope.pop(signal.members)
    made = Element(
        _resource_bytes(b"{}" if resource is None else write_json(resource)),
        _scope_bytes(write_json(scope)),
        field_bytes(2, _bytes(signal.member, member)),
    )
    of_scope = field_size(len(made.scope) + len(made.member))
    return signal.name, made, field_size(len(made.resource) + of_scope)


@cached
def _resource_bytes(resource: bytes) -> bytes:
    """Encode a record's resource in JSON; cached, because the records of one service share it."""
    return field_bytes(1, _bytes(Resource, resource_to_otlp(read_json(resource))))


@cached
def _scope_bytes(about: bytes) -> bytes:
    """Encode the parts of a scope that its members share."""
    scope = read_json(about)
    own, url = _bytes(InstrumentationScope, scope.get("scope", {})), scope.get("schemaUrl", "")
    return field_bytes(1, own) + (field_bytes(3, url.encode()) if url else b"")


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


def partial_success(signal: Signal, body: bytes, count: int) -> DeliveryResult:
    """Return the result of an answer of success to `count` records."""
    try:
        found: Any = signal.response.FromString(body)
    except DecodeError:
        # Receivers that answer JSON, text or nothing have taken the records all the same.
        return Success()
    rejected = getattr(found.partial_success, signal.rejected)
    said = found.partial_success.error_message[:200]
    if rejected <= 0:
        return Success()
    if rejected >= count:
        reason = f"the destination rejects it: {said}"
    else:
        reason = (
            f"the destination took all but {rejected} of the {count} records that were sent"
            f" together and does not say which: {said}"
        )
    fault = Fault("partial_success", reason)
    return PartialFailure(refused=tuple((index, fault) for index in range(count)))


def _bytes(kind: type[Message], fields: Json) -> bytes:
    message = kind(**_reader(kind.DESCRIPTOR)(fields))
    return message.SerializeToString(deterministic=True)


@cache
def _reader(kind: Descriptor) -> Callable[[Json], Json]:
    """Return a function from OTLP's JSON to a message's keywords.

    Ids are hex there, which protobuf's own JSON reader refuses. A message's fields are looked up
    when the first one is read, for some hold messages of the same kind.
    """
    known: dict[str, tuple[str, Callable[[Any], Any]]] = {}

    def read(fields: Json) -> Json:
        if not known:
            known.update({it.camelcase_name: (it.name, _converter(it)) for it in kind.fields})
        found = {}
        for key, value in fields.items():
            if value is None:
                raise TypeError(f"{key} is null")  # protobuf would leave it out
            name, convert = known[key]
            found[name] = convert(value)
        return found

    return read


def _converter(field: FieldDescriptor) -> Callable[[Any], Any]:
    convert = _READERS.get(field.type, _same)
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        convert = _reader(field.message_type)
    elif field.name == "bytes_value":
        convert = base64.b64decode  # the only bytes that are no id
    if field.is_repeated:
        return lambda values: list(map(convert, values))  # a list display takes stack as well
    return convert


def _same(value: Any) -> Any:
    return value


_READERS: Final[Mapping[int, Callable[[Any], Any]]] = {
    FieldDescriptor.TYPE_BYTES: bytes.fromhex,
    FieldDescriptor.TYPE_DOUBLE: float,
    FieldDescriptor.TYPE_FLOAT: float,
    **dict.fromkeys(
        (
            FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT32,
            FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64,
            FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_FIXED64,
            FieldDescriptor.TYPE_SFIXED32, FieldDescriptor.TYPE_SFIXED64, FieldDescriptor.TYPE_ENUM,
        ),
        int,
    ),
}  # fmt: skip
