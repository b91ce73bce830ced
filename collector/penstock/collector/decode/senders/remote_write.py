"""Prometheus remote write, 1.0 and 2.0, as metric points.

The messages are those of ``prometheus.WriteRequest`` and ``io.prometheus.write.v2.Request``; the
second has each text once, in `symbols`. A series is a point for each sample:

    counter, `_bucket` and `_count` of histograms and summaries    cumulative sum, monotonic
    `_sum` of histograms and summaries                              cumulative sum
    native histogram                                                exponential histogram
    native histogram with custom buckets                            histogram
    everything else                                                 gauge

The type is the metadata's, which 2.0 has beside each series and 1.0 perhaps in the same request.
Without it ``…_total`` and ``…_bucket`` are counters, and all others gauges, which is counted. A sum
begins when its sender says, else at its sample. The NaN that ends a series is a point without a
value.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.collector.decode.attributes import flatten
from penstock.collector.decode.loggers import roles_of, take_trace
from penstock.collector.decode.prometheus.native_histogram import (
    NativeHistogram,
    is_stale,
    native_histogram,
    window,
)
from penstock.collector.decode.senders.protobuf import Field, describe, parse
from penstock.collector.decode.senders.record_maker import RecordMaker
from penstock.collector.decode.shapes import Made
from penstock.collector.errors import RemoteProtocolError
from penstock.specs.limits import (
    EXEMPLARS_MAX,
    INT64_MAX,
    NAME_CHARACTERS_MAX,
)
from penstock.specs.models.metric import NO_RECORDED_VALUE
from penstock.specs.models.scalars import not_finite_word

Json = dict[str, Any]
Labels = tuple[tuple[str, str], ...]
_HISTOGRAM: Final = {
    "count_int": Field(1, "uint64"),
    "count_float": Field(2, "double"),
    "sum": Field(3, "double"),
    "schema": Field(4, "sint32"),
    "zero_threshold": Field(5, "double"),
    "zero_count_int": Field(6, "uint64"),
    "zero_count_float": Field(7, "double"),
    "negative_spans": Field(8, "BucketSpan", is_repeated=True),
    "negative_deltas": Field(9, "sint64", is_repeated=True),
    "negative_counts": Field(10, "double", is_repeated=True),
    "positive_spans": Field(11, "BucketSpan", is_repeated=True),
    "positive_deltas": Field(12, "sint64", is_repeated=True),
    "positive_counts": Field(13, "double", is_repeated=True),
    "reset_hint": Field(14, "int32"),
    "timestamp": Field(15, "int64"),
    "custom_values": Field(16, "double", is_repeated=True),
    "start_timestamp": Field(17, "int64"),
}
_SPAN: Final = {"offset": Field(1, "sint32"), "length": Field(2, "uint32")}
_SAMPLE: Final = {
    "value": Field(1, "double"),
    "timestamp": Field(2, "int64"),
    "start_timestamp": Field(3, "int64"),
}
WRITE_1: Final = describe(
    "penstock.remote_write.v1",
    {
        "WriteRequest": {
            "timeseries": Field(1, "TimeSeries", is_repeated=True),
            "metadata": Field(3, "Metadata", is_repeated=True),
        },
        "TimeSeries": {
            "labels": Field(1, "Label", is_repeated=True),
            "samples": Field(2, "Sample", is_repeated=True),
            "exemplars": Field(3, "Exemplar", is_repeated=True),
            "histograms": Field(4, "Histogram", is_repeated=True),
        },
        "Label": {"name": Field(1, "string"), "value": Field(2, "string")},
        "Exemplar": {
            "labels": Field(1, "Label", is_repeated=True),
            "value": Field(2, "double"),
            "timestamp": Field(3, "int64"),
        },
        "Metadata": {
            "type": Field(1, "int32"),
            "metric_family_name": Field(2, "string"),
            "help": Field(4, "bytes"),
            "unit": Field(5, "string"),
        },
        "Sample": _SAMPLE,
        "Histogram": _HISTOGRAM,
        "BucketSpan": _SPAN,
    },
)["WriteRequest"]
WRITE_2: Final = describe(
    "penstock.remote_write.v2",
    {
        "Request": {
            "symbols": Field(4, "string", is_repeated=True),
            "timeseries": Field(5, "TimeSeries", is_repeated=True),
        },
        "TimeSeries": {
            "labels_refs": Field(1, "uint32", is_repeated=True),
            "samples": Field(2, "Sample", is_repeated=True),
            "histograms": Field(3, "Histogram", is_repeated=True),
            "exemplars": Field(4, "Exemplar", is_repeated=True),
            "metadata": Field(5, "Metadata"),
            "created_timestamp": Field(6, "int64"),
        },
        "Exemplar": {
            "labels_refs": Field(1, "uint32", is_repeated=True),
            "value": Field(2, "double"),
            "timestamp": Field(3, "int64"),
        },
        "Metadata": {
            "type": Field(1, "int32"),
            "help_ref": Field(3, "uint32"),
            "unit_ref": Field(4, "uint32"),
        },
        "Sample": _SAMPLE,
        "Histogram": _HISTOGRAM,
        "BucketSpan": _SPAN,
    },
)["Request"]

_COUNTER: Final = 1
_HISTOGRAMS: Final = 3
_SUMMARY: Final = 5
_KNOWN_TYPES: Final = range(1, 8)
_GAUGE_HINT: Final = 3
_MILLISECOND_NS: Final = 1_000_000
_NAME: Final = "__name__"


@dataclass(slots=True)
class Written:
    """The result of decoding a request.

    Attributes:
        parts: The part that each record is: `samples` or `histograms`, with its exemplars.
        refused: Samples and histograms that violate the protocol.
        reason: The violation of the first of them.
    """

    parts: list[tuple[str, int]] = field(default_factory=list)
    refused: int = 0
    reason: str = ""

    def refuse(self, times: int, reason: str) -> None:
        self.refused += times
        self.reason = self.reason or reason


@dataclass(frozen=True, slots=True)
class _Series:
    """A series of either version, read.

    Attributes:
        labels: Labels of the request.
        kind: The metadata's number of its type; 0: unknown.
        created_ms: Time of its creation; 0: not sent.
        exemplars: Their labels, values and times in milliseconds.
    """

    labels: Labels
    kind: int
    unit: str
    created_ms: int
    samples: Any
    histograms: Any
    exemplars: Sequence[tuple[Labels, float, int]]


def point_lines(
    body: bytes,
    version: int,
    services: Sequence[str],
    default: str,
    records: RecordMaker,
    written: Written,
) -> Iterator[Made]:
    """The records of a request.

    Args:
        body: The message, decompressed.
        version: 1 or 2.
        services: Labels that name the service; the first that a series has does.
        default: The service of series without them.
        records: Makes them.
        written: Takes what became of each part.

    Raises:
        RemoteProtocolError: It is no such message.
    """
    request = parse(WRITE_2 if version == 2 else WRITE_1, body)
    read = _reader_2(request.symbols) if version == 2 else _reader_1(request.metadata)
    _count_without_place(request, version, records)
    exemplars: dict[Labels, list[tuple[Labels, float, int]]] = {}
    for one in request.timeseries:
        if one.exemplars:
            series = read(one)
            exemplars.setdefault(series.labels, []).extend(series.exemplars)
    for one in request.timeseries:
        series = read(one)
        count = len(series.samples) + len(series.histograms)
        fault = _fault(series, version)
        if fault:
            written.refuse(count, fault)
        elif count:
            found = exemplars.pop(series.labels, [])
            named = dict(series.labels)
            service = next((named[key] for key in services if named.get(key)), default)
            yield from _points(series, named, service, found, records, written)
    records.notes["exemplars_dropped"] += sum(map(len, exemplars.values()))


def _count_without_place(request: Any, version: int, records: RecordMaker) -> None:
    """Count help texts, and the metadata of a request without series, which no other one gets."""
    notes = records.notes
    if version == 2:
        notes["help_texts_dropped"] += sum(1 for it in request.timeseries if it.metadata.help_ref)
        return
    notes["help_texts_dropped"] += sum(1 for one in request.metadata if one.help)
    if not request.timeseries:
        notes["metadata_dropped"] += len(request.metadata)


def _reader_1(metadata: Any) -> Callable[[Any], _Series]:
    """Reads a series of version 1.0, given the types that its request says."""
    known = {one.metric_family_name: (one.type, one.unit) for one in metadata}

    def read(one: Any) -> _Series:
        labels = tuple((label.name, label.value) for label in one.labels)
        name = next((value for key, value in labels if key == _NAME), "")
        kind, unit = known.get(name) or known.get(_family(name)) or (0, "")
        exemplars = [
            (tuple((label.name, label.value) for label in it.labels), it.value, it.timestamp)
            for it in one.exemplars
        ]
        return _Series(labels, kind, unit, 0, one.samples, one.histograms, exemplars)

    return read


def _family(name: str) -> str:
    """The family of a series of a histogram, a summary or a counter."""
    for suffix in ("_bucket", "_count", "_sum", "_total"):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def _reader_2(symbols: Sequence[str]) -> Callable[[Any], _Series]:
    """Reads a series of version 2.0, given the texts of its request."""
    texts = list(symbols)

    def labels_of(refs: Any) -> Labels:
        if len(refs) % 2:
            raise RemoteProtocolError("an odd number of labels_refs")
        found = [texts[ref] for ref in refs]
        return tuple(zip(found[::2], found[1::2], strict=True))

    def read(one: Any) -> _Series:
        try:
            exemplars = [
                (labels_of(it.labels_refs), it.value, it.timestamp) for it in one.exemplars
            ]
            unit = texts[one.metadata.unit_ref] if one.metadata.unit_ref else ""
            labels = labels_of(one.labels_refs)
        except IndexError:
            raise RemoteProtocolError("a reference to a symbol that is not there") from None
        return _Series(
            labels, one.metadata.type, unit, one.created_timestamp,
            one.samples, one.histograms, exemplars,
        )  # fmt: skip

    return read


def _fault(series: _Series, version: int) -> str:
    """Why a series is none of the protocol's; empty when it is one."""
    names = [name for name, _ in series.labels]
    name = next((value for key, value in series.labels if key == _NAME), "")
    if not name:
        return "a series without a name"
    if len(name) > NAME_CHARACTERS_MAX:
        return f"a name of more than {NAME_CHARACTERS_MAX} characters"
    if "" in names or len(set(names)) < len(names):
        return f"{name}: a label without a name, or twice"
    if version == 2 and series.samples and series.histograms:
        return f"{name}: samples and histograms in one series"
    return ""


def _points(
    series: _Series,
    labels: dict[str, str],
    service: str,
    exemplars: list[tuple[Labels, float, int]],
    records: RecordMaker,
    written: Written,
) -> Iterator[Made]:
    """The points of one series; exemplars stand with the last."""
    name = labels.pop(_NAME)
    resource = records.resource_of(service)
    kind = _kind_of(name, labels, series, records)
    given = [("samples", one) for one in series.samples]
    given += [("histograms", one) for one in series.histograms]
    for index, (part, one) in enumerate(given, 1):
        time_ns = one.timestamp * _MILLISECOND_NS
        if not 0 < time_ns <= INT64_MAX:
            written.refuse(1, f"{name}: a time that is none")
            continue
        start_ns = (one.start_timestamp or series.created_ms) * _MILLISECOND_NS
        if not 0 < start_ns <= time_ns:
            start_ns = time_ns
        if part == "samples":
            typed = _sample(kind, one.value, start_ns)
        else:
            if one.reset_hint == _GAUGE_HINT:
                records.notes["gauge_histograms"] += 1
            found = native_histogram(_written(one), start_ns, records.notes)
            if isinstance(found, str):
                written.refuse(1, f"{name}: {found}")
                continue
            typed = found
        count = 0
        if exemplars and index == len(given):
            typed["exemplars"] = _exemplars(exemplars, records)
            count = len(typed["exemplars"])
        written.parts.append((part, count))
        yield records.point(name, resource, labels, typed, time_ns=time_ns, unit=series.unit)


def _written(one: Any) -> NativeHistogram:
    count, zeros = one.count_int or one.count_float, one.zero_count_int or one.zero_count_float
    return NativeHistogram(
        one.schema, count, one.sum, one.zero_threshold, zeros,
        positive=(one.positive_spans, one.positive_deltas, one.positive_counts),
        negative=(one.negative_spans, one.negative_deltas, one.negative_counts),
        custom_bounds=one.custom_values,
    )  # fmt: skip


def _kind_of(
    name: str, labels: Mapping[str, str], series: _Series, records: RecordMaker
) -> tuple[str, bool]:
    """The type of a series' samples, and whether it is monotonic."""
    kind = series.kind
    if series.samples and kind not in _KNOWN_TYPES:
        if name.endswith("_total") or (name.endswith("_bucket") and "le" in labels):
            kind = _COUNTER
        else:
            records.notes["types_unknown"] += len(series.samples)
    if kind == _COUNTER:
        is_sum, is_monotonic = not name.endswith("_created"), True
    elif kind in (_HISTOGRAMS, _SUMMARY):
        is_sum = name.endswith(("_bucket", "_count", "_sum"))
        is_monotonic = not name.endswith("_sum")
    else:
        is_sum, is_monotonic = False, False
    return ("sum" if is_sum else "gauge"), is_monotonic


def _sample(kind: tuple[str, bool], value: float, start_ns: int) -> Json:
    """The fields of a sample's point that belong to its type."""
    typed: Json = {"metric_type": kind[0]}
    if kind[0] == "sum":
        typed |= window(start_ns) | {"is_monotonic": kind[1]}
    if is_stale(value):
        return typed | {"flags": NO_RECORDED_VALUE}
    return typed | {"value": value}


def _exemplars(
    given: list[tuple[Labels, float, int]], records: RecordMaker
) -> list[dict[str, Any]]:
    """The latest exemplars, as many as a record may have."""
    found: list[dict[str, Any]] = []
    for labels, value, time_ms in sorted(given, key=lambda one: one[2])[-EXEMPLARS_MAX:]:
        time_ns = time_ms * _MILLISECOND_NS
        if not 0 < time_ns <= INT64_MAX:
            continue
        attributes: dict[str, Any] = dict(labels)
        one: dict[str, Any] = {"time_unix_nano": time_ns, "value": not_finite_word(value)}
        trace = take_trace(attributes, roles_of(attributes))
        if trace is not None:
            one |= trace.fields()
        if attributes:
            one["attributes"], _ = flatten(attributes)
        found.append(one)
    records.notes["exemplars_dropped"] += len(given) - len(found)
    return found
