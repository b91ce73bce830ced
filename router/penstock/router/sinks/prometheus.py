"""The Prometheus sink: metrics by remote write 1.0, for Prometheus, Mimir and VictoriaMetrics.

    POST URL
    Content-Type: application/x-protobuf
    Content-Encoding: snappy
    X-Prometheus-Remote-Write-Version: 0.1.0
    prometheus.WriteRequest{ timeseries { labels{name,value}… samples{value,timestamp}… }… }

Names and labels follow OpenTelemetry's "Prometheus and OpenMetrics compatibility": dots become
`_`, the unit and `_total` are appended (unless `suffixes: false`), `service.name` and its namespace
are `job`, `service.instance.id` is `instance`. A histogram is the series `_bucket`, `_sum` and
`_count`.

The same series, time and value again is no new sample in Prometheus if it is its series' newest; an
older one is refused as out of order, with the whole request. So of a request that may have come
through already (no answer came, or it is of the first batch since the start) a lone sample that is
refused so counts as there, and a batch that comes again adds nothing.

Version 1.0 is spoken because every receiver takes it: one that does not know 2.0 answers 204 to it
all the same and stores nothing.

Two metrics that have one name then are counted (`names_merged`). NaN and the infinities are values
as others.

Not for this protocol, and therefore dead letters: records that are no metrics, sums and histograms
of delta temporality, exponential histograms. So is a sample more than `future_s` ahead of the
router's clock: Prometheus takes it and from then on refuses every sample of the present as too old.

Tasks of Spark send, each the samples of one partition of the log in their order, one request after
the other; what is not taken the driver brings to an end. A batch that may have come before the
driver sends alone, for it knows which samples are in doubt; so it does with what a task had that
Spark runs again.

Prometheus rolls a whole request back for one bad sample, with 400, or with 500 where it is told to
take samples out of order: in both cases it is bisected. One that is out of order in a request that
cannot have come through is a dead letter.
"""

import math
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

import pyarrow as pa
from pydantic import Field
from typing_extensions import override

from penstock.router.columns.json_objects import text_of
from penstock.router.delivery.classify import HttpResponse
from penstock.router.delivery.result import DeliveryResult, Failed, Fault, Rejected, Success
from penstock.router.sinks.http.client import HttpRequest
from penstock.router.sinks.http.encode import Json, record_of, section, untimely
from penstock.router.sinks.http.metric_names import MetricNames
from penstock.router.sinks.http.protobuf import field_bytes, field_double, field_varint
from penstock.router.sinks.http.request_sink import Item, Request, Row
from penstock.router.sinks.http.settings import HttpTaskSettings, RequestBatch
from penstock.router.sinks.http.task_sink import HttpTaskSink, WrittenRequests
from penstock.router.sinks.loki import fit_name
from penstock.router.sinks.sink import Guarantee, Replay, SinkContext
from penstock.service.config_types import Secret

STALE: Final[float] = struct.unpack("<d", (0x7FF0_0000_0000_0002).to_bytes(8, "little"))[0]
"""The NaN that says that a series has ended (prometheus/model/value)."""
_NO_RECORDED_VALUE: Final = 1
_MILLISECOND_NS: Final = 1_000_000
_LATE: Final = re.compile(rb"out[ -]of[ -]order|too[ -]old", re.IGNORECASE)
"""Pattern of answers to a sample behind its series' newest, by Prometheus and Mimir."""
_KEEPS_THE_GOOD: Final = re.compile(rb"err-mimir-|\buser=\S*: ")
"""Pattern of Mimir and Cortex on a bad sample; they store the others of its request."""
_KNOWN_LENGTH_MAX: Final = 256
"""Maximum bytes of labels that are cached."""
_SAMPLES_OF_ONE_REQUEST: Final = 2000
"""Maximum samples of a request, as Prometheus itself sends; more make a refusal dearer."""

_UNITS: Final = {
    "s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds",
    "min": "minutes", "h": "hours", "d": "days", "By": "bytes", "KiBy": "kibibytes",
    "MiBy": "mebibytes", "GiBy": "gibibytes", "TiBy": "tibibytes", "KBy": "kilobytes",
    "MBy": "megabytes", "GBy": "gigabytes", "TBy": "terabytes", "m": "meters", "V": "volts",
    "A": "amperes", "J": "joules", "W": "watts", "g": "grams", "Cel": "celsius", "Hz": "hertz",
    "%": "percent",
}  # fmt: skip
"""UCUM's to Prometheus's, as OpenTelemetry's compatibility document has them."""


class PrometheusSink(HttpTaskSettings):
    """Metrics by Prometheus remote write."""

    type: Literal["prometheus"]
    compression: Literal["none"] = "none"
    """Beside the protocol's own, which is Snappy."""
    max_in_flight: Literal[1] = 1
    """More would break the order of a series."""
    suffixes: bool = True
    resource_labels: list[str] = Field(default_factory=list)
    fixed_labels: dict[str, str] = Field(default_factory=dict)
    tenant: str | None = None
    token: Secret | None = None
    future_s: Annotated[float, Field(gt=0)] = 600.0
    batch: RequestBatch = RequestBatch(max_records=_SAMPLES_OF_ONE_REQUEST)

    @override
    def about(self) -> str:
        return f"remote write to {self.shown_url}; metrics only, each sample once"


def _label(name: str, value: str) -> bytes:
    return field_bytes(1, field_bytes(1, name.encode()) + field_bytes(2, value.encode()))


_known_label: Final = lru_cache(2048)(_label)


class Series(NamedTuple):
    """One sample of one series; `labels` are sorted by name and hold `__name__`."""

    labels: tuple[tuple[str, str], ...]
    value: float
    time_ms: int

    def encoded(self) -> bytes:
        labels = b"".join(
            [
                _known_label(name, value)
                if len(name) + len(value) <= _KNOWN_LENGTH_MAX
                else _label(name, value)
                for name, value in self.labels
            ]
        )
        sample = field_double(1, self.value) + field_varint(2, self.time_ms)
        return field_bytes(1, labels + field_bytes(2, sample))


class PrometheusWrite(HttpTaskSink):
    """Writes samples; see the module's docstring."""

    config_class = PrometheusSink
    _config: PrometheusSink
    guarantee = Guarantee(
        Replay.EFFECTIVELY_ONCE,
        "a sample of the same series, time and value is the same sample; one that is refused as out"
        " of order counts as there, if its request may have come before",
        within="the batch that was in work",
    )

    repeats_in_tasks: ClassVar[bool] = False

    def __init__(self, config: PrometheusSink, context: SinkContext) -> None:
        super().__init__(config, context)
        self._names = MetricNames(context.sink, context.meter)
        self._came_before = False
        self._batch_came_before = False
        self._doubtful: set[int] = set()

    @override
    def open(self) -> None:
        super().open()
        self._came_before = True

    @override
    def start_over(self) -> None:
        self._came_before = False

    @override
    def go_on(self) -> None:
        self._came_before = True

    @override
    def begin(self) -> None:
        self._batch_came_before = self._came_before
        self._came_before = True  # unless this batch gets to its end

    @override
    def is_ready(self) -> bool:
        return not self._batch_came_before

    @override
    def write(self, rows: pa.Table) -> None:
        self.begin()
        super().write(rows)

    @override
    def commit(self, results: Sequence[WrittenRequests]) -> None:
        super().commit(results)
        self._came_before = False

    @override
    def prepare_to_settle(self, requests: Sequence[Request], taken: Sequence[str]) -> None:
        doubtful = (it for it in requests if it.is_doubtful or self._batch_came_before)
        self._doubtful = {row for request in doubtful for row in request.rows}

    @override
    def has_doubt(self, request: Request, result: DeliveryResult) -> bool:
        return not self._doubtful.isdisjoint(request.rows)

    @override
    def hold(self, rows: pa.Table) -> None:
        self._doubtful = set()

    @override
    def exchange(self, request: Request, attempt: int) -> DeliveryResult:
        verdict = super().exchange(request, attempt)
        if isinstance(verdict, Failed):
            self._doubtful.update(request.rows)
        return verdict

    @override
    def classify_answer(self, answer: HttpResponse, request: Request) -> DeliveryResult:
        verdict = super().classify_answer(answer, request)
        if self._transport is not None and self._transport.repeated:
            self._doubtful.update(request.rows)
        if not isinstance(verdict, Rejected | Failed):
            return verdict
        if len(request.items) > 1 and _KEEPS_THE_GOOD.search(answer.body):
            self._doubtful.update(request.rows)
        if not _LATE.search(answer.body):
            return verdict
        if len(request.items) == 1 and self._doubtful.issuperset(request.rows):
            self.context.meter.count("already_there")
            return Success()
        # It is about that sample's time, whether others are taken or not.
        return Rejected(replace(verdict.fault, about_record=True))

    @override
    def encode(self, row: Row) -> Item | Fault:
        record = record_of(row)
        if record is None or row["kind"] != "metric":
            return Fault("not_a_metric", f"a record of kind {row['kind']!r} has no samples")
        try:
            ahead_ns = record["time_unix_nano"] - self.context.clock.unix_ns()
            if fault := untimely(ahead_ns, future_s=self._config.future_s):
                return fault
            content = b"".join([series.encoded() for series in self._series(record)])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            return Fault("not_encodable", str(error))
        return Item(content, len(content))

    @override
    def place_of(self, row: Row) -> str | None:
        first, *others = self._series(record_of(row) or {})
        labels = ", ".join(
            f"{name}={text_of([value])[1:-1]}" for name, value in first.labels if name != "__name__"
        )
        more = f", and {len(others)} more series" if others else ""
        return f"{dict(first.labels)['__name__']}{{{labels}}} at {first.time_ms} ms{more}"

    def _series(self, record: Json) -> Iterator[Series]:
        if record.get("temporality") == "delta":
            raise ValueError("remote write has no delta temporality; make it cumulative before")
        labels = self._labels(record)
        time_ms = record["time_unix_nano"] // _MILLISECOND_NS
        stale = bool((record.get("flags") or 0) & _NO_RECORDED_VALUE)
        name = self._name(record)

        def series(suffix: str, value: float, **more: str) -> Series:
            named = {**labels, **more, "__name__": name + suffix}
            return Series(tuple(sorted(named.items())), STALE if stale else value, time_ms)

        match record["metric_type"]:
            case "gauge" | "sum":
                yield series("", 0.0 if stale else float(record["value"]))
            case "histogram":
                yield from _histogram(record, series, stale=stale)
            case other:
                raise ValueError(f"remote write 1.0 has no {other} here; send it by OTLP")

    def _name(self, record: Json) -> str:
        if not isinstance(record["name"], str):
            raise TypeError("its name is no text")
        fitted = self._fitted(record)
        self._names.note(record["name"], fitted)
        return fitted

    def _fitted(self, record: Json) -> str:
        name = fit_name(record["name"])
        if not self._config.suffixes:
            return name
        unit = _UNITS.get(record.get("unit", ""), "")
        if record.get("unit") == "1" and record["metric_type"] == "gauge":
            unit = "ratio"
        total = record["metric_type"] == "sum" and record.get("is_monotonic")
        name = name.removesuffix("_total") if total else name
        if unit and not name.endswith(f"_{unit}"):
            name = f"{name}_{unit}"
        return f"{name}_total" if total else name

    def _labels(self, record: Json) -> dict[str, str]:
        resource = section(record, "resource")
        named = {name: resource.get(name) for name in self._config.resource_labels}
        pairs = {**named, **section(record, "attributes")}
        labels: dict[str, str] = {}
        for key, value in sorted(pairs.items()):
            if value is not None and value != "":
                name, text = fit_name(key), text_of(value)
                # Two attributes may have one name here; the document says to join their values.
                labels[name] = f"{labels[name]};{text}" if name in labels else text
        service, namespace = resource.get("service.name"), resource.get("service.namespace")
        if job := "/".join([str(part) for part in (namespace, service) if part]):
            labels["job"] = job
        if instance := str(resource.get("service.instance.id", "")):
            labels["instance"] = instance
        return labels | self._config.fixed_labels

    @override
    def request_of(self, request: Request, attempt: int) -> HttpRequest:
        body = b"".join(item.content for item in request.items)
        headers = {
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "snappy",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }
        if self._config.tenant:
            headers["X-Scope-OrgID"] = self._config.tenant
        secrets = self.own_headers()
        if self._config.token is not None:
            secrets["Authorization"] = f"Bearer {self._config.token.read()}"
        packed: bytes = pa.compress(body, codec="snappy", asbytes=True)
        return HttpRequest(self.path(), headers, packed, secrets=secrets)


def _histogram(record: Any, series: Callable[..., Series], *, stale: bool) -> Iterator[Series]:
    """Classic buckets: cumulative counts, the last one of everything."""
    bounds = [*record.get("explicit_bounds", ()), math.inf]
    counts = [0] * len(bounds) if stale else record["bucket_counts"]
    if len(counts) != len(bounds):
        raise ValueError("bucket_counts must be one longer than explicit_bounds")
    for bound, count in zip(bounds, accumulate(counts), strict=True):
        yield series("_bucket", float(count), le="+Inf" if bound == math.inf else _number(bound))
    if stale or record.get("sum") is not None:
        yield series("_sum", float(record.get("sum") or 0))
    yield series("_count", float(record.get("count") or 0))


def _number(bound: float) -> str:
    """A bound as Prometheus writes it: the shortest text, without a needless `.0`."""
    return repr(float(bound)).removesuffix(".0")
