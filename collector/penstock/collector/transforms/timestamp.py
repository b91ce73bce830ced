"""Timestamp: a field of the record says when it happened."""

from collections import Counter
from collections.abc import Mapping
from datetime import tzinfo
from typing import Any, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import Field
from typing_extensions import override

from penstock.collector.decode.line_rules import NO_TIME, time_finder, value_reader
from penstock.collector.decode.timestamps import Layout, layouts_of
from penstock.collector.sources.settings import TimestampOptions
from penstock.collector.transforms.expressions.paths import getter, parse_path
from penstock.collector.transforms.transform import (
    PASS,
    Event,
    OnFailure,
    ReadablePath,
    Transform,
    TransformContext,
    TransformSettings,
    Verdict,
    failed,
)


class TimestampSettings(TransformSettings, TimestampOptions):
    """A text of the record says when it happened."""

    type: Literal["timestamp"]
    field: ReadablePath = "body"
    on_error: OnFailure = Field(
        default="pass", description="what becomes of a record whose time cannot be read"
    )


class Timestamp(Transform):
    """Sets the record's time from one of its fields.

    Args:
        path: The field. Of `body` the time in a line's usual place is taken, of another field
            its whole value.
        pattern: Pattern of the time within the field's text.
        layouts: Layouts of the time.
        zone: The zone of a time that names none.
        on_error: Treatment of a record whose time cannot be read.
    """

    settings = TimestampSettings
    outputs = (PASS,)

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        return cls(
            parse_path(settings.field),
            pattern=settings.pattern,
            layouts=layouts_of(settings.layouts),
            zone=ZoneInfo(settings.timezone),
            on_error=settings.on_error,
        )

    def __init__(
        self,
        path: tuple[str, ...],
        *,
        pattern: str | None,
        layouts: tuple[Layout, ...],
        zone: tzinfo,
        on_error: OnFailure,
    ) -> None:
        self._notes = Counter[str]()
        self._value = getter(path)
        self._on_error = on_error
        in_text = path == ("body",) or pattern is not None
        self._find = time_finder(pattern, layouts, zone) if in_text else None
        self._read = value_reader(layouts, zone)

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        time_ns = self._time_of(self._value(event.fields), event.observed_ns)
        if time_ns is not None:
            event.fields = {**event.fields, "time_unix_nano": time_ns}
            return PASS
        self._notes["timestamps_unreadable"] += 1
        return failed(self._on_error, NO_TIME)

    def _time_of(self, value: Any, near_ns: int) -> int | None:
        if self._find is None:
            return self._read(value, near_ns)
        return self._find(value, near_ns) if isinstance(value, str) else None

    @property
    @override
    def notes(self) -> Mapping[str, int]:
        return self._notes
