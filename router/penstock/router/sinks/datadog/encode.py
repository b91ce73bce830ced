"""Records as Datadog has them: logs (v2), series of metrics (v2), spans of the trace Agent (v0.4).

Shapes are those of Datadog's API reference ("Send logs", "Submit metrics") and of its trace Agent.

- A log has what Datadog reserves (`service`, `host`, `status`, tags) and every other field of its
  record under the field's own name.
- A span's attributes, resource and context are its `meta`; its events and links stand there as
  Datadog's own Agent writes those of OpenTelemetry (`events`, `_dd.span_links`); a span that stands
  for several says so in `_sample_rate`, by which trace metrics count.
- A metric is of the type that needs no memory of the points before it: gauges and cumulative sums
  are gauges (`monotonic_diff()` makes rates of them in a query), sums of delta temporality are
  counts. A histogram is the series `.count`, `.sum`, and `.bucket` by the tags `lower_bound` and
  `upper_bound`. Datadog has neither NaN nor infinities: such series are left out and counted.
- A trace's id has 128 bits: `trace_id` is the lower half, `_dd.p.tid` the upper one in hex.
"""

import math
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from penstock.router.columns.json_objects import text_of
from penstock.router.sinks.http.encode import Json, section
from penstock.specs.models.log import severity_text

SOURCE: Final = "penstock"
COUNT: Final = 1
GAUGE: Final = 3
"""Type of a series that is a gauge (MetricIntakeType)."""

_FOREIGN_IN_METRIC: Final = re.compile(r"[^A-Za-z0-9_.]")
_METRIC_CHARACTERS_MAX: Final = 200
"""Maximum characters of a metric's name, by Datadog's "Submit metrics"."""
_SECOND_NS: Final = 1_000_000_000
_MILLISECOND_NS: Final = 1_000_000
_HALF: Final = 0xFFFF_FFFF_FFFF_FFFF
_KEPT: Final = 1.0
"""The sampling priority of what somebody chose to keep: it came through a route."""
_SPAN_TYPES: Final = {"SERVER": "web", "CLIENT": "http", "PRODUCER": "queue", "CONSUMER": "queue"}
_NO_RECORDED_VALUE: Final = 1
_MESSAGES: Final = ("body", "value", "value_base64")
_RENAMED: Final = {*_MESSAGES, "kind", "time_unix_nano", "severity_number"}
"""Fields of a record that a log has under other names."""

_STATUSES: Final = ("", *(severity_text(number).rstrip("234").lower() for number in range(1, 25)))


def tags_of(resource: Json, own: Json) -> list[str]:
    """`name:value`, the environment and version under the names that Datadog gives them."""
    unified = {
        "env": resource.get("deployment.environment.name", resource.get("deployment.environment")),
        "service": resource.get("service.name"),
        "version": resource.get("service.version"),
    }
    named = sorted({**unified, **own}.items()) if own else unified.items()
    return [f"{name}:{text_of(value)}" for name, value in named if value is not None]


def log_of(document: Json, time_ns: int, record_position: str) -> Json:
    """One member of a request's array."""
    resource = section(document, "resource")
    number = document.get("severity_number")
    rest = {name: value for name, value in document.items() if name not in _RENAMED}
    found = rest | {
        "message": _message(document),
        "ddsource": SOURCE,
        "ddtags": ",".join(tags_of(resource, {})),
        "hostname": resource.get("host.name"),
        "service": resource.get("service.name"),
        "status": _status(number),
        "timestamp": time_ns // _MILLISECOND_NS,
        "penstock_id": record_position,
        "penstock_kind": document.get("kind"),
    }
    return {name: it for name, it in found.items() if it is not None and it != {}}


def _status(number: Any) -> str | None:
    return _STATUSES[number] if isinstance(number, int) and 1 <= number <= 24 else None


def _message(document: Json) -> str:
    found = [document[name] for name in _MESSAGES if name in document]
    return text_of(found[0] if found and found[0] is not None else document)


def metric_name(name: str) -> str:
    """A metric's name as Datadog takes it; it makes `_` of all else and cuts long names itself."""
    fitted = _FOREIGN_IN_METRIC.sub("_", name)
    return (fitted if fitted[:1].isalpha() else f"m_{fitted}")[:_METRIC_CHARACTERS_MAX]


def series_of(record: Json) -> list[Json]:
    """The series of one point of a metric, but those whose value is NaN or infinite.

    Raises:
        KeyError, TypeError, ValueError: It is none, or of a type that has no series.
    """
    if (record.get("flags") or 0) & _NO_RECORDED_VALUE:
        raise ValueError("a point without a value says that a series ended; Datadog has no such")
    return [one for one in _series(record) if math.isfinite(one["points"][0]["value"])]


def _series(record: Json) -> Iterator[Json]:
    name, resource = metric_name(record["name"]), section(record, "resource")
    tags = tags_of(resource, section(record, "attributes"))
    host = resource.get("host.name")
    second = record["time_unix_nano"] // _SECOND_NS
    delta = record.get("temporality") == "delta"

    def series(suffix: str, value: float, *more: str) -> Json:
        made: Json = {
            "metric": name + suffix,
            "type": COUNT if delta else GAUGE,
            "points": [{"timestamp": second, "value": value}],
            "tags": [*tags, *more],
        }
        if delta:
            made["interval"] = max(second - record["start_time_unix_nano"] // _SECOND_NS, 1)
        if host:
            made["resources"] = [{"name": str(host), "type": "host"}]
        return made

    match record["metric_type"]:
        case "gauge" | "sum":
            yield series("", float(record["value"]))
        case "histogram":
            yield series(".count", float(record["count"]))
            if record.get("sum") is not None:
                yield series(".sum", float(record["sum"]))
            bounds = [-math.inf, *record["explicit_bounds"], math.inf]
            for (low, high), count in zip(pairwise(bounds), record["bucket_counts"], strict=True):
                yield series(".bucket", float(count), f"lower_bound:{low}", f"upper_bound:{high}")
        case other:
            raise ValueError(f"Datadog's series have no {other}; send it by OTLP")


def span_of(record: Json, record_position: str) -> Json:
    """One span of a trace.

    Raises:
        KeyError, TypeError, ValueError: It is none.
    """
    resource, kind = section(record, "resource"), record.get("span_kind") or "INTERNAL"
    trace, failed = int(record["trace_id"], 16), record.get("status_code") == "ERROR"
    texts = {**resource, **section(record, "attributes"), **section(record, "context")}
    texts |= {"otel.scope.name": record.get("scope"), "w3c.tracestate": record.get("trace_state")}
    texts |= {"events": record.get("events") or None, "_dd.span_links": record.get("links") or None}
    meta = {name: text_of(value) for name, value in texts.items() if value is not None}
    meta |= {
        "span.kind": kind.lower(),
        "penstock_id": record_position,
        "_dd.p.tid": f"{trace >> 64:016x}",
    }
    environment = resource.get("deployment.environment.name")
    if environment:
        meta["env"] = str(environment)
    if "service.version" in resource:
        meta["version"] = str(resource["service.version"])
    if failed and record.get("status_message"):
        meta["error.message"] = str(record["status_message"])
    begin_ns = record["time_unix_nano"]
    return {
        "trace_id": trace & _HALF,
        "span_id": int(record["span_id"], 16),
        "parent_id": int(record.get("parent_span_id") or "0", 16),
        "service": str(resource.get("service.name", "unknown")),
        "name": f"penstock.{kind.lower()}",
        "resource": record["name"],
        "type": _SPAN_TYPES.get(kind, "custom"),
        "start": begin_ns,
        "duration": max(record["end_time_unix_nano"] - begin_ns, 0),
        "error": int(failed),
        "meta": meta,
        "metrics": {"_sampling_priority_v1": _KEPT, "_sample_rate": 1 / _weight(record)},
    }


def _weight(record: Json) -> float:
    """Return how many spans the record represents."""
    return max(float(record.get("sample_weight") or 1), 1.0)


def traces_of(spans: list[Any]) -> list[list[Any]]:
    """Spans by their trace, in the order of the first of each."""
    found: dict[str, list[Any]] = {}
    for trace, span in spans:
        found.setdefault(trace, []).append(span)
    return list(found.values())
