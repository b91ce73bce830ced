"""From a span that has ended to the emitter: sampled, made a line, offered. Never raises."""

from typing import TYPE_CHECKING, Any, Final

from penstock.specs.attributes import clean_text
from penstock.specs.core.sampling import Sampler
from penstock.specs.limits import NAME_CHARACTERS_MAX, SCOPE_CHARACTERS_MAX
from penstock.specs.log_line import encode_log
from penstock.specs.log_record import DEFAULT_SEVERITY, FAILED_SEVERITY
from penstock.specs.machine import MachineFacts
from penstock.specs.scrub import Scrubber
from penstock.specs.surroundings import Surroundings

if TYPE_CHECKING:
    from penstock.specs.log_writer import LineSink
    from penstock.specs.tracing import RunningSpan

_KINDS: Final = ("INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
_STATUSES: Final = ("UNSET", "OK", "ERROR")


class SpanWriter(Surroundings):
    """Makes and emits the records of spans.

    Args:
        sink: Gets the lines, and counts what is left out (``sampled``).
        scrubber: Takes sensitive values out.
        facts: Goes onto every record.
        sampler: Leaves out traces; never spans that failed.
    """

    def __init__(
        self,
        sink: "LineSink",
        scrubber: Scrubber | None = None,
        facts: MachineFacts | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        super().__init__(scrubber, facts)
        self._sink = sink
        self._sampler = sampler

    def write(self, span: "RunningSpan", end_unix_ns: int) -> None:
        """Emit one span."""
        sampled = self._sampler is not None and span.status != "ERROR"
        try:
            if sampled and not self._sampler.keeps(span.ids["trace_id"]):  # type: ignore[union-attr]
                self._sink.lose("span", "sampled")
                return
            record = self._record(span, end_unix_ns)
            if sampled:
                record["sample_weight"] = self._sampler.weight  # type: ignore[union-attr]
            line = encode_log(record)
        except Exception:  # noqa: BLE001 - the application must not fail because of its telemetry
            self._sink.lose("span", "not_encodable")
            return
        severity = FAILED_SEVERITY if span.status == "ERROR" else DEFAULT_SEVERITY
        self._sink.emit("span", line, severity)

    def _record(self, span: "RunningSpan", end_unix_ns: int) -> dict[str, Any]:
        around = self._around_at(end_unix_ns)
        record: dict[str, Any] = {
            "schema": "span/1.0",
            "kind": "span",
            "time_unix_nano": span.start_unix_ns,
            **span.ids,
            "name": clean_text(span.name, NAME_CHARACTERS_MAX) or "unnamed",
            "span_kind": span.kind if span.kind in _KINDS else "INTERNAL",
            "end_time_unix_nano": end_unix_ns,
            "status_code": span.status if span.status in _STATUSES else "UNSET",
        }
        if around.context:
            record["context"] = around.context
        attributes, dropped = self._attributes(span.fields, around)
        if attributes:
            record["attributes"] = attributes
        if dropped:
            record["dropped_attributes_count"] = dropped
        _add_rest(record, span)
        if self._searches and self._scrubber is not None:
            return self._scrubber.scrub(record)
        return record


def _add_rest(record: dict[str, Any], span: "RunningSpan") -> None:
    """What most spans have one or two of."""
    if span.parent_span_id is not None:
        record["parent_span_id"] = span.parent_span_id
    if span.message:
        record["status_message"] = clean_text(span.message)
    if span.state:
        record["trace_state"] = span.state
    if span.scope:
        record["scope"] = clean_text(span.scope, SCOPE_CHARACTERS_MAX)
    if span.links:
        record["links"] = span.links
    if span.dropped_links:
        record["dropped_links_count"] = span.dropped_links
