"""Zipkin's spans (v2, JSON) as span records.

From Zipkin's API and "Zipkin to OpenTelemetry" in OpenTelemetry's specification: times are
microseconds, ids hex; a trace id of 64 bits has zeros before it. Annotations become events. The tag
``error`` makes the status ERROR, with its value as message, and ``otel.status_code`` says a status
itself. Endpoints become the service and ``network.*``, ``debug`` and ``shared`` attributes.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from penstock.collector.decode.otlp.records import map_element
from penstock.collector.decode.senders.record_maker import RecordMaker, read_json, text_or_empty
from penstock.collector.decode.shapes import Made
from penstock.collector.errors import RemoteProtocolError
from penstock.specs.errors import RefusedRecordError
from penstock.specs.limits import INT64_MAX

Json = dict[str, Any]
_TRACE_ID: Final = re.compile(r"(?:[0-9A-Fa-f]{16}){1,2}")
_SPAN_ID: Final = re.compile(r"[0-9A-Fa-f]{1,16}")
_KINDS: Final = {"SERVER": 2, "CLIENT": 3, "PRODUCER": 4, "CONSUMER": 5}
_STATUSES: Final = {"OK": 1, "ERROR": 2}
_SPAN_KEYS: Final = frozenset(
    {"traceId", "id", "parentId", "name", "kind", "timestamp", "duration", "localEndpoint",
     "remoteEndpoint", "annotations", "tags", "debug", "shared"}
)  # fmt: skip
_MICROSECONDS_MAX: Final = INT64_MAX // 1000
_SCOPE: Final = (
    ("name", ("otel.scope.name", "otel.library.name")),
    ("version", ("otel.scope.version", "otel.library.version")),
)


def span_lines(body: bytes, service: str, records: RecordMaker) -> Iterator[Made]:
    """The records of a list of spans.

    Args:
        body: The request.
        service: The service of spans whose local endpoint names none.
        records: Makes them.

    Raises:
        RemoteProtocolError: It is no such list.
    """
    found = read_json(body)
    if not isinstance(found, list):
        raise RemoteProtocolError("Cannot decode spans: a list is expected")
    for number, span in enumerate(found):
        try:
            element, resource = _element(span, service, records)
            if not span.keys() <= _SPAN_KEYS:
                records.notes["fields_unknown"] += len(span.keys() - _SPAN_KEYS)
            for made in map_element(element, resource, records.now_ns, _counting(records)):
                assert isinstance(made, bytes), "its fields are of OTLP's types"
                yield made, None
        except (KeyError, TypeError, ValueError, AttributeError, RefusedRecordError) as error:
            message = f"Cannot decode spans: span {number}: {type(error).__name__}: {error}"
            raise RemoteProtocolError(message[:200]) from None


def _counting(records: RecordMaker) -> Any:
    def note(what: str, times: int) -> None:
        records.notes[what] += times

    return note


def _element(span: Json, service: str, records: RecordMaker) -> tuple[Json, Mapping[str, Any]]:
    """A span as OTLP's element that holds no other, and its resource.

    Raises:
        ValueError: An id is none.
        TypeError: A part is of another type; so do KeyError and AttributeError say.
    """
    tags: dict[str, str] = {
        key: value if isinstance(value, str) else str(value)
        for key, value in (span.get("tags") or {}).items()
    }
    scope = {}
    for name, keys in _SCOPE:
        values = [tags.pop(key) for key in keys if key in tags]
        if values:
            scope[name] = values[0]
    kind = span.get("kind") or ""
    if kind and kind not in _KINDS:
        records.notes["kinds_unknown"] += 1
    local, remote = span.get("localEndpoint") or {}, span.get("remoteEndpoint") or {}
    start_ns, end_ns = _times(span, records)
    made: Json = {
        "traceId": _id(span["traceId"], _TRACE_ID, 32),
        "spanId": _id(span["id"], _SPAN_ID, 16),
        "name": text_or_empty(span.get("name")),
        "kind": _KINDS.get(kind, 1),
        "startTimeUnixNano": start_ns,
        "endTimeUnixNano": end_ns,
        "status": _status(tags, records),
        "events": [_event(one, start_ns, records) for one in span.get("annotations") or ()],
    }
    if span.get("parentId"):
        made["parentSpanId"] = _id(span["parentId"], _SPAN_ID, 16)
    attributes: Json = {**tags, **_address(local, "local"), **_address(remote, "peer")}
    both = sum(bool(one.get("ipv4") and one.get("ipv6")) for one in (local, remote))
    if both:
        records.notes["addresses_dropped"] += both
    if remote.get("serviceName"):
        attributes["peer.service"] = text_or_empty(remote["serviceName"])
    attributes |= {f"zipkin.{key}": True for key in ("debug", "shared") if span.get(key) is True}
    made["attributes"] = [{"key": key, "value": _value(it)} for key, it in attributes.items()]
    named = text_or_empty(local.get("serviceName"))
    return {"scopeSpans": [{"scope": scope, "spans": [made]}]}, records.resource_of(
        named or service
    )


def _id(value: str, pattern: re.Pattern[str], digits: int) -> str:
    if not pattern.fullmatch(value) or not value.strip("0"):
        message = f"the id {value[:40]!r} is none"
        raise ValueError(message)
    return value.lower().zfill(digits)


def _times(span: Json, records: RecordMaker) -> tuple[int, int]:
    """A span's start and end; of one without a time both are when it was received."""
    start_us, duration_us = span.get("timestamp"), span.get("duration") or 0
    if type(start_us) is not int or not 0 < start_us <= _MICROSECONDS_MAX:
        records.notes["timestamps_unreadable"] += 1
        return records.now_ns, records.now_ns
    if type(duration_us) is not int or not 0 <= duration_us <= _MICROSECONDS_MAX - start_us:
        records.notes["durations_unreadable"] += 1
        duration_us = 0
    return start_us * 1000, (start_us + duration_us) * 1000


def _status(tags: dict[str, str], records: RecordMaker) -> Json:
    """The status that tags say, which are taken out."""
    named = tags.pop("otel.status_code", "")
    code = _STATUSES.get(named, 0)
    if named and named != "UNSET" and not code:
        records.notes["statuses_unknown"] += 1
    description = tags.pop("otel.status_description", "")
    error = tags.pop("error", None)
    if error is not None and error.lower() != "false":
        code, description = 2, description or ("" if error.lower() == "true" else error)
    return {"code": code, "message": description}


def _event(annotation: Json, start_ns: int, records: RecordMaker) -> Json:
    time_us = annotation["timestamp"]
    if type(time_us) is not int or not 0 < time_us <= _MICROSECONDS_MAX:
        records.notes["timestamps_unreadable"] += 1
        time_ns = start_ns
    else:
        time_ns = time_us * 1000
    return {"name": text_or_empty(annotation["value"]), "timeUnixNano": time_ns}


def _address(endpoint: Json, which: str) -> Json:
    """An endpoint's address and port as attributes."""
    found: Json = {}
    if address := text_or_empty(endpoint.get("ipv4") or endpoint.get("ipv6")):
        found[f"network.{which}.address"] = address
    if type(endpoint.get("port")) is int:
        found[f"network.{which}.port"] = endpoint["port"]
    return found


def _value(value: str | int) -> Json:
    if value is True:
        return {"boolValue": True}
    return {"intValue": value} if isinstance(value, int) else {"stringValue": value}
