"""Records as OTLP/JSON and back: tables that name the fields, and one walk over them.

OTLP's JSON mapping is used (opentelemetry-proto 1.x): keys in lower camel case, 64-bit integers as
decimal text, ids in hex, enumerations as numbers. What OTLP has no field for becomes an attribute:
the context's fields under their own names, ``record_id`` as ``log.record.uid``, all else as
``penstock.<field>``. The spec is the scope's schema URL, ``penstock:log/1.0``.

Nothing is lost on the way there and back, except that an attribute that has such a name already
comes back as the field it names.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.specs.errors import RefusedRecordError
from penstock.specs.models.envelope import Context
from penstock.specs.models.kinds import BASE_MODELS
from penstock.specs.models.log import severity_text
from penstock.specs.models.scalars import not_finite_word

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Codec:
    """The two functions that write a value in OTLP and read it again."""

    to: Callable[[Any], Any]
    back: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Mapped:
    """A record's field, and where it lies in OTLP's object: two names deep at most."""

    key: str
    path: tuple[str, ...]
    codec: Codec


_PLAIN_VALUES: Final = {str: "stringValue", bool: "boolValue", float: "doubleValue"}


def _any_to(value: Any) -> Json:
    """An AnyValue."""
    name = _PLAIN_VALUES.get(type(value))
    if name is not None:
        return {name: value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_any_to(item) for item in value]}}
    return {} if value is None else {"kvlistValue": {"values": _pairs_to(value)}}


def _any_back(value: Json) -> Any:
    """Return the value of an AnyValue; bytes stay base64 text."""
    for name, read in _ANY_BACK.items():
        if name in value:
            return read(value[name])
    return None


def _double_back(value: Any) -> Any:
    return not_finite_word(float(value))


def _pairs_to(fields: Mapping[str, Any]) -> list[Json]:
    return [{"key": key, "value": _any_to(value)} for key, value in fields.items()]


def _pairs_back(pairs: Any) -> Json:
    return {pair["key"]: _any_back(pair.get("value", {})) for pair in pairs}


def _same(value: Any) -> Any:
    return value


def _enumeration(prefix: str, *names: str, first: int, unspecified: str | None = None) -> Codec:
    """Written as a number; also read as protobuf's own JSON mapping writes it, by its full name."""
    numbers = {name: number for number, name in enumerate(names, first)}
    texts: dict[Any, str] = {number: name for name, number in numbers.items()}
    texts |= {f"{prefix}_{name.upper()}": name for name in names}
    if unspecified is not None:
        texts |= dict.fromkeys((0, f"{prefix}_UNSPECIFIED"), unspecified)
    return Codec(numbers.__getitem__, lambda given: texts[_whole(given)])


def _whole(given: Any) -> Any:
    """A number that may be written as text; another text as it is."""
    return int(given) if isinstance(given, str) and given.isdecimal() else given


def _objects(table: tuple[Mapped, ...]) -> Codec:
    return Codec(
        lambda members: [_write(member, table) for member in members],
        lambda members: [_read(member, table) for member in members],
    )


_ANY_BACK: Final[dict[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("stringValue", "boolValue", "bytesValue"), _same),
    "intValue": int,
    "doubleValue": float,
    "arrayValue": lambda found: [_any_back(item) for item in found.get("values", ())],
    "kvlistValue": lambda found: _pairs_back(found.get("values", ())),
}
PLAIN: Final = Codec(_same, _same)
INT64: Final = Codec(str, int)
INT64S: Final = Codec(lambda values: [str(v) for v in values], lambda texts: [*map(int, texts)])
ANY: Final = Codec(_any_to, _any_back)
ATTRIBUTES: Final = Codec(_pairs_to, _pairs_back)
SPAN_KIND: Final = _enumeration(
    "SPAN_KIND", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER",
    first=1, unspecified="INTERNAL",
)  # fmt: skip
STATUS_CODE: Final = _enumeration("STATUS_CODE", "UNSET", "OK", "ERROR", first=0)
TEMPORALITY: Final = _enumeration("AGGREGATION_TEMPORALITY", "delta", "cumulative", first=1)
_SEVERITIES: Final = {f"SEVERITY_NUMBER_{severity_text(number)}": number for number in range(1, 25)}
SEVERITY: Final = Codec(_same, lambda given: _SEVERITIES.get(given) or _whole(given))
NUMBER: Final = Codec(
    lambda value: {"asInt": str(value)} if isinstance(value, int) else {"asDouble": value},
    lambda found: int(found["asInt"]) if "asInt" in found else _double_back(found["asDouble"]),
)
"""An integer or a float; its two keys lie in the object itself, so its path is empty."""
DOUBLE: Final = Codec(_same, _double_back)
"""A float; NaN and the infinities are the same words in OTLP's JSON and in records."""


def _table(**fields: tuple[str, Codec]) -> tuple[Mapped, ...]:
    return tuple(
        Mapped(key, tuple(path.split(".")) if path else (), codec)
        for key, (path, codec) in fields.items()
    )


_TRACE: Final = {"trace_id": ("traceId", PLAIN), "span_id": ("spanId", PLAIN)}
_OWN: Final = {"attributes": ("attributes", ATTRIBUTES)}
LINK: Final = _table(**_TRACE, **_OWN)
SPAN_EVENT: Final = _table(name=("name", PLAIN), time_unix_nano=("timeUnixNano", INT64), **_OWN)
EXEMPLAR: Final = _table(
    time_unix_nano=("timeUnixNano", INT64), value=("", NUMBER), **_TRACE,
    attributes=("filteredAttributes", ATTRIBUTES),
)  # fmt: skip
_BUCKETS: Final = _table(offset=("offset", PLAIN), bucket_counts=("bucketCounts", INT64S))
BUCKETS: Final = Codec(lambda value: _write(value, _BUCKETS), lambda found: _read(found, _BUCKETS))

LOG: Final = _table(
    time_unix_nano=("timeUnixNano", INT64),
    observed_time_unix_nano=("observedTimeUnixNano", INT64),
    severity_number=("severityNumber", SEVERITY),
    severity_text=("severityText", PLAIN),
    body=("body", ANY),
    event_name=("eventName", PLAIN),
    trace_flags=("flags", PLAIN),
    dropped_attributes_count=("droppedAttributesCount", PLAIN),
    **_TRACE,
)
"""Log records; events and audit records, too, whose other fields are attributes."""

SPAN: Final = _table(
    time_unix_nano=("startTimeUnixNano", INT64),
    end_time_unix_nano=("endTimeUnixNano", INT64),
    parent_span_id=("parentSpanId", PLAIN),
    name=("name", PLAIN),
    span_kind=("kind", SPAN_KIND),
    status_code=("status.code", STATUS_CODE),
    status_message=("status.message", PLAIN),
    trace_state=("traceState", PLAIN),
    trace_flags=("flags", PLAIN),
    links=("links", _objects(LINK)),
    events=("events", _objects(SPAN_EVENT)),
    dropped_attributes_count=("droppedAttributesCount", PLAIN),
    dropped_links_count=("droppedLinksCount", PLAIN),
    dropped_events_count=("droppedEventsCount", PLAIN),
    **_TRACE,
)

METRIC: Final = _table(name=("name", PLAIN), unit=("unit", PLAIN))
METRIC_DATA: Final = _table(
    temporality=("aggregationTemporality", TEMPORALITY), is_monotonic=("isMonotonic", PLAIN)
)
METRIC_TYPES: Final = {
    "gauge": "gauge",
    "sum": "sum",
    "histogram": "histogram",
    "exponential_histogram": "exponentialHistogram",
}
POINT: Final = _table(
    time_unix_nano=("timeUnixNano", INT64),
    start_time_unix_nano=("startTimeUnixNano", INT64),
    value=("", NUMBER),
    count=("count", INT64),
    sum=("sum", DOUBLE),
    min=("min", DOUBLE),
    max=("max", DOUBLE),
    bucket_counts=("bucketCounts", INT64S),
    explicit_bounds=("explicitBounds", PLAIN),
    scale=("scale", PLAIN),
    zero_count=("zeroCount", INT64),
    zero_threshold=("zeroThreshold", PLAIN),
    positive=("positive", BUCKETS),
    negative=("negative", BUCKETS),
    exemplars=("exemplars", _objects(EXEMPLAR)),
    flags=("flags", PLAIN),
)

_SCOPE: Final = "otel.scope."
SCOPE_VERSION: Final = f"{_SCOPE}version"
SCOPE_SCHEMA: Final = f"{_SCOPE}schema_url"
RESOURCE_SCHEMA: Final = "otel.resource.schema_url"
_PREFIX: Final = "penstock."
_SCHEMA_PREFIX: Final = "penstock:"
RENAMED: Final = {"record_id": "log.record.uid"}
"""Fields that are attributes under another name than ``penstock.<field>``."""
_FIELDS_OF: Final = {attribute: key for key, attribute in RENAMED.items()}
_CONTEXT: Final = frozenset(str(field.alias) for field in Context.model_fields.values())
_APART: Final = frozenset({"schema", "kind", "scope", "resource", "context", "attributes"})
_OF_LOG: Final = _APART.union(row.key for row in LOG)
_OF_SPAN: Final = _APART.union(row.key for row in SPAN)
_OF_METRIC: Final = _APART.union(
    {"metric_type"}, (row.key for row in (*METRIC, *METRIC_DATA, *POINT))
)
"""Fields that have their own place; all others are attributes."""


def to_otlp(record: Json) -> Json:
    """A record's JSON object as one element of OTLP's ``resourceLogs``, ``resourceSpans`` or
    ``resourceMetrics``, whichever its kind belongs to.
    """  # noqa: D205 - the sentence is longer than a line
    if None in record.values():  # a field that is null says nothing
        record = {key: value for key, value in record.items() if value is not None}
    kind = record["kind"]
    scope: Json = {"schemaUrl": _SCHEMA_PREFIX + record["schema"]}
    if about := _scope_to(record):
        scope["scope"] = about
    if kind == "span":
        outer, inner, member = "scopeSpans", "spans", _with_attributes(record, SPAN, _OF_SPAN)
    elif kind == "metric":
        outer, inner, member = "scopeMetrics", "metrics", _metric_to(record)
    else:
        outer, inner, member = "scopeLogs", "logRecords", _with_attributes(record, LOG, _OF_LOG)
    scope[inner] = [member]
    return {"resource": resource_to_otlp(record.get("resource", {})), outer: [scope]}


def _scope_to(record: Json) -> Json:
    about: Json = {"name": record["scope"]} if "scope" in record else {}
    if isinstance(version := record.get("attributes", {}).get(SCOPE_VERSION), str):
        about["version"] = version
    return about


def resource_to_otlp(resource: Json) -> Json:
    return {"attributes": _pairs_to(resource)}


@dataclass(frozen=True, slots=True)
class Unread:
    """A log record, span or data point that is no record; `member` is OTLP's object."""

    member: Json


def from_otlp(element: Json) -> Iterator[Json]:
    """The records of such an element, which may hold many.

    Raises:
        RefusedRecordError: It is none, or one of its members is no record.
    """
    for record in read_otlp(element):
        if isinstance(record, Unread):
            raise RefusedRecordError("not_otlp")
        yield record


def read_otlp(element: Json) -> Iterator[Json | Unread]:
    """Read the members one by one, so that one which cannot be read costs no other.

    Raises:
        RefusedRecordError: It is no such element.
    """
    try:
        resource = _pairs_back(element.get("resource", {}).get("attributes", ()))
        if resource and (url := element.get("schemaUrl")):
            resource.setdefault(RESOURCE_SCHEMA, url)
        members = [
            (signal, scope, part)
            for signal in _SIGNALS
            for scope in element.get(signal.outer, ())
            for member in scope.get(signal.inner, ())
            for part in signal.parts(member)
        ]
    except _UNREADABLE:
        raise RefusedRecordError("not_otlp") from None
    for signal, scope, part in members:
        try:
            yield _framed(signal.read(part), signal.kind, scope, resource)
        except _UNREADABLE:
            yield Unread(part)


def _framed(fields: Json, kind: str, scope: Json, resource: Json) -> Json:
    kind = fields.pop("kind", kind)
    url = str(scope.get("schemaUrl", ""))
    known = url.startswith(_SCHEMA_PREFIX)
    spec = url.removeprefix(_SCHEMA_PREFIX) if known else BASE_MODELS[kind].spec
    record: Json = {"schema": spec}
    record |= {"kind": kind, **fields}
    about = scope.get("scope", {})
    if name := about.get("name"):
        record["scope"] = name
    if own := scope_attributes(scope):
        record["attributes"] = {**own, **record.get("attributes", {})}
    return {**record, "resource": resource}


def scope_attributes(scope: Json) -> Json:
    """Return a scope's fields beside its name as attributes of its records.

    Its own attributes stand under ``otel.scope.``, as the version and the schema URL do.
    """
    about = scope.get("scope", {})
    own = _pairs_back(about.get("attributes", ()))
    found = {f"{_SCOPE}{key}": value for key, value in own.items()}
    if version := about.get("version"):
        found[SCOPE_VERSION] = version
    if (url := scope.get("schemaUrl")) and not str(url).startswith(_SCHEMA_PREFIX):
        found[SCOPE_SCHEMA] = url
    return found


def _with_attributes(record: Json, table: tuple[Mapped, ...], placed: frozenset[str]) -> Json:
    """The object of a table, with everything that is not `placed` as attributes."""
    attributes = dict(record.get("attributes", {}))
    for key, value in record.items():
        if key not in placed:
            attributes[RENAMED.get(key, _PREFIX + key)] = value
    attributes |= record.get("context", {})
    if record["kind"] in ("event", "audit"):
        attributes[f"{_PREFIX}kind"] = record["kind"]
    found = _write(record, table)
    return {**found, "attributes": _pairs_to(attributes)} if attributes else found


def _without_attributes(found: Json, table: tuple[Mapped, ...]) -> Json:
    fields, context, attributes = _read(found, table), {}, {}
    for name, value in _pairs_back(found.get("attributes", ())).items():
        if name in _CONTEXT:
            context[name] = value
        elif name in _FIELDS_OF or name.startswith(_PREFIX):
            fields[_FIELDS_OF.get(name, name.removeprefix(_PREFIX))] = value
        else:
            attributes[name] = value
    return fields | {k: v for k, v in (("context", context), ("attributes", attributes)) if v}


def _metric_to(record: Json) -> Json:
    point = _with_attributes(record, POINT, _OF_METRIC)
    data = {**_write(record, METRIC_DATA), "dataPoints": [point]}
    return {**_write(record, METRIC), METRIC_TYPES[record["metric_type"]]: data}


def _points(metric: Json) -> Iterator[Json]:
    """A metric with many points as metrics with one each; one without any type stays as it is."""
    types = [name for name in METRIC_TYPES.values() if name in metric]
    if not types:
        yield metric
    for name in types:
        data = metric[name]
        for point in data.get("dataPoints", ()):
            yield {**metric, name: {**data, "dataPoints": [point]}}


def _point_back(metric: Json) -> Json:
    metric_type, name = next(row for row in METRIC_TYPES.items() if row[1] in metric)
    data = metric[name]
    return {
        **_read(metric, METRIC),
        "metric_type": metric_type,
        **_read(data, METRIC_DATA),
        **_without_attributes(data["dataPoints"][0], POINT),
    }


@dataclass(frozen=True, slots=True)
class _Signal:
    """The place of a kind's records in an element; `parts` takes a member apart into records."""

    outer: str
    inner: str
    kind: str
    parts: Callable[[Json], Iterator[Json] | tuple[Json]]
    read: Callable[[Json], Json]


_SIGNALS: Final = (
    _Signal(
        "scopeLogs", "logRecords", "log", lambda m: (m,), lambda m: _without_attributes(m, LOG)
    ),
    _Signal("scopeSpans", "spans", "span", lambda m: (m,), lambda m: _without_attributes(m, SPAN)),
    _Signal("scopeMetrics", "metrics", "metric", _points, _point_back),
)
_UNREADABLE: Final = (
    KeyError, TypeError, ValueError, AttributeError, StopIteration, OverflowError, RecursionError,
)  # fmt: skip


def _write(fields: Json, table: tuple[Mapped, ...]) -> Json:
    found: Json = {}
    for row in table:
        if row.key not in fields:
            continue
        value, path = row.codec.to(fields[row.key]), row.path
        if len(path) == 1:
            found[path[0]] = value
        elif path:
            found.setdefault(path[0], {})[path[1]] = value
        else:
            found |= value
    return found


def _read(found: Json, table: tuple[Mapped, ...]) -> Json:
    fields: Json = {}
    for row in table:
        place: Any = found
        if not row.path:
            if "asInt" in found or "asDouble" in found:
                fields[row.key] = row.codec.back(found)
            continue
        for name in row.path:
            place = place.get(name) if isinstance(place, dict) else None
        if place is not None:
            fields[row.key] = row.codec.back(place)
    return fields
