"""Sends a process's spans to a collector: OTLP over HTTP, as JSON, on a thread of its own.

https://opentelemetry.io/docs/specs/otlp/#otlphttp: 200 is taken, 429, 502, 503 and 504 ask to come
again, and so does a collector that is not there; other answers are for good. A collector that
stored spans and whose answer was lost gets them twice, with the same ids.
"""

import json
import ssl
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog

from penstock.base.backoff import Backoff
from penstock.base.errors import ConfigError
from penstock.base.http.client import AnswerTooLargeError, HttpClient, Request, client_tls
from penstock.service.release import release
from penstock.service.tracing import (
    SERVICES,
    Span,
    Tracer,
    TracingSection,
    Value,
)

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
