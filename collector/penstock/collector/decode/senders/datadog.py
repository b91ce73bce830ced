"""Decoder of Datadog's intake: logs, and series of metrics.

From Datadog's API reference, "Send logs" and "Submit metrics" (v2). A log is an object with a
`message` and perhaps `ddsource`, `ddtags`, `hostname`, `service`, `status`, `timestamp` and
its own attributes. A series has points, tags and resources; a count becomes a delta sum over its
interval, and so does a rate, times its interval; a gauge, and a series of no type, a gauge.

Datadog's agent sends series in protobuf: ``datadog.agentpayload.MetricPayload``.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.collector.decode.line_rules import NO_RULES
from penstock.collector.decode.lines import is_structured
from penstock.collector.decode.senders.protobuf import Field, describe, parse
from penstock.collector.decode.senders.record_maker import (
    About,
    RecordMaker,
    read_json,
    text_or_empty,
)
from penstock.collector.decode.shapes import Made
from penstock.collector.decode.timestamps import iso_time_ns
from penstock.collector.errors import RemoteProtocolError
from penstock.specs.limits import INT64_MAX

Json = dict[str, Any]
PAYLOAD: Final = describe(
    "penstock.datadog",
    {
        "MetricPayload": {"series": Field(1, "MetricSeries", is_repeated=True)},
        "MetricSeries": {
            "resources": Field(1, "Resource", is_repeated=True),
            "metric": Field(2, "string"),
            "tags": Field(3, "string", is_repeated=True),
            "points": Field(4, "MetricPoint", is_repeated=True),
            "type": Field(5, "int32"),
            "unit": Field(6, "string"),
            "source_type_name": Field(7, "string"),
            "interval": Field(8, "int64"),
            "metadata": Field(9, "bytes"),
        },
        "Resource": {"type": Field(1, "string"), "name": Field(2, "string")},
        "MetricPoint": {"value": Field(1, "double"), "timestamp": Field(2, "int64")},
    },
)["MetricPayload"]
_NAMES: Final = ("ddsource", "ddtags", "hostname", "service")
"""Query parameters that apply to every log without the field."""
_TYPES: Final[Mapping[Any, str]] = {
    **dict.fromkeys((0, 3, "unspecified", "gauge", None), "gauge"),
    **dict.fromkeys((1, "count"), "count"),
    **dict.fromkeys((2, "rate"), "rate"),
}
_SERIES_KEYS: Final = frozenset(
    {"metric", "type", "interval", "points", "resources", "source_type_name", "tags", "unit"}
)
_SECOND_NS: Final = 1_000_000_000
_UNFIT: Final = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


def log_lines(
    body: bytes, asked: Mapping[str, str], service: str, records: RecordMaker
) -> Iterator[Made]:
    """The records of logs in JSON: an object, or an array of them.

    Args:
        body: The request.
        asked: The parameters of its query.
        service: The service of logs that name none.
        records: Makes them.

    Raises:
        RemoteProtocolError: It holds something else.
    """
    found = read_json(body)
    for number, item in enumerate(found if isinstance(found, list) else [found]):
        if not isinstance(item, dict):
            raise RemoteProtocolError(f"log {number} is no object")
        if item:  # the agent sends an empty one to find out whether there is a connection
            yield _log({**_said(asked), **item}, service, records)


def text_lines(
    body: bytes, asked: Mapping[str, str], service: str, records: RecordMaker
) -> Iterator[Made]:
    """The records of logs in text, one a line."""
    for whole in body.split(b"\n"):
        if line := whole.removesuffix(b"\r"):
            message = line.decode("utf-8", "replace")
            yield _log({**_said(asked), "message": message}, service, records)


def json_points(body: bytes, service: str, records: RecordMaker) -> Iterator[Made]:
    """The records of series in JSON.

    Raises:
        RemoteProtocolError: It is no such request.
    """
    found = read_json(body)
    given = found.get("series") if isinstance(found, dict) else None
    if not isinstance(given, list):
        raise RemoteProtocolError('Payload is not in the expected format: {"series": [...]}')
    for number, one in enumerate(given):
        if isinstance(one, dict) and not one.keys() <= _SERIES_KEYS:
            records.notes["series_metadata_dropped"] += "metadata" in one
            records.notes["fields_unknown"] += len(one.keys() - _SERIES_KEYS - {"metadata"})
        yield from _series(_read_series(one, number), service, records)


def protobuf_points(body: bytes, service: str, records: RecordMaker) -> Iterator[Made]:
    """The records of series in protobuf.

    Raises:
        RemoteProtocolError: It is no such request.
    """
    for number, one in enumerate(parse(PAYLOAD, body).series):
        if not one.metric:
            raise RemoteProtocolError(f"series {number} has no metric")
        if one.metadata:
            records.notes["series_metadata_dropped"] += 1
        series = Series(
            one.metric, _TYPES.get(one.type), [(it.timestamp, it.value) for it in one.points],
            one.tags, [(it.type, it.name) for it in one.resources],
            one.interval, one.unit, one.source_type_name,
        )  # fmt: skip
        yield from _series(series, service, records)


@dataclass(frozen=True, slots=True)
class Series:
    """One series.

    Attributes:
        kind: `gauge`, `count` or `rate`; None: another, which is taken for a gauge and counted.
        points: Seconds since 1970, and the value.
        resources: Their types and names.
        interval_s: The time over which a count or a rate was taken; 0: it is not said.
    """

    metric: str
    kind: str | None
    points: Iterable[tuple[int, float]]
    tags: Iterable[str]
    resources: Iterable[tuple[str, str]]
    interval_s: int
    unit: str
    source_type: str


def tags_of(tags: Iterable[str]) -> Json:
    """Tags as attributes: what stands behind the first colon is the value; several make a list."""
    found: dict[str, list[str]] = {}
    for tag in tags:
        key, _, value = tag.strip().partition(":")
        if key:
            found.setdefault(key, []).append(value)
    return {key: values if len(values) > 1 else values[0] for key, values in found.items()}


def _said(asked: Mapping[str, str]) -> Json:
    return {key: asked[key] for key in _NAMES if key in asked}


def _log(item: Json, service: str, records: RecordMaker) -> Made:
    message = item.pop("message", "")
    attributes = tags_of(text_or_empty(item.pop("ddtags", "")).split(","))
    if source := text_or_empty(item.pop("ddsource", "")):
        attributes["datadog.source"] = source
    named = text_or_empty(item.pop("service", ""))
    resource = records.resource_of(named or service, text_or_empty(item.pop("hostname", "")))
    level = text_or_empty(item.pop("status", ""))
    time_ns = _time_of(item.pop("timestamp", None), records)
    if isinstance(message, str) and message[:1] == "{":
        text = message.encode("utf-8", "replace")
        if is_structured(text, NO_RULES):
            return records.text(text, resource, About({**item, **attributes}, time_ns, level))
    return records.event({**item, "message": message}, resource, About(attributes, time_ns, level))


def _time_of(value: Any, records: RecordMaker) -> int | None:
    """A log's time: milliseconds, or ISO 8601."""
    if isinstance(value, str) and (time_ns := iso_time_ns(value)) is not None:
        return time_ns
    return records.time_of(value)


def _read_series(one: Any, number: int) -> Series:
    """A series in JSON.

    Raises:
        RemoteProtocolError: It is none.
    """
    try:
        interval_s = one.get("interval") or 0
        if type(interval_s) is int and abs(interval_s) > INT64_MAX:
            raise ValueError("the interval is beyond 64 bits")
        series = Series(
            one["metric"],
            _TYPES.get(one.get("type")),
            [(point["timestamp"], float(point["value"])) for point in one["points"]],
            one.get("tags") or (),
            [(str(it["type"]), str(it["name"])) for it in one.get("resources") or ()],
            interval_s if type(interval_s) is int else 0,
            text_or_empty(one.get("unit")),
            text_or_empty(one.get("source_type_name")),
        )
        texts = [series.metric, *series.tags]
        if all(isinstance(text, str) for text in texts) and series.metric:
            return series
    except _UNFIT as error:
        message = f"series {number} is not in the expected format: {type(error).__name__}: {error}"
        raise RemoteProtocolError(message[:200]) from None
    raise RemoteProtocolError(f"series {number} is not in the expected format")


def _series(series: Series, service: str, records: RecordMaker) -> Iterator[Made]:
    attributes = tags_of(series.tags)
    if series.source_type:
        attributes["datadog.source_type"] = series.source_type
    hosts = [name for kind, name in series.resources if kind == "host"]
    attributes |= {f"datadog.{kind}": name for kind, name in series.resources if kind != "host"}
    named = attributes.get("service")
    resource = records.resource_of(
        named if isinstance(named, str) and named else service, hosts[0] if hosts else ""
    )
    if series.kind is None:
        records.notes["types_unknown"] += 1
    for seconds, value in series.points:
        time_ns = seconds * _SECOND_NS if type(seconds) is int else -1
        if not 0 < time_ns <= INT64_MAX:
            records.notes["timestamps_unreadable"] += 1
            time_ns = records.now_ns
        typed = _typed(series, value, time_ns)
        yield records.point(
            series.metric, resource, attributes, typed, time_ns=time_ns, unit=series.unit
        )


def _typed(series: Series, value: float, time_ns: int) -> Json:
    """The fields of a point that belong to its type."""
    interval_s = max(0, series.interval_s)
    if series.kind not in ("count", "rate") or (series.kind == "rate" and not interval_s):
        return {"metric_type": "gauge", "value": value}
    return {
        "metric_type": "sum",
        "value": value * interval_s if series.kind == "rate" else value,
        "is_monotonic": False,  # a count of Datadog's may be negative
        "temporality": "delta",
        "start_time_unix_nano": max(0, time_ns - interval_s * _SECOND_NS),
    }
