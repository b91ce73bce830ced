"""Rules for what is read out of a source's lines beside their text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import tzinfo
from functools import lru_cache
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo

import orjson

from penstock.collector.decode.timestamps import (
    AUTO,
    Layout,
    TimeReader,
    layouts_of,
    line_reader,
    text_time_ns,
    time_of,
)
from penstock.collector.regex import compile_pattern

ReadTime = Callable[[Any, int], int | None]
OnError = Literal["pass", "filter", "quarantine"]
"""Treatment of a record whose time cannot be read: passed on with the time that it has, filtered,
or quarantined."""
NO_TIME: Final = "timestamp: no time can be read where it should stand"


@dataclass(frozen=True, slots=True)
class LineRules:
    """The rules of one source.

    Attributes:
        time: Finds the time in a line of text; None: it has that of reading.
        field: The key of a structured line that has its time; empty: those that loggers use.
        field_time: Reads what is there.
        severity: Whether a line of text is searched for its severity.
        needs_time: Whether it is configured where a line has its time: one without it is counted.
        on_error: Treatment of a record whose time cannot be read.
    """

    time: TimeReader | None = None
    field: str = ""
    field_time: ReadTime = time_of
    severity: bool = False
    needs_time: bool = False
    on_error: OnError = "pass"

    @property
    def looks_into_text(self) -> bool:
        """True if lines of text get more fields than their text."""
        return self.severity or self.time is not None


NO_RULES: Final = LineRules()


def rules_of(options: Mapping[str, Any]) -> LineRules:
    """The rules of a source's options ``timestamp`` and ``detect``, as its section gives them."""
    return _rules_of(orjson.dumps(options, option=orjson.OPT_SORT_KEYS)) if options else NO_RULES


@lru_cache(maxsize=256)
def _rules_of(options: bytes) -> LineRules:
    given = orjson.loads(options)
    detect, timestamp = given.get("detect") or [], given.get("timestamp")
    if timestamp is None:
        reader = (
            time_finder(None, layouts_of([AUTO]), ZoneInfo("UTC")) if "time" in detect else None
        )
        return LineRules(reader, severity="severity" in detect)
    layouts = layouts_of(timestamp["layouts"])
    zone = ZoneInfo(timestamp.get("timezone") or timestamp["zone"])  # units of older releases
    return LineRules(
        time_finder(timestamp["pattern"], layouts, zone),
        timestamp["field"] or "",
        value_reader(layouts, zone),
        severity="severity" in detect,
        needs_time=True,
        on_error=timestamp.get("on_error", "pass"),  # units of older releases do not say it
    )


def value_reader(layouts: tuple[Layout, ...], zone: tzinfo) -> ReadTime:
    """Return a function that reads a value which is a time and nothing else."""

    def read(value: Any, now_ns: int) -> int | None:
        if not isinstance(value, str):
            return time_of(value, now_ns, zone)
        return text_time_ns(value.strip(), now_ns, zone, layouts)

    return read


def time_finder(pattern: str | None, layouts: tuple[Layout, ...], zone: tzinfo) -> TimeReader:
    """Return a function that finds the time in a text: by a pattern, or in a line's usual place.

    Args:
        pattern: In RE2's syntax; its group ``time``, its first, or all of it is the time.
        layouts: The layouts that the time may have.
        zone: The zone of times that name none.
    """
    if pattern is None:
        return line_reader(layouts, zone)
    found = compile_pattern(pattern)
    group = found.groupindex.get("time", min(1, found.groups))

    def read(text: str, now_ns: int) -> int | None:
        match = found.search(text)
        part = None if match is None else match.group(group)
        return None if part is None else text_time_ns(part.strip(), now_ns, zone, layouts)

    return read
