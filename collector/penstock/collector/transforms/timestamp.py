"""Timestamp: a text of the record says when it happened."""

from collections import Counter
from datetime import tzinfo
from typing import Any

from typing_extensions import override

from penstock.collector.core.times import Layout
from penstock.collector.decode.line_rules import NO_TIME, OnError, time_finder, value_reader
from penstock.collector.transforms.event import PASS, Ending, Event, Noting, Refusal, Verdict
from penstock.collector.transforms.parse import seen_ns
from penstock.collector.transforms.paths import getter


class Timestamp(Noting):
    """Sets the record's time from one of its fields.

    Args:
        path: Of the field. Of `body` the time in a line's usual place is taken, of another field
            its whole value.
        pattern: Where the time stands in the field's text instead.
        layouts: How it is written.
        zone: Of a time that names none.
        on_error: What becomes of a record whose time cannot be read.
    """

    outputs = (PASS,)

    def __init__(
        self,
        path: tuple[str, ...],
        *,
        pattern: str | None,
        layouts: tuple[Layout, ...],
        zone: tzinfo,
        on_error: OnError,
    ) -> None:
        self.notes = Counter()
        self._value = getter(path)
        self._on_error = on_error
        in_text = path == ("body",) or pattern is not None
        self._find = time_finder(pattern, layouts, zone) if in_text else None
        self._read = value_reader(layouts, zone)

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        time_ns = self._time_of(self._value(event.fields), seen_ns(event.fields))
        if time_ns is not None:
            event.fields = {**event.fields, "time_unix_nano": time_ns}
            return PASS
        self.notes["timestamps_unreadable"] += 1
        match self._on_error:
            case "pass":
                return PASS
            case "filter":
                return Ending.FILTERED
            case "quarantine":
                return Refusal(NO_TIME)

    def _time_of(self, value: Any, near_ns: int) -> int | None:
        if self._find is None:
            return self._read(value, near_ns)
        return self._find(value, near_ns) if isinstance(value, str) else None
