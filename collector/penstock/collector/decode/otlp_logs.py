"""OTLP log records from protobuf straight to record lines, where nothing about them is special.

Most log records have text as body and scalars as attributes. Their line is made of the protobuf
message itself, with the resource encoded once for all of them. Whatever else there is (nested
values, the context's fields, texts beyond a bound, a scope of Penstock's own) goes the way of
`otlp_records`, record by record; both ways make the same line of what both can read.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import orjson
from google.protobuf.message import Message

from penstock.collector.decode.otlp_messages import as_json
from penstock.collector.decode.otlp_records import map_element
from penstock.collector.decode.severity import severity
from penstock.specs.envelope import Context
from penstock.specs.limits import (
    ATTRIBUTES_MAX,
    KEY_CHARACTERS_MAX,
    SCOPE_CHARACTERS_MAX,
    STRING_CHARACTERS_MAX,
)
from penstock.specs.log_record import DEFAULT_SEVERITY, severity_text
from penstock.specs.otlp import RENAMED
from penstock.specs.resource import fit_and_count

Json = dict[str, Any]
_OWN: Final = "penstock"
_FIELDS: Final = frozenset(
    {*RENAMED.values(), *(str(field.alias) for field in Context.model_fields.values())}
)
"""Attributes that are fields of a record."""
_NO_TRACE: Final = bytes(16)
_NO_SPAN: Final = bytes(8)
_TEXTS: Final = {number: severity_text(number) for number in range(1, 25)}
_SEVERITY_CHARACTERS_MAX: Final = 32


def map_logs(
    request: Message,
    default: Mapping[str, Any],
    now_ns: int,
    lost: Callable[[int], None] = lambda _: None,
) -> Iterator[bytes | str]:
    """The lines of an ``ExportLogsServiceRequest``; yields and raises what `map_element` does."""
    elements: Any = request
    for element in elements.resource_logs:
        resource = _resource(element.resource, default)
        if resource is None:
            yield from map_element(as_json(element), default, now_ns, lost)
            continue
        for scope in element.scope_logs:
            own = scope.schema_url.startswith(_OWN)
            for record in scope.log_records:
                line = None if own else _line(record, scope.scope.name, resource, now_ns)
                if line is None:
                    yield from map_element(_alone(element, scope, record), default, now_ns)
                else:
                    yield line


def _resource(message: Any, default: Mapping[str, Any]) -> orjson.Fragment | None:
    """A plain resource, encoded; None when only the other way can read it, or tell what is lost."""
    attributes = _scalars(message.attributes)
    if attributes is None:
        return None
    try:
        resource, left_out = fit_and_count(attributes or default)
        return None if left_out else orjson.Fragment(orjson.dumps(resource))
    except (TypeError, ValueError):
        return None


def _line(record: Any, scope: str, resource: orjson.Fragment, now_ns: int) -> bytes | None:
    """A plain record's line; None when it is not plain."""
    attributes = _scalars(record.attributes)
    body = _text(record.body)
    if attributes is None or body is None or not _FIELDS.isdisjoint(attributes):
        return None
    observed_ns = record.observed_time_unix_nano or now_ns
    number, text = _severity(record)
    made: Json = {
        "schema": "log/1.0",
        "kind": "log",
        "time_unix_nano": record.time_unix_nano or observed_ns,
        "observed_time_unix_nano": observed_ns,
        "severity_number": number,
        "severity_text": text,
        "body": body,
        "attributes": attributes,
    }
    _add_rare(made, record)
    if scope:
        made["scope"] = scope[:SCOPE_CHARACTERS_MAX]
    made["resource"] = resource
    return orjson.dumps(made)


def _add_rare(made: Json, record: Any) -> None:
    """What protobuf leaves out when it is zero."""
    trace_id = record.trace_id
    if trace_id and trace_id != _NO_TRACE:
        made["trace_id"] = trace_id.hex()
        span_id = record.span_id
        if span_id and span_id != _NO_SPAN:
            made["span_id"] = span_id.hex()
    if flags := record.flags:
        made["trace_flags"] = flags & 0xFF
    if name := record.event_name:
        made["event_name"] = name
    if count := record.dropped_attributes_count:
        made["dropped_attributes_count"] = count


def _severity(record: Any) -> tuple[int, str]:
    number, text = record.severity_number, record.severity_text
    if not 1 <= number <= len(_TEXTS):
        named = severity(text or None)
        number = named[0] if named else DEFAULT_SEVERITY
    return number, text[:_SEVERITY_CHARACTERS_MAX] or _TEXTS[number]


def _text(value: Any) -> str | None:
    kind = value.WhichOneof("value")
    if kind == "string_value":
        text: str = value.string_value
        return text if len(text) <= STRING_CHARACTERS_MAX else None
    return "" if kind is None else None


def _scalars(pairs: Any) -> Json | None:
    """Attributes as they stand; None when one has no place there as it is."""
    if len(pairs) > ATTRIBUTES_MAX:
        return None
    found: Json = {}
    for pair in pairs:
        key, value = pair.key, pair.value
        kind = value.WhichOneof("value")
        if kind == "string_value":
            scalar: Any = value.string_value
            if len(scalar) > STRING_CHARACTERS_MAX:
                return None
        elif kind == "int_value":
            scalar = value.int_value
        elif kind == "bool_value":
            scalar = value.bool_value
        elif kind == "double_value" and math.isfinite(value.double_value):
            scalar = value.double_value
        else:
            return None
        if not 0 < len(key) <= KEY_CHARACTERS_MAX or key.startswith(_OWN):
            return None
        found[key] = scalar
    return found


def _alone(element: Any, scope: Any, record: Any) -> Json:
    """One record as an element that holds no other."""
    parts = {"schemaUrl": scope.schema_url, "scope": as_json(scope.scope)}
    return {
        "resource": as_json(element.resource),
        "scopeLogs": [{**parts, "logRecords": [as_json(record)]}],
    }
