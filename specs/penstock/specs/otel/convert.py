"""OpenTelemetry SDK objects as records.

The SDK's own limits have been applied already; what remains is to fit names, ids and types. A point
that the spec does not allow (an empty unit becomes ``1``) is adapted where that loses nothing.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode

from penstock.specs.limits import (
    ATTRIBUTES_MAX,
    BUCKETS_MAX,
    EXEMPLARS_MAX,
    INT64_MAX,
    INT64_MIN,
    KEY_CHARACTERS_MAX,
    LINKS_MAX,
    NAME_CHARACTERS_MAX,
    SCOPE_CHARACTERS_MAX,
    SPAN_EVENTS_MAX,
    TRACE_STATE_CHARACTERS_MAX,
)
from penstock.specs.models.attributes import clean_attributes, clean_text, has_plain_values
from penstock.specs.models.kinds import BASE_MODELS
from penstock.specs.models.log import severity_text
from penstock.specs.models.scalars import not_finite_word

SCALE_MIN: Final = -10
"""The widest buckets that a record can have; each then spans 2**1024."""


class Range(NamedTuple):
    """Counts of consecutive buckets; `offset` is the index of the first."""

    offset: int
    counts: Sequence[int]


def downscaled(buckets: Range, steps: int) -> Range:
    """Each bucket becomes half of one that is twice as wide (logarithmically), `steps` times.

    Bucket i of scale s lies within bucket i >> 1 of scale s - 1 (OpenTelemetry's data model,
    exponential scale), also for negative i.
    """
    if not buckets.counts or not steps:
        return buckets
    first = buckets.offset >> steps
    last = (buckets.offset + len(buckets.counts) - 1) >> steps
    counts = [0] * (last - first + 1)
    for number, count in enumerate(buckets.counts):
        counts[((buckets.offset + number) >> steps) - first] += count
    return Range(first, counts)


def fitted(
    scale: int, positive: Range, negative: Range, buckets_max: int = BUCKETS_MAX
) -> tuple[int, Range, Range]:
    """The finest scale at which both ranges fit, and the ranges at it.

    Raises:
        ValueError: They fit at no scale that a record can have.
    """
    for steps in range(scale - SCALE_MIN + 1):
        ranges = downscaled(positive, steps), downscaled(negative, steps)
        if all(len(each.counts) <= buckets_max for each in ranges):
            return scale - steps, *ranges
    raise ValueError("an exponential histogram with too many buckets")


Json = dict[str, Any]
_Point = NumberDataPoint | HistogramDataPoint | ExponentialHistogramDataPoint
_TEMPORALITY: Final = {
    AggregationTemporality.DELTA: "delta",
    AggregationTemporality.CUMULATIVE: "cumulative",
}
_SCHEMAS: Final = {kind: BASE_MODELS[kind].spec for kind in ("log", "span", "metric")}
_INFO: Final = 9
# An enum's own way to its name is ten times as long.
_SPAN_KINDS: Final = {kind: kind.name for kind in SpanKind}
_STATUS_CODES: Final = {code: code.name for code in StatusCode}


def span_record(span: ReadableSpan) -> Json:
    """A finished span. The SDK computes every property with each access, so each has one."""
    context, status = span.context, span.status
    assert context is not None, "the SDK exports spans with a context only"
    start = _time(span.start_time)
    attributes = getattr(span, "_attributes", None) or span.attributes  # the latter is a proxy
    record = _envelope("span", start, attributes, span.instrumentation_scope)
    record["trace_id"] = f"{context.trace_id:032x}"
    record["span_id"] = f"{context.span_id:016x}"
    record["trace_flags"] = int(context.trace_flags)
    parent = span.parent
    if parent is not None and parent.is_valid:
        record["parent_span_id"] = f"{parent.span_id:016x}"
    record["name"] = clean_text(span.name, NAME_CHARACTERS_MAX) or "unnamed"
    record["span_kind"] = _SPAN_KINDS[span.kind]
    record["end_time_unix_nano"] = max(start, _time(span.end_time))
    record["status_code"] = _STATUS_CODES[status.status_code]
    if status.description:
        record["status_message"] = clean_text(status.description)
    if trace_state := context.trace_state:
        state = trace_state.to_header()
        if 0 < len(state) <= TRACE_STATE_CHARACTERS_MAX:
            record["trace_state"] = state
    if (links := span.links) or span.dropped_links:
        _add_links(record, links, span.dropped_links)
    if (events := span.events) or span.dropped_events:
        _add_events(record, events, span.dropped_events)
    return record


def _add_links(record: Json, links: Sequence[Link], dropped: int) -> None:
    if links:
        record["links"] = [
            {**_ids(link.context), **_attributes(link.attributes)} for link in links[:LINKS_MAX]
        ]
    if lost := dropped + max(0, len(links) - LINKS_MAX):
        record["dropped_links_count"] = lost


def _add_events(record: Json, events: Sequence[Event], dropped: int) -> None:
    if events:
        record["events"] = [
            {
                "name": clean_text(event.name, NAME_CHARACTERS_MAX) or "unnamed",
                "time_unix_nano": _time(event.timestamp),
                **_attributes(event.attributes),
            }
            for event in events[:SPAN_EVENTS_MAX]
        ]
    if lost := dropped + max(0, len(events) - SPAN_EVENTS_MAX):
        record["dropped_events_count"] = lost


def log_record(readable: ReadableLogRecord) -> Json:
    """A log record; one with an event name stays a log record, named."""
    log = readable.log_record
    time = _time(log.timestamp or log.observed_timestamp)
    record = _envelope("log", time, log.attributes, readable.instrumentation_scope)
    if log.trace_id:
        record["trace_id"] = f"{log.trace_id:032x}"
        if log.span_id:
            record["span_id"] = f"{log.span_id:016x}"
        record["trace_flags"] = int(log.trace_flags or 0)
    number = log.severity_number.value if log.severity_number is not None else 0
    record["severity_number"] = number or _INFO
    record["severity_text"] = severity_text(number or _INFO)
    record["body"] = clean_text(_body(log.body))
    if log.event_name:
        record["event_name"] = clean_text(log.event_name, NAME_CHARACTERS_MAX)
    return record


def metric_records(data: MetricsData) -> Iterator[tuple[Resource, Json | None]]:
    """Every point, with the resource it belongs to; None for one that no record can hold."""
    for resource_metrics in data.resource_metrics:
        for scope_metrics in resource_metrics.scope_metrics:
            for metric in scope_metrics.metrics:
                for point in metric.data.data_points:
                    yield (
                        resource_metrics.resource,
                        _point_record(metric, point, scope_metrics.scope),
                    )


def _point_record(metric: Metric, point: _Point, scope: Any) -> Json | None:
    try:
        record = _envelope("metric", point.time_unix_nano, point.attributes, scope)
        record["name"] = metric.name
        record["unit"] = (metric.unit or "1")[:63]
        return record | _typed(metric, point) | _exemplars(point)
    except Exception:  # noqa: BLE001 - one odd point must not lose its batch
        return None


def _typed(metric: Metric, point: _Point) -> Json:
    """The fields of the point's metric type."""
    data = metric.data
    match data, point:
        case Gauge(), NumberDataPoint():
            return {"metric_type": "gauge", "value": _number(point.value)}
        case Sum(), NumberDataPoint():
            return {
                "metric_type": "sum",
                "value": _number(point.value),
                "is_monotonic": data.is_monotonic,
                **_window(data, point),
            }
        case Histogram(), HistogramDataPoint():
            return {
                "metric_type": "histogram",
                "bucket_counts": list(point.bucket_counts),
                "explicit_bounds": list(point.explicit_bounds),
                **_statistics(point),
                **_window(data, point),
            }
        case ExponentialHistogram(), ExponentialHistogramDataPoint():
            return {
                "metric_type": "exponential_histogram",
                "zero_count": point.zero_count,
                **_buckets(point),
                **_statistics(point),
                **_window(data, point),
            }
        case _:
            raise TypeError(f"{type(data).__name__} with {type(point).__name__}")


def _window(
    data: Sum | Histogram | ExponentialHistogram,
    point: _Point,
) -> Json:
    start = point.start_time_unix_nano or point.time_unix_nano
    return {
        "temporality": _TEMPORALITY[data.aggregation_temporality],
        "start_time_unix_nano": min(start, point.time_unix_nano),
    }


def _statistics(point: HistogramDataPoint | ExponentialHistogramDataPoint) -> Json:
    """Count and sum; the extremes only when something was measured: the SDK has infinities else."""
    found: Json = {"count": point.count, "sum": _number(point.sum)}
    if point.count and not point.min > point.max:
        found |= {"min": _number(point.min), "max": _number(point.max)}
    return found


def _number(value: Any) -> Any:
    """A plain number of whatever counts as one, numpy's included, or the word for what is none."""
    if isinstance(value, int) and INT64_MIN <= value <= INT64_MAX:
        return int(value)
    return not_finite_word(float(value))


def _buckets(point: ExponentialHistogramDataPoint) -> Json:
    """Both ranges; an SDK that is configured for more buckets than a record has gets wider ones."""
    one, other = point.positive, point.negative
    scale, positive, negative = fitted(
        point.scale, Range(one.offset, one.bucket_counts), Range(other.offset, other.bucket_counts)
    )
    return {
        "scale": scale,
        "positive": {"offset": positive.offset, "bucket_counts": list(positive.counts)},
        "negative": {"offset": negative.offset, "bucket_counts": list(negative.counts)},
    }


def _exemplars(point: Any) -> Json:
    found = [
        {
            "time_unix_nano": exemplar.time_unix_nano,
            "value": _number(exemplar.value),
            **({"trace_id": f"{exemplar.trace_id:032x}"} if exemplar.trace_id else {}),
            **({"span_id": f"{exemplar.span_id:016x}"} if exemplar.span_id else {}),
            **_attributes(exemplar.filtered_attributes),
        }
        for exemplar in point.exemplars[:EXEMPLARS_MAX]
    ]
    return {"exemplars": found} if found else {}


def _envelope(kind: str, time: int, attributes: Mapping[str, Any] | None, scope: Any) -> Json:
    record: Json = {"schema": _SCHEMAS[kind], "kind": kind, "time_unix_nano": time}
    if scope is not None and (name := scope.name):
        record["scope"] = clean_text(name, SCOPE_CHARACTERS_MAX)
    clean, dropped = _cleaned(attributes)
    if attributes is not None:
        dropped += getattr(attributes, "dropped", 0)
    if clean:
        record["attributes"] = clean
    if dropped:
        record["dropped_attributes_count"] = dropped
    return record


def _ids(context: SpanContext) -> Json:
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def _attributes(attributes: Mapping[str, Any] | None) -> Json:
    clean, _ = _cleaned(attributes)
    return {"attributes": clean} if clean else {}


def _cleaned(attributes: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], int]:
    """The SDK's attributes as a record's; most need nothing but a look at them."""
    if not attributes:
        return {}, 0
    # The SDK's own mapping takes a call for each member; the dict within it does not.
    given = getattr(attributes, "_dict", attributes)
    if (
        given.__class__ is dict
        and len(given) <= ATTRIBUTES_MAX
        and has_plain_values(given)
        and max(map(len, given)) <= KEY_CHARACTERS_MAX
    ):
        return dict(given), 0
    return clean_attributes(given)


def _time(given: float | None) -> int:
    """Applications may hand in their own times, also as floats."""
    return max(0, int(given or 0))


def _body(body: Any) -> str:
    if isinstance(body, (Mapping, Sequence)) and not isinstance(body, (str, bytes)):
        try:
            return json.dumps(body, default=clean_text)
        except (TypeError, ValueError, RecursionError):  # keys that are no text, or a cycle
            return clean_text(body)
    return "" if body is None else clean_text(body)
