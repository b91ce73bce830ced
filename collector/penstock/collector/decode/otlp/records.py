"""OTLP's objects as record lines: the spec's own mapping, then made to fit the spec.

`penstock.specs.formats.otlp` says which field is which. What foreign senders do besides is adapted
where the spec has room for it: nested attributes are laid out flat, other bodies than text become
JSON, a missing severity is INFO, a missing unit ``1``, what is beyond a bound of the spec is cut
and counted as dropped. Fields that protobuf leaves out because they are zero are there again. A
summary, which the spec has no type for, becomes ``<name>.count`` and ``<name>.sum``, cumulative
sums, and a gauge ``<name>`` with the attribute ``quantile``. The rest is for the validator to
refuse.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import orjson

from penstock.collector.decode.attributes import flatten
from penstock.collector.decode.severity import severity
from penstock.specs.errors import RefusedRecordError
from penstock.specs.formats.otlp import Unread, read_otlp
from penstock.specs.limits import (
    EXEMPLARS_MAX,
    LINKS_MAX,
    NAME_CHARACTERS_MAX,
    SCOPE_CHARACTERS_MAX,
    SPAN_EVENTS_MAX,
    STRING_CHARACTERS_MAX,
    TRACE_STATE_CHARACTERS_MAX,
)
from penstock.specs.models.envelope import ZERO_SPAN, ZERO_TRACE, Context
from penstock.specs.models.log import DEFAULT_SEVERITY, severity_text
from penstock.specs.models.metric import NO_RECORDED_VALUE
from penstock.specs.models.resource import fit_and_count

Json = dict[str, Any]
Note = Callable[[str, int], None]
"""Counts what no record can say: what is cut and has no place, and levels that are unknown."""
_CUMULATIVE: Final = 2
_UNFIT: Final = (
    ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError,
)  # fmt: skip
_SEVERITY_CHARACTERS_MAX: Final = 32
_UNIT_CHARACTERS_MAX: Final = 63
_TRACE_FLAGS_MAX: Final = 0xFF
_DROPPED_COUNT: Final = re.compile(r"[0-9]{1,10}")
_TEXTS_MAX: Final = {
    "scope": SCOPE_CHARACTERS_MAX,
    "severity_text": _SEVERITY_CHARACTERS_MAX,
    "status_message": STRING_CHARACTERS_MAX,
    "trace_state": TRACE_STATE_CHARACTERS_MAX,
    "unit": _UNIT_CHARACTERS_MAX,
}
_CONTEXT_CHARACTERS_MAX: Final = {
    str(info.alias): next(rule.max_length for rule in info.metadata if hasattr(rule, "max_length"))
    for info in Context.model_fields.values()
}


def map_element(
    element: Json,
    default: Mapping[str, Any],
    now_ns: int,
    note: Note = lambda *_: None,
) -> Iterator[bytes | str]:
    """The lines of one resource's log records, spans or data points.

    Args:
        element: An element of ``resourceLogs``, ``resourceSpans`` or ``resourceMetrics``.
        default: The resource when the element has none.
        now_ns: Arrival time.
        note: Counts facts that records have no field for, attributes of the resource that are
            beyond its bounds, though the resource says so itself, exemplars that are beyond a
            record's, texts that are cut, and records whose level is unknown.

    Yields:
        A line, or the JSON text of what cannot be read.

    Raises:
        RefusedRecordError: It is no such element.
    """
    resource: Json | None = None
    for what, count in without_place(element).items():
        note(what, count)
    for record in read_otlp(_without_summaries(element)):
        if isinstance(record, Unread):
            yield _raw(record.member)
            continue
        if resource is None:
            resource, left_out = fit_and_count(record["resource"] or default)
            if left_out:
                note("resource_attributes_dropped", left_out)
        record["resource"] = resource
        exemplars = len(record.get("exemplars", ()))
        lost = Counter(texts_cut=_long_texts(record))
        said = (record.get("severity_number"), record.get("severity_text"))
        try:
            line = _dump(_fit(record, now_ns))
        except _UNFIT:
            yield _raw(record)
        else:
            lost["exemplars_dropped"] = exemplars - len(record.get("exemplars", ()))
            lost["levels_unknown"] = record["kind"] == "log" and says_unknown_level(*said)
            for what, count in (+lost).items():
                note(what, count)
            yield line


def without_place(element: Json) -> Counter[str]:
    """Count the facts of an element that its records have no field for, by the name of the note."""
    found: Counter[str] = Counter()
    if isinstance(resource := element.get("resource"), dict):
        _count_of_holder(resource, found)
        if refs := resource.get("entityRefs"):
            found["entity_refs_dropped"] += len(refs) if isinstance(refs, list) else 1
    for outer, inner, count in _COUNTED:
        for scope in _objects(element.get(outer)):
            if isinstance(about := scope.get("scope"), dict):
                _count_of_holder(about, found)
            for member in _objects(scope.get(inner)):
                count(member, found)
    return found


def _count_of_span(span: Json, found: Counter[str]) -> None:
    _count_flags(span, found)
    if links := span.get("links"):
        for link in _objects(links):
            _count_of_holder(link, found)
            if link.get("traceState"):
                found["link_trace_states_dropped"] += 1
            if link.get("flags"):
                found["link_flags_dropped"] += 1
    if events := span.get("events"):
        for event in _objects(events):
            _count_of_holder(event, found)


def _count_of_metric(metric: Json, found: Counter[str]) -> None:
    if metric.get("description"):
        found["metric_descriptions_dropped"] += 1
    if metric.get("metadata"):
        found["metric_metadata_dropped"] += 1


def _count_of_holder(holder: Json, found: Counter[str]) -> None:
    """Add the attributes that a sender dropped of what is no record itself."""
    if count := holder.get("droppedAttributesCount"):
        known = _DROPPED_COUNT.fullmatch(str(count))
        found["attributes_dropped_by_sender"] += int(known[0]) if known else 1


def _count_flags(record: Json, found: Counter[str]) -> None:
    """Count flags of which a record keeps the lower eight bits alone."""
    flags = record.get("flags")
    if isinstance(flags, int) and flags > _TRACE_FLAGS_MAX:
        found["flag_bits_dropped"] += 1


def _objects(value: Any) -> Iterator[Json]:
    """The objects of a list; nothing of what is none, which is refused elsewhere."""
    if isinstance(value, list):
        yield from (one for one in value if isinstance(one, dict))


_COUNTED: Final = (
    ("scopeLogs", "logRecords", _count_flags),
    ("scopeSpans", "spans", _count_of_span),
    ("scopeMetrics", "metrics", _count_of_metric),
)


def _long_texts(record: Json) -> int:
    """Count the texts that are cut, or left out as a `trace_state` is, without the record's saying.

    A body that is cut says so, and attributes that are cut are counted in the record.
    """
    texts = [(record.get(key), longest) for key, longest in _TEXTS_MAX.items()]
    context = record.get("context") or {}
    texts += [(context.get(key), longest) for key, longest in _CONTEXT_CHARACTERS_MAX.items()]
    if record["kind"] == "span":
        named = [record, *(record.get("events") or ())]
        texts += [(one.get("name"), NAME_CHARACTERS_MAX) for one in named]
    return sum(text.__class__ is str and len(text) > longest for text, longest in texts)


def _fit(record: Json, now_ns: int) -> Json:
    record.setdefault("observed_time_unix_nano", now_ns)
    attributes, left_out = flatten(record.get("attributes") or {})
    record["attributes"] = attributes
    _add_dropped(record, "dropped_attributes_count", left_out)
    _fit_ids(record)
    if "context" in record:
        record["context"] = _fit_context(record["context"])
    if "scope" in record:
        record["scope"] = record["scope"][:SCOPE_CHARACTERS_MAX]
    _FITS.get(record["kind"], _fit_log)(record, now_ns)
    return record


def _fit_ids(record: Json) -> None:
    for key, zero in (
        ("trace_id", ZERO_TRACE),
        ("span_id", ZERO_SPAN),
        ("parent_span_id", ZERO_SPAN),
    ):
        if key in record:
            record[key] = record[key].lower()
            if record[key] in ("", zero):
                del record[key]
    if "trace_id" not in record:
        record.pop("span_id", None)
    if "trace_flags" in record:
        record["trace_flags"] &= _TRACE_FLAGS_MAX  # above: whether the parent is remote


def _fit_context(context: Json) -> Json:
    return {
        key: (value if isinstance(value, str) else str(value))[: _CONTEXT_CHARACTERS_MAX[key]]
        for key, value in context.items()
        if value is not None
    }


def _fit_log(record: Json, now_ns: int) -> None:
    time_ns = record.get("time_unix_nano") or record["observed_time_unix_nano"] or now_ns
    record["time_unix_nano"] = time_ns
    record["observed_time_unix_nano"] = record["observed_time_unix_nano"] or now_ns
    if record["kind"] == "log":
        _fit_severity(record)
    body = record.get("body")
    if not isinstance(body, str):
        body = "" if body is None else _dump(body).decode()
    record["body"] = body[:STRING_CHARACTERS_MAX]
    if len(body) > STRING_CHARACTERS_MAX:
        record["attributes"]["log.record.truncated"] = True
    if not record.get("event_name", "-"):
        del record["event_name"]


def _fit_severity(record: Json) -> None:
    number, text = record.get("severity_number"), record.get("severity_text")
    if not isinstance(number, int) or not 1 <= number <= 24:
        named = severity(text)
        number = named[0] if named else DEFAULT_SEVERITY
    record["severity_number"] = number
    record["severity_text"] = (
        str(text)[:_SEVERITY_CHARACTERS_MAX] if text else severity_text(number)
    )


def says_unknown_level(number: Any, text: Any) -> bool:
    """Return whether a record has a level that is unknown, and so becomes INFO."""
    if isinstance(number, int) and 1 <= number <= 24:
        return False
    return bool(number or text) and severity(text) is None


def _fit_span(record: Json, _: int) -> None:
    record["name"] = (record.get("name") or "unnamed")[:NAME_CHARACTERS_MAX]
    record["status_message"] = (record.get("status_message") or "")[:STRING_CHARACTERS_MAX]
    for key, longest in (("trace_state", TRACE_STATE_CHARACTERS_MAX), ("status_message", 1 << 20)):
        if not 0 < len(record.get(key) or "") <= longest:
            record.pop(key, None)
    for key, most in (("links", LINKS_MAX), ("events", SPAN_EVENTS_MAX)):
        members = record.get(key) or []
        _add_dropped(record, f"dropped_{key}_count", len(members) - most)
        record[key] = [_fit_member(member, record) for member in members[:most]]
    for event in record["events"]:
        event["name"] = (event.get("name") or "unnamed")[:NAME_CHARACTERS_MAX]
        event.setdefault("time_unix_nano", record.get("time_unix_nano", 0))


def _fit_member(member: Json, record: Json) -> Json:
    """A span's link or event, or an exemplar; its record counts what is dropped of it."""
    _fit_ids(member)
    if "attributes" in member:
        member["attributes"], left_out = flatten(member["attributes"])
        _add_dropped(record, "dropped_attributes_count", left_out)
    return member


def _fit_metric(record: Json, now_ns: int) -> None:
    time_ns = record["time_unix_nano"] = record.get("time_unix_nano") or now_ns
    record["unit"] = (record.get("unit") or "1")[:_UNIT_CHARACTERS_MAX]
    kind = record["metric_type"]
    if kind != "gauge":
        start_ns = record.get("start_time_unix_nano") or time_ns
        record["start_time_unix_nano"] = min(start_ns, time_ns)
    if kind == "sum":
        record.setdefault("is_monotonic", False)
    elif kind != "gauge":
        _fit_distribution(record)
    if record.get("flags", 0) & NO_RECORDED_VALUE:
        record.pop("value", None)
    exemplars = [_fit_member(one, record) for one in record.pop("exemplars", ())]
    if measured := [one for one in exemplars if "value" in one][:EXEMPLARS_MAX]:
        record["exemplars"] = [{"time_unix_nano": time_ns, **one} for one in measured]


def _fit_distribution(record: Json) -> None:
    record.setdefault("count", 0)
    if not record["count"]:  # nothing was measured; SDKs have infinities then
        record.pop("min", None)
        record.pop("max", None)
    if record["metric_type"] == "histogram":
        record.setdefault("explicit_bounds", [])
        record.setdefault("bucket_counts", [record["count"]])
        record["explicit_bounds"] = [float(bound) for bound in record["explicit_bounds"]]
        return
    record.setdefault("scale", 0)
    record.setdefault("zero_count", 0)
    for key in ("positive", "negative"):
        if key in record:
            record[key] = {"offset": 0, "bucket_counts": [], **record[key]}


def _add_dropped(record: Json, key: str, more: int) -> None:
    if count := int(record.get(key) or 0) + max(0, more):
        record[key] = count
    else:
        record.pop(key, None)


_FITS: Final = {"span": _fit_span, "metric": _fit_metric}


def _without_summaries(element: Json) -> Json:
    """The element with every summary taken apart; as it is when it has none."""
    if "scopeMetrics" not in element:
        return element
    try:
        scopes = [
            {
                **scope,
                "metrics": [one for metric in scope.get("metrics", ()) for one in _simple(metric)],
            }
            for scope in element["scopeMetrics"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise RefusedRecordError("not_otlp") from None
    return {**element, "scopeMetrics": scopes}


def _simple(metric: Json) -> Iterator[Json]:
    if "summary" not in metric:
        yield metric
        return
    points = metric["summary"].get("dataPoints", ())
    plain = {"name": metric["name"], "unit": metric.get("unit", "")}
    for field, key, unit in (("count", "asInt", "1"), ("sum", "asDouble", plain["unit"])):
        total = {
            "isMonotonic": field == "count",  # a sum falls when a negative value is measured
            "aggregationTemporality": _CUMULATIVE,
            "dataPoints": [{**_frame(point), key: point.get(field, 0)} for point in points],
        }
        yield {"name": f"{plain['name']}.{field}", "unit": unit, "sum": total}
    quantiles = [
        {**_frame(point, quantile.get("quantile", 0)), "asDouble": quantile.get("value", 0)}
        for point in points
        for quantile in point.get("quantileValues", ())
    ]
    yield {**plain, "gauge": {"dataPoints": quantiles}}


def _frame(point: Json, quantile: float | None = None) -> Json:
    kept = ("timeUnixNano", "startTimeUnixNano", "attributes", "flags")
    frame = {key: point[key] for key in kept if key in point}
    if quantile is not None:
        own = {"key": "quantile", "value": {"doubleValue": quantile}}
        frame["attributes"] = [*frame.get("attributes", ()), own]
        frame.pop("startTimeUnixNano", None)
    return frame


def _raw(member: Json) -> str:
    """Return a member that could not be read, as text.

    Raises:
        RefusedRecordError: It nests too deep even for that.
    """
    try:
        return _dump(member).decode()
    except (orjson.JSONEncodeError, RecursionError):
        raise RefusedRecordError("too_deep") from None


def _dump(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
