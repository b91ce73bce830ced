"""Spans: a piece of work with a beginning and an end, part of a trace."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from penstock.specs.errors import BrokenRuleError
from penstock.specs.limits import LINKS_MAX, SPAN_EVENTS_MAX, TRACE_STATE_CHARACTERS_MAX
from penstock.specs.models.envelope import CONFIG, Record
from penstock.specs.models.scalars import (
    Attributes,
    Count,
    Name,
    Nanoseconds,
    SpanId,
    Text,
    TraceId,
)


class SpanLink(BaseModel):
    """Another span that this one has to do with."""

    model_config = CONFIG

    trace_id: TraceId
    span_id: SpanId
    attributes: Attributes | None = None


class SpanEvent(BaseModel):
    """A moment within a span. Accepted from others; Penstock's own libraries emit log records."""

    model_config = CONFIG

    name: Name
    time_unix_nano: Nanoseconds
    attributes: Attributes | None = None


def ends_after_start(span: Any) -> None:
    if span.end_time_unix_nano < span.time_unix_nano:
        raise BrokenRuleError("end_time_unix_nano is before time_unix_nano")


class Span(Record, spec="span/1.0"):
    """One finished span; `time_unix_nano` is its start."""

    rules = (*Record.rules, ends_after_start)

    kind: Literal["span"] = "span"
    trace_id: TraceId
    span_id: SpanId
    parent_span_id: SpanId | None = None
    name: Name
    span_kind: Literal["INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"] = "INTERNAL"
    end_time_unix_nano: Nanoseconds
    status_code: Literal["UNSET", "OK", "ERROR"] = "UNSET"
    status_message: Text | None = None
    trace_state: Annotated[str | None, Field(max_length=TRACE_STATE_CHARACTERS_MAX)] = None
    links: Annotated[list[SpanLink] | None, Field(max_length=LINKS_MAX)] = None
    events: Annotated[list[SpanEvent] | None, Field(max_length=SPAN_EVENTS_MAX)] = None
    dropped_links_count: Count | None = None
    dropped_events_count: Count | None = None
