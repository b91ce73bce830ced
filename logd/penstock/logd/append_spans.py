"""Spans of what a leader takes in one turn: from its arrival until it is committed."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from penstock.logd.core.metadata import is_internal
from penstock.logd.core.turn import Append, Effect, Message, Whole
from penstock.logd.frame import NO_PRODUCER
from penstock.service.tracing import Span, Tracer, span_of, trace_of

OPEN_MAX: Final = 64
"""Spans at a time of one partition whose records are not committed; others are not begun."""


class AppendSpans:
    """Of one partition. Used on the event loop.

    A span is linked with those of the producers whose batches were taken: it knows them by the
    producer's id and the sequence.
    """

    def __init__(self, tracer: Tracer, stream: str) -> None:
        self._tracer = tracer
        self._stream = stream
        self._open: deque[tuple[int, Span]] = deque()

    def begin(self, messages: Sequence[Message]) -> Span | None:
        """A span for a turn, if there is more in it than Penstock's own spans."""
        is_own = self._tracer.is_own
        if len(self._open) >= OPEN_MAX or all(is_own(message.subject) for message in messages):
            return None
        return self._tracer.start("append", kind="CONSUMER")

    def took(self, span: Span, effects: Sequence[Effect], messages: int) -> None:
        """What became of the turn; of several frames the last one's commit ends it."""
        items = [item for one in effects if isinstance(one, Append) for item in one.items]
        span.attributes |= {"penstock.stream": self._stream, "penstock.messages": messages}
        if not items:
            span.end(error="nothing was stored: refused, or there before")
            return
        for item in items:
            if isinstance(item, Whole) and item.header.producer_id != NO_PRODUCER:
                header = item.header
                trace_id = trace_of(header.producer_id, header.producer_sequence)
                span.link(trace_id, span_of(trace_id))
        size = sum(one.size_bytes for one in effects if isinstance(one, Append))
        span.attributes |= {"penstock.frames": len(items), "penstock.bytes": size}
        self._open.append((items[-1].next_offset, span))

    def committed(self, high_watermark: int) -> None:
        """Everything up to the high watermark is committed."""
        while self._open and self._open[0][0] <= high_watermark + 1:
            next_offset, span = self._open.popleft()
            span.end(penstock__offset=next_offset - 1)

    def given_up(self) -> None:
        """What is not committed is up to others, or lost."""
        while self._open:
            self._open.popleft()[1].end(error="not committed under this leadership")


def append_spans(tracer: Tracer | None, stream: str) -> AppendSpans | None:
    """None where nothing is traced; so it is with logd's own streams.

    Cursors among these are committed because something was read: of Penstock's own spans, too.
    """
    return None if tracer is None or is_internal(stream) else AppendSpans(tracer, stream)
