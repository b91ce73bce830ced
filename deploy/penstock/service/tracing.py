"""Spans of a process's own work, sent through Penstock's own pipeline.

Off unless the section `tracing` is there: no span, no thread. On, a share of the work is traced,
at most so many spans a second, and what waits to be sent is bounded; what is left out is counted.

What is traced is what is handled at once, never a record: a batch up to its ack (collector), a turn
up to its commit and a fetch (logd), a micro-batch (router). A batch's trace id is a hash of its
producer and sequence, which every frame carries, so logd's span links to the collector's with
nothing added to the format. Spans leave as OTLP, which any backend takes.

Nothing is traced about the way of spans: work that only moves Penstock's own spans makes none.
Which subjects these travel on, `own_subjects` says; who makes spans asks `is_own`. Should that be
configured wrongly, the rate still bounds what a loop can make.

A span is counted once it is begun, and has one outcome: sent, rate_limited, queue_full, refused or
lost (the process ended first). Those that wait are neither.

Sends a process's spans to a collector: OTLP over HTTP, as JSON, on a thread of its own.

https://opentelemetry.io/docs/specs/otlp/#otlphttp: 200 is taken, 429, 502, 503 and 504 ask to come
again, and so does a collector that is not there; other answers are for good. A collector that
stored spans and whose answer was lost gets them twice, with the same ids.
"""

import hashlib
import json
import random
import ssl
import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from pydantic import BaseModel, ConfigDict, Field, field_validator

from penstock.base.backoff import Backoff
from penstock.base.clock import Clock, SystemClock
from penstock.base.errors import ConfigError
from penstock.base.http.client import AnswerTooLargeError, HttpClient, Request, client_tls
from penstock.service.config_types import FilePath
from penstock.service.release import release

OUTCOMES: Final = ("sent", "rate_limited", "queue_full", "refused", "lost")
"""What becomes of spans."""

SERVICES: Final = {part: f"penstock.{part}" for part in ("collector", "logd", "router", "console")}
"""`service.name` of each process's spans."""

OWN_SUBJECTS: Final = tuple(
    f"telemetry.traces.{name.replace('.', '_')}" for name in SERVICES.values()
)
"""Where a collector publishes them by default."""

BATCH_SPANS_MAX: Final = 256
"""Of one request."""

LINKS_MAX: Final = 16
"""Of one span."""

_SHARE_BITS: Final = 56
"""The low bits of a trace's id decide, as W3C's Trace Context has it, so that all who meet a trace
with the same `sample` decide alike."""

Kind = Literal["INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"]
Value = str | int | float | bool


def address_of(endpoint: str) -> tuple[str, int]:
    """The host and the port of an endpoint.

    Raises:
        ValueError: It has none that could be asked.
    """
    parts = urlsplit(endpoint)
    if parts.path or parts.query or parts.fragment:
        msg = f"{endpoint}: nothing may follow HOST:PORT"
        raise ValueError(msg)
    if not parts.hostname:
        msg = f"{endpoint}: there is no host; it is http://HOST:PORT or https://HOST:PORT"
        raise ValueError(msg)
    parts.hostname.encode("idna")
    port = parts.port
    if port == 0:
        msg = f"{endpoint}: Port 0 is none"
        raise ValueError(msg)
    return parts.hostname, port or (443 if parts.scheme == "https" else 80)


class TracingSection(BaseModel):
    """The section `tracing` of a part's configuration.

    Attributes:
        enabled: Off where it is false, as without the section.
        endpoint: Of OTLP over HTTP: a collector's source `otlp`, as in http://127.0.0.1:4318.
        ca_file: PEM; whom to trust instead of the system's authorities.
        sample: The share of the work that is traced.
        spans_per_s_max: No more spans than these, whatever happens.
        waiting_max: Spans that may wait to be sent.
        own_subjects: Subjects on which the collectors publish Penstock's own spans.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = True
    endpoint: Annotated[str, Field(pattern=r"^https?://[^\s/@]+$")]
    ca_file: FilePath | None = None
    sample: Annotated[float, Field(ge=0, le=1)] = 0.01
    spans_per_s_max: Annotated[float, Field(gt=0, le=10_000)] = 20.0
    waiting_max: Annotated[int, Field(ge=1, le=65_536)] = 2048
    own_subjects: tuple[Annotated[str, Field(min_length=1, max_length=512)], ...] = OWN_SUBJECTS

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str) -> str:
        address_of(endpoint)
        return endpoint


@dataclass(slots=True, eq=False)
class Span:
    """A piece of work that is traced; `end` it once."""

    tracer: "Tracer"
    name: str
    kind: Kind
    trace_id: int
    span_id: int
    parent_id: int
    begun_unix_ns: int
    begun_ns: int
    ended_unix_ns: int = 0
    error: str = ""
    attributes: dict[str, Value] = field(default_factory=dict)
    links: list[tuple[int, int]] = field(default_factory=list)

    def end(self, *, error: str = "", **attributes: Value) -> None:
        """It is over; `error` says why it failed. In names of attributes, `__` is a dot."""
        if self.ended_unix_ns:
            return
        self.error = error
        self.attributes |= {name.replace("__", "."): value for name, value in attributes.items()}
        self.tracer.ended(self)

    def link(self, trace_id: int, span_id: int) -> None:
        """It has to do with another trace's span; of many links the first are kept."""
        if len(self.links) < LINKS_MAX:
            self.links.append((trace_id, span_id))


class Tracer:
    """Begins spans, and holds those that ended until they are sent. Used on any thread.

    Args:
        section: As configured.
        clock: For time.
        draw: Decides what is traced, and makes ids.
        own: Further subjects of Penstock's own spans.

    Attributes:
        came: Spans wait.
        full: So many wait that nothing is gained by waiting for others.
    """

    def __init__(
        self,
        section: TracingSection,
        *,
        clock: Clock | None = None,
        draw: random.Random | None = None,
        own: Iterable[str] = (),
    ) -> None:
        self.own_subjects: frozenset[str] = frozenset(section.own_subjects)
        self.add_own(own)
        self._clock = clock or SystemClock()
        self._random = draw or random.Random()  # noqa: S311 - a sample, not a secret
        self._share = section.sample
        self._threshold = int(section.sample * (1 << _SHARE_BITS))
        self._rate = section.spans_per_s_max
        self._room = self._room_max = max(1.0, section.spans_per_s_max)
        self._filled_ns = self._clock.monotonic_ns()
        self._waiting_max = section.waiting_max
        self._ended: deque[Span] = deque()
        self._sending = 0
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._enough = min(BATCH_SPANS_MAX, section.waiting_max)
        self._is_over = False
        self.came: Final = threading.Event()
        self.full: Final = threading.Event()

    def start(
        self, name: str, *, kind: Kind = "INTERNAL", trace_id: int = 0, ago_ns: int = 0
    ) -> Span | None:
        """A span that begins a trace, or None where none is wanted.

        Args:
            name: What is done; a few words, the same ones each time.
            kind: As OpenTelemetry has it.
            trace_id: Of whatever the work is about, see `trace_of`; it decides. 0: chance decides.
            ago_ns: Since when it is being done.
        """
        if not self._is_sampled(trace_id) or not self._takes_one():
            return None
        return self._begun(name, kind, trace_id or self._random.getrandbits(128) | 1, 0, ago_ns)

    def start_rare(self, name: str, *, kind: Kind = "INTERNAL", ago_ns: int = 0) -> Span | None:
        """As `start`, of what happens rarely and is always of interest: only the rate decides."""
        if not self._takes_one():
            return None
        return self._begun(name, kind, self._random.getrandbits(128) | 1, 0, ago_ns)

    def part(
        self, of: Span | None, name: str, *, kind: Kind = "INTERNAL", ago_ns: int = 0
    ) -> Span | None:
        """A span for a part of what another is about, if there is one, and the rate allows it."""
        if of is None or not self._takes_one():
            return None
        return self._begun(name, kind, of.trace_id, of.span_id, ago_ns)

    def _begun(self, name: str, kind: Kind, trace_id: int, parent_id: int, ago_ns: int) -> Span:
        return Span(
            self,
            name,
            kind,
            trace_id,
            self._random.getrandbits(64) | 1,
            parent_id,
            self._clock.unix_ns() - ago_ns,
            self._clock.monotonic_ns() - ago_ns,
        )

    def now_ns(self) -> int:
        """What `ago_ns` is measured by."""
        return self._clock.monotonic_ns()

    def add_own(self, subjects: Iterable[str]) -> None:
        """Penstock's own spans travel there, too; what waits may still go where it went before."""
        self.own_subjects |= frozenset(subjects)
        self._own_bytes = frozenset(subject.encode() for subject in self.own_subjects)

    def is_own(self, subject: str | bytes) -> bool:
        """Whether what travels there are Penstock's own spans."""
        return subject in (self._own_bytes if isinstance(subject, bytes) else self.own_subjects)

    def ended(self, span: Span) -> None:
        """A span is over; `Span.end` calls it."""
        span.ended_unix_ns = span.begun_unix_ns + max(0, self._clock.monotonic_ns() - span.begun_ns)
        with self._lock:
            if self._is_over:
                self._counts["lost"] += 1
                return
            if len(self._ended) + self._sending >= self._waiting_max:
                self._counts["queue_full"] += 1
                return
            self._ended.append(span)
            enough = len(self._ended) >= self._enough
        self.came.set()
        if enough:
            self.full.set()

    def take(self) -> list[Span]:
        """What is to be sent next; they count as waiting until `settle`."""
        with self._lock:
            spans = [self._ended.popleft() for _ in range(min(len(self._ended), BATCH_SPANS_MAX))]
            if not self._ended:
                self.came.clear()
            if len(self._ended) < self._enough:
                self.full.clear()
            self._sending = len(spans)
            return spans

    def settle(self, outcomes: Mapping[str, int]) -> None:
        """What became of the spans that were taken."""
        with self._lock:
            if not self._is_over:  # else they are counted
                self._counts.update(outcomes)
                self._sending = 0

    def give_up(self) -> None:
        """Nothing is sent any more, and what becomes of what is being sent is not waited for."""
        with self._lock:
            self._counts["lost"] += len(self._ended) + self._sending
            self._ended.clear()
            self._sending, self._is_over = 0, True

    def counts(self) -> dict[str, int]:
        """Spans by outcome, and those that wait."""
        with self._lock:
            waiting = len(self._ended) + self._sending
            return {name: self._counts[name] for name in OUTCOMES} | {"waiting": waiting}

    def _is_sampled(self, trace_id: int) -> bool:
        if trace_id:
            return trace_id & ((1 << _SHARE_BITS) - 1) < self._threshold
        return self._random.random() < self._share

    def _takes_one(self) -> bool:
        """Whether the rate allows for another span."""
        now_ns = self._clock.monotonic_ns()
        with self._lock:
            self._room += (now_ns - self._filled_ns) * self._rate / 1e9
            self._room = min(self._room, self._room_max)
            self._filled_ns = now_ns
            if self._room < 1:
                self._counts["rate_limited"] += 1
                return False
            self._room -= 1
            return True


def trace_of(producer: bytes, sequence: int) -> int:
    """The id of a batch's trace: the same for whoever knows its producer and its sequence."""
    digest = hashlib.blake2b(producer + sequence.to_bytes(8, "big"), digest_size=16).digest()
    return int.from_bytes(digest, "big") or 1


def span_of(trace_id: int) -> int:
    """The id of the span with which a batch's trace begins."""
    return trace_id >> 64 or 1


def span_metrics(process: str, counts: Mapping[str, int]) -> Iterable[Metric]:
    """What became of a process's spans, for Prometheus; without `counts`, nothing is traced."""
    spans = CounterMetricFamily(
        f"penstock_{process}_spans",
        "Spans of its own work, by what became of them",
        labels=["outcome"],
    )
    waiting = GaugeMetricFamily(f"penstock_{process}_spans_waiting", "Spans not sent yet")
    for name in OUTCOMES if counts else ():
        spans.add_metric([name], counts.get(name, 0))
    if counts:
        waiting.add_metric([], counts.get("waiting", 0))
    return spans, waiting


_LINGER_S: Final = 1.0
"""Spans wait so long for others, and so long for a collector that is away; then longer."""

_PAUSE_S_MAX: Final = 30.0
_TIMEOUT_S: Final = 5.0
_ANSWER_BYTES_MAX: Final = 64 * 1024
_AGAIN: Final = (429, 502, 503, 504)
_TEXT_MAX: Final = 512
_KINDS: Final = {"INTERNAL": 1, "SERVER": 2, "CLIENT": 3, "PRODUCER": 4, "CONSUMER": 5}

_log = structlog.get_logger()


class SpanSender:
    """Sends what a tracer holds, until it is closed.

    Args:
        section: As configured.
        tracer: Has the spans.
        part: As in `SERVICES`.
        name: Of this process among its like.

    Raises:
        ConfigError: `ca_file` cannot be used.
    """

    def __init__(self, section: TracingSection, tracer: Tracer, part: str, name: str) -> None:
        self._tracer = tracer
        self._endpoint = section.endpoint
        self._resource = _attributes(
            {
                "service.name": SERVICES[part],
                "service.namespace": "penstock",
                "service.instance.id": name,
                "service.version": release(),
            }
        )
        self._tls = _context(section)
        self._stop = threading.Event()
        self._problem = ""
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Send what waits while there is time and it is taken; the rest is lost, and counted."""
        self._stop.set()
        self._tracer.came.set()
        self._tracer.full.set()
        self._thread.join(timeout_s)
        self._tracer.give_up()

    def _run(self) -> None:
        backoff = Backoff(_LINGER_S, _PAUSE_S_MAX)
        spans: list[Span] = []
        while True:
            if not spans:
                if not self._stop.is_set():
                    self._tracer.came.wait()
                    self._tracer.full.wait(_LINGER_S)
                spans = self._tracer.take()
            outcomes = self._send(spans) if spans else {}
            if outcomes:
                self._tracer.settle(outcomes)
                spans = []
                backoff.reset()
            elif self._stop.is_set():
                return  # what was taken and what waits is given up
            elif spans:
                self._stop.wait(backoff.next_wait())

    def _send(self, spans: Sequence[Span]) -> dict[str, int]:
        """What became of them; nothing where they are to be sent again."""
        body = encode_spans(self._resource, spans)
        try:
            status, answer = self._post(body)
        except (OSError, ValueError) as error:
            self._note(f"{type(error).__name__}: {error}")
            return {}
        if status == 200:
            self._note("")
            refused = min(_rejected(answer), len(spans))
            return {"sent": len(spans) - refused, "refused": refused}
        self._note(f"status {status}")
        return {} if status in _AGAIN else {"refused": len(spans)}

    def _post(self, body: bytes) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"}
        request = Request("/v1/traces", headers, method="POST", body=body)
        with HttpClient(
            self._endpoint, timeout_s=_TIMEOUT_S, body_bytes_max=_ANSWER_BYTES_MAX, tls=self._tls
        ) as client:
            try:
                answer = client.send(request)
            except AnswerTooLargeError as error:
                answer = error.response  # the status counts
            return answer.status, answer.body

    def _note(self, problem: str) -> None:
        """Say it once, not for each batch: the collector reads this process's log."""
        if problem and not self._problem:
            _log.warning("spans are not taken", endpoint=self._endpoint, problem=problem)
        self._problem = problem


def encode_spans(resource: Sequence[Any], spans: Sequence[Span]) -> bytes:
    """An `ExportTraceServiceRequest` as OTLP's JSON."""
    found = [_encoded(span) for span in spans]
    scope = {"name": "penstock.service.tracing"}
    scoped = [{"scope": scope, "spans": found}]
    document = {"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": scoped}]}
    return json.dumps(document, separators=(",", ":")).encode()


def _encoded(span: Span) -> dict[str, Any]:
    found: dict[str, Any] = {
        "traceId": f"{span.trace_id:032x}",
        "spanId": f"{span.span_id:016x}",
        "name": span.name,
        "kind": _KINDS[span.kind],
        "startTimeUnixNano": str(span.begun_unix_ns),
        "endTimeUnixNano": str(span.ended_unix_ns),
        "attributes": _attributes(span.attributes),
    }
    if span.parent_id:
        found["parentSpanId"] = f"{span.parent_id:016x}"
    if span.links:
        found["links"] = [
            {"traceId": f"{trace:032x}", "spanId": f"{one:016x}"} for trace, one in span.links
        ]
    if span.error:
        found["status"] = {"code": 2, "message": span.error[:_TEXT_MAX]}
    return found


def _attributes(attributes: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Value) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value[:_TEXT_MAX]}


def _rejected(answer: bytes) -> int:
    try:
        return max(0, int(json.loads(answer)["partialSuccess"]["rejectedSpans"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0


def _context(section: TracingSection) -> ssl.SSLContext | None:
    if section.endpoint.startswith("http://"):
        return None
    try:
        return client_tls(section.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"tracing.ca_file: {section.ca_file}: {error}", fix="name a readable PEM file"
        ) from None


class Tracing:
    """A process's tracer and what sends its spans; both are None where nothing is traced.

    Args:
        section: As configured.
        part: As in `SERVICES`.
        name: Of this process among its like.
        own: Further subjects of Penstock's own spans.

    Raises:
        ConfigError: A file of the section cannot be used.
    """

    def __init__(
        self, section: TracingSection | None, part: str, name: str, own: Sequence[str] = ()
    ) -> None:
        self.tracer: Tracer | None = None
        self._sender: SpanSender | None = None
        if section is not None and section.enabled:
            self.tracer = Tracer(section, own=own)
            self._sender = SpanSender(section, self.tracer, part, name)

    def counts(self) -> dict[str, int]:
        """Spans by outcome; empty where nothing is traced."""
        return {} if self.tracer is None else self.tracer.counts()

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what waits, as far as that is possible within the time."""
        if self._sender is not None:
            self._sender.close(timeout_s)
