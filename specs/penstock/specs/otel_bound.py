"""What is bound where one of OpenTelemetry's spans starts, kept until the span is exported.

The SDK exports in a thread of its own, where nothing is bound. What was bound lies on the span's
`SpanContext`, the one object that is the same on the span while it runs and on what is exported:
it lives as long as they do, so that spans that never end, or that nobody exports, leave nothing.
"""

from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from typing_extensions import override

from penstock.specs.bound import Bound, bound

_KEPT: Final = "penstock.bound"
"""No identifier: nothing that the API may call an attribute of its own."""


class BoundSpanProcessor(SpanProcessor):
    """Remembers, for `PenstockSpanExporter`, what is bound when a span starts.

    `setup` and `install` bring it. A tracer provider made elsewhere gets it by hand, in any order:
    ``provider.add_span_processor(BoundSpanProcessor())``.
    """

    @override
    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        here = bound()
        if here.context or here.attributes:
            _members(span.get_span_context())[_KEPT] = here


def bound_at_start(span: ReadableSpan) -> Bound | None:
    """What was bound when the span started; None where no `BoundSpanProcessor` saw it."""
    found: Bound | None = _members(span.context).get(_KEPT)
    return found


def _members(context: Any) -> dict[str, Any]:
    """What an object holds beside its fields; another dict where it cannot hold anything."""
    members: dict[str, Any] = getattr(context, "__dict__", {})
    return members
