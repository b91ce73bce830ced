"""Decoder of Prometheus exposition, in text, OpenMetrics or protobuf, to metric points.

    counter                   cumulative sum, monotonic, named as the sample (``..._total``)
    gauge, untyped, info,     gauge
    stateset
    native histogram          exponential histogram
    histogram                 histogram: cumulative buckets by ``le`` become counts between bounds
    summary, gauge histogram  their samples: gauges, and for ``_count`` and ``_sum`` sums

Sums and histograms began when their ``_created`` says, else when the exporter's process did, if it
says so (``process_start_time_seconds``), else when it was first scraped. NaN and the infinities are
values as others. What is counted are the samples of a family that makes no sense: bucket counts
that are none, bounds that are no numbers, times that no record can hold; and those of a histogram
without its last bucket.

Exemplars, which OpenMetrics has, stay with their point: the latest, as many as a record may have.
The others are counted.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Exemplar, Sample

from penstock.collector.decode.attributes import flatten
from penstock.collector.decode.prometheus.exposition_protobuf import (
    MEDIA_TYPE,
    Families,
    NativePoint,
    read_families,
)
from penstock.collector.decode.prometheus.native_histogram import native_histogram, window
from penstock.collector.errors import UndecodableError
from penstock.specs.limits import EXEMPLARS_MAX, INT64_MAX
from penstock.specs.models.scalars import not_finite_word

_START: Final = "process_start_time_seconds"
_NANOSECONDS: Final = 1_000_000_000
_SAMPLE_LINE: Final = re.compile(rb"^[ \t]*[^#\s]", re.MULTILINE)
_COMMENT: Final = re.compile(
    rb"^[ \t]*#(?![ \t]*(?:HELP|TYPE|UNIT)[ \t]|[ \t]*EOF[ \t\r]*$)", re.MULTILINE
)
_TRACE_ID: Final = re.compile(r"(?!0+\Z)[0-9a-f]{32}")
_SPAN_ID: Final = re.compile(r"(?!0+\Z)[0-9a-f]{16}")
_MALFORMED: Final = (
    ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError,
)  # fmt: skip
"""Exceptions that the parser raises, some of them only when its samples are read."""
_CUMULATIVE: Final = frozenset({"counter", "histogram", "summary"})


@dataclass(frozen=True, slots=True)
class ScrapedPoint:
    """One point; `time_ns` is None for the time of the scrape."""

    name: str
    unit: str
    labels: dict[str, str]
    typed: dict[str, Any]
    time_ns: int | None = None
    exemplars: list[Exemplar] = field(default_factory=list)


@dataclass(slots=True)
class Scraped:
    """The result of one scrape.

    Attributes:
        samples: The number of samples in the text.
        malformed: Number of samples in families that make no sense.
        exemplars_dropped: Those that no record has room for.
        notes: Count of what else is left out, by reason.
    """

    points: list[ScrapedPoint] = field(default_factory=list)
    samples: int = 0
    malformed: int = 0
    exemplars_dropped: int = 0
    notes: Counter[str] = field(default_factory=Counter)


def read_exposition(
    body: bytes, content_type: str, *, scrape_ns: int, first_scrape_ns: int, max_samples: int
) -> Scraped:
    """Read an exporter's answer.

    Args:
        body: The answer.
        content_type: Its header, which tells the formats apart.
        scrape_ns: Time of the scrape; also of exemplars without one.
        first_scrape_ns: Time of the exporter's first scrape.
        max_samples: An answer with more is refused whole.

    Raises:
        UndecodableError: It is in none of the formats, or too much.
    """
    if content_type.startswith(MEDIA_TYPE):
        found = read_families(body, max_samples)
    else:
        found = _read_text(body, content_type, max_samples)
    scraped = Scraped(samples=found.samples, notes=found.notes)
    start_ns = _start_ns(found.metrics, first_scrape_ns)
    for family in found.metrics:
        try:
            points, left_out = _points(family, start_ns, scrape_ns)
            exemplars = [_exemplars(point, scrape_ns) for point in points]
        except _MALFORMED:
            scraped.malformed += len(family.samples)
            continue
        scraped.malformed += left_out
        for point, of_point in zip(points, exemplars, strict=True):
            _take(scraped, point, of_point)
    for native in found.natives:
        _take_native(scraped, native, scrape_ns, start_ns)
    return scraped


def _read_text(body: bytes, content_type: str, max_samples: int) -> Families:
    # Before it is parsed, which takes a minute of all that fits into an answer.
    if sum(1 for _ in _SAMPLE_LINE.finditer(body)) > max_samples:
        raise UndecodableError(f"more than {max_samples} samples")
    parse = (
        open_metrics_families
        if content_type.startswith("application/openmetrics-text")
        else text_string_to_metric_families
    )
    found = Families()
    found.notes["comments_dropped"] += sum(1 for _ in _COMMENT.finditer(body))
    try:
        for family in parse(body.decode()):
            found.count_without_place(family.documentation, family.type)
            found.metrics.append(family)
            found.samples += len(family.samples)
    except _MALFORMED as error:
        raise UndecodableError(f"not Prometheus metrics: {error}"[:200]) from None
    return found


def _take_native(scraped: Scraped, native: NativePoint, scrape_ns: int, start_ns: int) -> None:
    """Add the point of a native histogram; one that makes no sense is counted."""
    time_ns = scrape_ns if native.time_ns is None else native.time_ns
    begun_ns = native.created_ns or start_ns
    typed = native_histogram(native.histogram, min(begun_ns, time_ns), scraped.notes)
    if isinstance(typed, str) or not 0 < time_ns <= INT64_MAX:
        scraped.malformed += 1
        return
    point = ScrapedPoint(
        native.name, native.unit, dict(native.labels), typed, native.time_ns, native.exemplars
    )
    _take(scraped, point, _exemplars(point, scrape_ns))


def _take(scraped: Scraped, point: ScrapedPoint, exemplars: list[dict[str, Any]]) -> None:
    """Count the exemplars that a record has no room for, and leave them out."""
    exemplars.sort(key=lambda one: one["time_unix_nano"])
    if exemplars:
        point.typed["exemplars"] = exemplars[-EXEMPLARS_MAX:]
    scraped.exemplars_dropped += len(point.exemplars) - len(exemplars[-EXEMPLARS_MAX:])
    scraped.points.append(point)


def _start_ns(families: Iterable[Metric], first_scrape_ns: int) -> int:
    for family in families:
        for sample in family.samples:
            if sample.name == _START and 0 < sample.value < first_scrape_ns / _NANOSECONDS:
                return int(sample.value * _NANOSECONDS)
    return first_scrape_ns


def _points(family: Metric, start_ns: int, scrape_ns: int) -> tuple[list[ScrapedPoint], int]:
    """A family's points, and how many samples are in none of them."""
    starts = _Starts(family, start_ns, scrape_ns)
    if family.type == "histogram":
        return _histograms(family, starts)
    return list(_numbers(family, starts)), 0


class _Starts:
    """The times at which the sums of a family began: those of their ``_created``, or one of all.

    Args:
        default_ns: Time of those that have no ``_created``, or one that is not past.
    """

    def __init__(self, family: Metric, default_ns: int, scrape_ns: int) -> None:
        self._default_ns = default_ns
        self._created: dict[frozenset[tuple[str, str]], int] = {}
        for sample in family.samples:
            if _says_creation(family, sample) and 0 < sample.value < scrape_ns / _NANOSECONDS:
                own = frozenset(sample.labels.items())
                self._created[own] = int(sample.value * _NANOSECONDS)

    def of(self, labels: Mapping[str, str]) -> int:
        """The time of a series; the bound of a bucket is none of its labels here."""
        if not self._created:
            return self._default_ns
        return self._created.get(frozenset(labels.items()), self._default_ns)


def _says_creation(family: Metric, sample: Sample) -> bool:
    """Return whether a sample is the time of creation of a series, and no measurement."""
    return family.type in _CUMULATIVE and sample.name == f"{family.name}_created"


def _numbers(family: Metric, starts: _Starts) -> Iterator[ScrapedPoint]:
    for sample in family.samples:
        if _says_creation(family, sample):
            continue  # the time itself, not a measurement
        is_sum = family.type == "counter" or (
            family.type == "summary" and sample.name.endswith(("_count", "_sum"))
        )
        typed: dict[str, Any] = {"metric_type": "gauge", "value": float(sample.value)}
        if is_sum:
            typed |= {"metric_type": "sum", **window(starts.of(sample.labels))}
            typed["is_monotonic"] = not sample.name.endswith("_sum")
        yield _point(family, sample, typed)


def _histograms(family: Metric, starts: _Starts) -> tuple[list[ScrapedPoint], int]:
    """Each set of labels of a histogram as one point; one without its last bucket is left out."""
    points: list[ScrapedPoint] = []
    left_out = 0
    series: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for sample in family.samples:
        labels = {key: value for key, value in sample.labels.items() if key != "le"}
        empty = {"buckets": [], "at": sample, "samples": 0, "exemplars": []}
        found = series.setdefault(tuple(sorted(labels.items())), empty)
        found["samples"] += 1
        if sample.exemplar is not None:
            found["exemplars"].append(sample.exemplar)
        if sample.name.endswith("_bucket"):
            found["buckets"].append((float(sample.labels.get("le", "nan")), sample.value))
        elif sample.name.endswith("_sum"):
            found["sum"] = float(sample.value)
    for labels_key, found in series.items():
        buckets = sorted(found["buckets"])
        if not buckets or buckets[-1][0] != math.inf:
            left_out += found["samples"]
            continue
        totals = [_int64(count) for _, count in buckets]
        before = [0, *totals[:-1]]
        typed: dict[str, Any] = {
            "metric_type": "histogram",
            "count": totals[-1],
            "bucket_counts": [now - then for now, then in zip(totals, before, strict=True)],
            "explicit_bounds": [bound for bound, _ in buckets[:-1]],
            **window(starts.of(dict(labels_key))),
        }
        if "sum" in found:
            typed["sum"] = found["sum"]
        point = _point(family, found["at"], typed)
        points.append(
            ScrapedPoint(
                family.name, point.unit, dict(labels_key), typed, point.time_ns, found["exemplars"]
            )
        )
    return points, left_out


def _exemplars(point: ScrapedPoint, scrape_ns: int) -> list[dict[str, Any]]:
    """Return those exemplars of a point that a record can hold."""
    found: list[dict[str, Any]] = []
    for exemplar in point.exemplars:
        time = exemplar.timestamp
        seconds = scrape_ns / _NANOSECONDS if time is None else float(time)
        if not 0 <= seconds < INT64_MAX / _NANOSECONDS:
            continue
        attributes: dict[str, Any] = dict(exemplar.labels)
        one: dict[str, Any] = {
            "time_unix_nano": scrape_ns if time is None else int(seconds * _NANOSECONDS),
            "value": not_finite_word(float(exemplar.value)),
        }
        if _TRACE_ID.fullmatch(attributes.get("trace_id", "")):
            one["trace_id"] = attributes.pop("trace_id")
            if _SPAN_ID.fullmatch(attributes.get("span_id", "")):
                one["span_id"] = attributes.pop("span_id")
        if attributes:
            one["attributes"], _ = flatten(attributes)
        found.append(one)
    return found


def _point(family: Metric, sample: Sample, typed: dict[str, Any]) -> ScrapedPoint:
    time_ns = None
    if sample.timestamp is not None:
        time_ns = _int64(float(sample.timestamp) * _NANOSECONDS)
        if "start_time_unix_nano" in typed:
            typed["start_time_unix_nano"] = min(typed["start_time_unix_nano"], time_ns)
    exemplars = [] if sample.exemplar is None else [sample.exemplar]
    return ScrapedPoint(sample.name, family.unit, dict(sample.labels), typed, time_ns, exemplars)


def _int64(value: float) -> int:
    """Return a sample's value as a whole number that a record can hold.

    Raises:
        ValueError: It is none.
        OverflowError: Likewise.
    """
    number = int(value)
    if abs(number) > INT64_MAX:
        raise OverflowError("beyond 64 bits")
    return number
