"""Prometheus's exposition in protobuf: messages `io.prometheus.client.MetricFamily`.

Each message has its length before it, as a varint. The format is the only one with native
histograms; everything else is the same as in text. A histogram that has both kinds of buckets is
read as the native one, as Prometheus does.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client import Metric
from prometheus_client.samples import Exemplar, Sample, Timestamp

from penstock.collector.decode.prometheus.native_histogram import NativeHistogram
from penstock.collector.decode.senders.protobuf import Field, describe, parse
from penstock.collector.errors import RemoteProtocolError, UndecodableError

MEDIA_TYPE: Final = "application/vnd.google.protobuf"
ACCEPT: Final = f"{MEDIA_TYPE};proto=io.prometheus.client.MetricFamily;encoding=delimited"

_VALUE: Final = {"value": Field(1, "double")}
_FAMILY: Final = describe(
    "penstock.prometheus.exposition",
    {
        "MetricFamily": {
            "name": Field(1, "string"),
            "help": Field(2, "string"),
            "type": Field(3, "int32"),
            "metric": Field(4, "Metric", is_repeated=True),
            "unit": Field(5, "string"),
        },
        "Metric": {
            "label": Field(1, "Label", is_repeated=True),
            "gauge": Field(2, "Value"),
            "counter": Field(3, "Counter"),
            "summary": Field(4, "Summary"),
            "untyped": Field(5, "Value"),
            "timestamp_ms": Field(6, "int64"),
            "histogram": Field(7, "Histogram"),
        },
        "Label": {"name": Field(1, "string"), "value": Field(2, "string")},
        "Value": _VALUE,
        "Counter": {
            **_VALUE,
            "exemplar": Field(2, "Exemplar"),
            "created_timestamp": Field(3, "Time"),
        },
        "Summary": {
            "sample_count": Field(1, "uint64"),
            "sample_sum": Field(2, "double"),
            "quantile": Field(3, "Quantile", is_repeated=True),
            "created_timestamp": Field(4, "Time"),
        },
        "Quantile": {"quantile": Field(1, "double"), "value": Field(2, "double")},
        "Histogram": {
            "sample_count": Field(1, "uint64"),
            "sample_sum": Field(2, "double"),
            "bucket": Field(3, "Bucket", is_repeated=True),
            "sample_count_float": Field(4, "double"),
            "schema": Field(5, "sint32"),
            "zero_threshold": Field(6, "double"),
            "zero_count": Field(7, "uint64"),
            "zero_count_float": Field(8, "double"),
            "negative_span": Field(9, "Span", is_repeated=True),
            "negative_delta": Field(10, "sint64", is_repeated=True),
            "negative_count": Field(11, "double", is_repeated=True),
            "positive_span": Field(12, "Span", is_repeated=True),
            "positive_delta": Field(13, "sint64", is_repeated=True),
            "positive_count": Field(14, "double", is_repeated=True),
            "created_timestamp": Field(15, "Time"),
            "exemplars": Field(16, "Exemplar", is_repeated=True),
        },
        "Bucket": {
            "cumulative_count": Field(1, "uint64"),
            "upper_bound": Field(2, "double"),
            "exemplar": Field(3, "Exemplar"),
            "cumulative_count_float": Field(4, "double"),
        },
        "Span": {"offset": Field(1, "sint32"), "length": Field(2, "uint32")},
        "Exemplar": {
            "label": Field(1, "Label", is_repeated=True),
            "value": Field(2, "double"),
            "timestamp": Field(3, "Time"),
        },
        "Time": {"seconds": Field(1, "int64"), "nanos": Field(2, "int32")},
    },
)["MetricFamily"]
_CUMULATIVE: Final = ("counter", "summary", "histogram")
_WITHOUT_TYPE: Final = frozenset({"gaugehistogram", "info", "stateset"})
"""Types of families whose samples become gauges, which say nothing of the type."""
_TYPES: Final = ("counter", "gauge", "summary", "unknown", "histogram", "gaugehistogram")
_VARINT_BYTES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class NativePoint:
    """A native histogram of one set of labels.

    Attributes:
        time_ns: None: the time of the scrape.
        created_ns: Time of its creation; 0: not sent.
    """

    name: str
    unit: str
    labels: Mapping[str, str]
    histogram: NativeHistogram
    time_ns: int | None
    created_ns: int
    exemplars: list[Exemplar]


@dataclass(slots=True)
class Families:
    """The families of an answer.

    Attributes:
        samples: Number of samples, a native histogram being one.
        notes: Count of what is left out, by reason.
    """

    metrics: list[Metric] = field(default_factory=list)
    natives: list[NativePoint] = field(default_factory=list)
    samples: int = 0
    notes: Counter[str] = field(default_factory=Counter)

    def count_without_place(self, documentation: str, kind: str) -> None:
        """Count what is said of a family and of no point."""
        self.notes["help_texts_dropped"] += bool(documentation)
        self.notes["family_types_dropped"] += kind in _WITHOUT_TYPE


def read_families(body: bytes, max_samples: int) -> Families:
    """Read an answer.

    Raises:
        UndecodableError: It is not in the format, or has more samples.
    """
    families = Families()
    try:
        for message in _messages(body):
            _take(parse(_FAMILY, message), families)
            if families.samples > max_samples:
                raise UndecodableError(f"more than {max_samples} samples")
    except RemoteProtocolError as error:
        raise UndecodableError(f"not Prometheus metrics: {error}") from None
    return families


def _messages(body: bytes) -> Iterator[bytes]:
    """Cut the messages apart.

    Raises:
        RemoteProtocolError: A length is none, or goes beyond the end.
    """
    at = 0
    while at < len(body):
        length = shift = 0
        while True:
            if at >= len(body) or shift >= 7 * _VARINT_BYTES_MAX:
                raise RemoteProtocolError("a length that is none")
            byte = body[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if at + length > len(body):
            raise RemoteProtocolError("a message that is cut short")
        yield body[at : at + length]
        at += length


def _take(family: Any, families: Families) -> None:
    kind = _TYPES[family.type] if 0 <= family.type < len(_TYPES) else "unknown"
    families.count_without_place(family.help, kind)
    made = Metric(family.name, "", kind)
    made.unit = family.unit
    created: list[Sample] = []
    for metric in family.metric:
        labels = {one.name: one.value for one in metric.label}
        if _is_native(metric.histogram):
            families.samples += 1
            families.natives.append(_native(family, metric, labels))
            if metric.histogram.bucket:
                families.notes["classic_buckets_dropped"] += len(metric.histogram.bucket)
            continue
        time = metric.timestamp_ms / 1000 if metric.timestamp_ms else None
        made.samples += [
            Sample(name, {**labels, **own}, value, time, exemplar)
            for name, own, value, exemplar in _samples(family.name, metric)
        ]
        if kind in _CUMULATIVE and (begun_s := _created_s(metric)):
            created.append(Sample(f"{family.name}_created", labels, begun_s))
    families.samples += len(made.samples)
    made.samples += created  # which text has as samples, and this format beside them
    if made.samples:
        families.metrics.append(made)


def _samples(
    name: str, metric: Any
) -> Iterator[tuple[str, dict[str, str], float, Exemplar | None]]:
    """The samples of a metric as in the text format: name, own labels, value, exemplar."""
    if metric.HasField("counter"):
        yield name, {}, metric.counter.value, _exemplar(metric.counter)
    elif metric.HasField("gauge"):
        yield name, {}, metric.gauge.value, None
    elif metric.HasField("untyped"):
        yield name, {}, metric.untyped.value, None
    elif metric.HasField("summary"):
        for one in metric.summary.quantile:
            yield name, {"quantile": str(one.quantile)}, one.value, None
        yield f"{name}_sum", {}, metric.summary.sample_sum, None
        yield f"{name}_count", {}, metric.summary.sample_count, None
    elif metric.HasField("histogram"):
        found = metric.histogram
        count = found.sample_count or found.sample_count_float
        bounds = [one.upper_bound for one in found.bucket]
        for one in found.bucket:
            cumulative = one.cumulative_count or one.cumulative_count_float
            yield f"{name}_bucket", {"le": str(one.upper_bound)}, cumulative, _exemplar(one)
        if float("inf") not in bounds:  # it may be left out, as it is the count
            yield f"{name}_bucket", {"le": "+Inf"}, count, None
        yield f"{name}_sum", {}, found.sample_sum, None
        yield f"{name}_count", {}, count, None


def _created_s(metric: Any) -> float:
    """The time since which a metric counts, in seconds; 0: it is not sent."""
    for kind in _CUMULATIVE:
        if metric.HasField(kind):
            time = getattr(metric, kind).created_timestamp
            return float(time.seconds + time.nanos / 1e9)
    return 0.0


def _is_native(histogram: Any) -> bool:
    """Return whether a histogram has native buckets; an empty one has a span of no length."""
    return bool(
        histogram.positive_span
        or histogram.negative_span
        or histogram.zero_threshold > 0
        or histogram.zero_count > 0
        or histogram.zero_count_float > 0
    )


def _native(family: Any, metric: Any, labels: Mapping[str, str]) -> NativePoint:
    one = metric.histogram
    return NativePoint(
        family.name,
        family.unit,
        labels,
        NativeHistogram(
            one.schema,
            one.sample_count or one.sample_count_float,
            one.sample_sum,
            one.zero_threshold,
            one.zero_count or one.zero_count_float,
            positive=(one.positive_span, one.positive_delta, one.positive_count),
            negative=(one.negative_span, one.negative_delta, one.negative_count),
        ),
        metric.timestamp_ms * 1_000_000 if metric.timestamp_ms else None,
        one.created_timestamp.seconds * 10**9 + one.created_timestamp.nanos,
        [_exemplar_of(found) for found in one.exemplars],
    )


def _exemplar(holder: Any) -> Exemplar | None:
    return _exemplar_of(holder.exemplar) if holder.HasField("exemplar") else None


def _exemplar_of(one: Any) -> Exemplar:
    labels = {label.name: label.value for label in one.label}
    time = Timestamp(one.timestamp.seconds, one.timestamp.nanos)
    return Exemplar(labels, one.value, time if one.HasField("timestamp") else None)
