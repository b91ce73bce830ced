"""Spans of one's own, in one line and without OpenTelemetry's SDK.

    with specs.span("charge card", kind="CLIENT", order_id=7) as span:
        span.set(amount=42)

What runs within the block, logs and OpenTelemetry's spans included, belongs to the span; the span
is a child of whatever is running, ours, OpenTelemetry's or a caller's. It is emitted when it ends.
"""

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Literal, Self

from penstock.specs import clock
from penstock.specs.emit import current
from penstock.specs.limits import LINKS_MAX, NAME_CHARACTERS_MAX
from penstock.specs.models.attributes import clean_text, fingerprint
from penstock.specs.trace.propagation import parse_traceparent
from penstock.specs.trace.span_context import (
    Work,
    enter_span,
    has_outlived,
    leave_span,
    trace_fields,
    trace_state,
)

SpanKind = Literal["INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"]
_SAMPLED: Final = 1


class RunningSpan:
    """A piece of work that is measured while it lasts; made by `span`.

    Entered again within itself it is still one span, from the first entry to the last exit. In a
    child that was forked within it, it says nothing: it is its parent's.

    Attributes:
        name: Of low cardinality, hence without ids; may be changed while it runs.
        kind: The part it plays, as in OpenTelemetry.
        fields: Attributes, as the application gave them.
        ids: ``trace_id``, ``span_id`` and ``trace_flags`` as a record has them; nothing before it
            is entered.
        parent_span_id: Of what was running before, in the same trace.
        status: ``ERROR`` where the work failed.
        message: Why it did.
        links: Ids of other spans that it has to do with.
        dropped_links: Links beyond the limit, or malformed.
    """

    __slots__ = (
        "_begun_ns", "_pid", "_tokens", "_work", "dropped_links", "fields", "ids", "kind", "links",
        "message", "name", "parent_span_id", "scope", "start_unix_ns", "state", "status",
    )  # fmt: skip

    def __init__(self, name: str, kind: SpanKind, scope: str, fields: dict[str, Any]) -> None:
        self.name = name
        self.kind = kind
        self.scope = scope
        self.fields = fields
        self.ids: Mapping[str, Any] = {}
        self.parent_span_id: str | None = None
        self.state = ""
        self.status: Literal["UNSET", "OK", "ERROR"] = "UNSET"
        self.message = ""
        self.links: list[Mapping[str, Any]] = []
        self.dropped_links = 0
        self._work = Work(is_server=kind == "SERVER")
        self._tokens: list[Any] = []

    def set(self, given: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """Add attributes; a mapping where their names have dots. What is no mapping is left out."""
        if isinstance(given, Mapping):
            self.fields.update(given)
        self.fields.update(fields)

    def link(self, traceparent: str) -> None:
        """Say that another span has to do with this one, by its W3C header."""
        text: object = traceparent  # of whatever type, it must not raise
        found = parse_traceparent(text) if isinstance(text, str) else None
        if found is None or len(self.links) >= LINKS_MAX:
            self.dropped_links += 1
            return
        self.links.append({name: found[name] for name in ("trace_id", "span_id")})

    def fail(self, message: str = "") -> None:
        """The work failed, though nothing was raised."""
        self.status, self.message = "ERROR", message

    def __enter__(self) -> Self:
        """The work begins."""
        if self._tokens:
            self._tokens.append(enter_span(self.ids, self.state, self._work))
            return self
        running = {} if has_outlived() else trace_fields()
        if "trace_id" in running:
            self.parent_span_id = running.get("span_id")
            self.state = trace_state()
            trace_id, flags = running["trace_id"], running.get("trace_flags", _SAMPLED)
        else:
            trace_id, flags = clock.trace_id(), _SAMPLED
        self.ids = {"trace_id": trace_id, "span_id": clock.span_id(), "trace_flags": flags}
        self._tokens.append(enter_span(self.ids, self.state, self._work))
        self._work.has_ended = False
        self._pid = os.getpid()
        self.start_unix_ns = clock.unix_ns()
        self._begun_ns = clock.monotonic_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """The work has ended; what it raised makes it a failure and goes on."""
        if not self._tokens:
            return
        leave_span(self._tokens.pop())
        if self._tokens:
            return
        took_ns = clock.monotonic_ns() - self._begun_ns
        self._work.has_ended = True
        if isinstance(error, Exception):  # a task that is cancelled has not failed
            self.fields.setdefault("error.type", type(error).__qualname__)
            self.fields.setdefault("exception.fingerprint", fingerprint(error))
            self.fail(self.message or clean_text(error))
        sink = current.sink()
        if sink is not None and self._pid == os.getpid():
            sink.spans.write(self, self.start_unix_ns + took_ns)


def span(
    name: str, /, *, kind: SpanKind = "INTERNAL", scope: str = "", **fields: Any
) -> RunningSpan:
    """A span around a ``with`` block; see `penstock.specs.trace.span`.

    Args:
        name: What is done, of low cardinality: ``charge card``, not ``charge card 4711``.
        kind: ``CLIENT`` around a call of another service, ``SERVER`` around one that is handled,
            ``PRODUCER`` and ``CONSUMER`` around messages.
        scope: The part of the application, like a logger's name.
        fields: Attributes; more by `RunningSpan.set`.
    """
    return RunningSpan(clean_text(name, NAME_CHARACTERS_MAX) or "unnamed", kind, scope, fields)
