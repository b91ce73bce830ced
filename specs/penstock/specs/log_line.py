"""The line of a log record, made straight from what the application said.

Free-form logs are not validated where they are made: that would cost more than all the rest. They
are built to fit instead, and the collector's gate checks them. What cannot be encoded as it is goes
out all the same, sanitised.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from penstock.specs import clock
from penstock.specs.attributes import clean_attributes, clean_text, encodable, has_plain_values
from penstock.specs.bound import Bound, bound
from penstock.specs.exceptions import exception_attributes
from penstock.specs.limits import (
    ATTRIBUTES_MAX,
    RECORD_BYTES_SOFT,
    SCOPE_CHARACTERS_MAX,
    STRING_CHARACTERS_SOFT,
)
from penstock.specs.log_record import severity_text
from penstock.specs.machine import MachineFacts
from penstock.specs.scrub import Scrubber
from penstock.specs.traces import trace_fields
from penstock.specs.wire import encode_json

_SEVERITY_TEXTS: Final = ("", *(severity_text(number) for number in range(1, 25)))
_CUT_CHARACTERS: Final = (1024, 128)
"""What counts as long when a record is too large; the second only if the first does not help."""
_DAY_NS: Final = 86_400 * 10**9
_NAMES_MAX: Final = 4096
"""Different sets of attributes' names that are remembered."""
SANITISED: Final = "penstock.sanitised"
"""The attribute that says why a record is not what the application said."""


class LogLines:
    """Makes log records for one emitter. Every record of an application passes here: few calls.

    Args:
        scrubber: Takes sensitive values out.
        facts: Goes onto every record.
    """

    def __init__(self, scrubber: Scrubber | None = None, facts: MachineFacts | None = None) -> None:
        self._scrubber = scrubber
        self._searches = scrubber is not None and scrubber.searches_values
        self._facts = facts
        self._harmless: set[tuple[str, ...]] = set()
        self._around = _Around(None, 0, 0, {}, {}, 0)

    def record(
        self,
        body: Any,
        severity_number: int,
        fields: Mapping[str, Any],
        *,
        scope: Any = None,
        error: BaseException | None = None,
        time_unix_nano: int | None = None,
    ) -> dict[str, Any]:
        """One log record's JSON object, without its resource; scrubbed.

        Args:
            body: The constant message.
            severity_number: 1 to 24.
            fields: Become attributes, over those that are bound.
            scope: The logger's name; whatever it is, its text.
            error: Added as ``exception.*``.
            time_unix_nano: When it was said; now, if None.
        """
        now = clock.unix_ns() if time_unix_nano is None else time_unix_nano
        around = self._around
        if around.bound is not bound() or not around.since_ns <= now < around.until_ns:
            around = self._look_around(now)
        dropped = around.dropped
        short = body.__class__ is str and len(body) <= STRING_CHARACTERS_SOFT
        record: dict[str, Any] = {
            "schema": "log/1.0",
            "kind": "log",
            "time_unix_nano": now,
            "severity_number": severity_number,
            "severity_text": _SEVERITY_TEXTS[severity_number],
            "body": body if short else clean_text(body),
        }
        if trace := trace_fields():
            record.update(trace)
        if scope:
            short = scope.__class__ is str and len(scope) <= SCOPE_CHARACTERS_MAX
            record["scope"] = scope if short else clean_text(scope, SCOPE_CHARACTERS_MAX)
        if around.context:
            record["context"] = around.context
        if error is not None or tuple(fields) not in self._harmless or not has_plain_values(fields):
            fields, more = self._fit(fields, error)
            dropped += more
        attributes = {**around.attributes, **fields}
        if len(attributes) > ATTRIBUTES_MAX:
            dropped += len(attributes) - ATTRIBUTES_MAX
            attributes = dict(list(attributes.items())[-ATTRIBUTES_MAX:])
        if attributes:
            record["attributes"] = attributes
        if dropped:
            record["dropped_attributes_count"] = dropped
        if self._searches and self._scrubber is not None:
            return self._scrubber.scrub(record)
        return record

    def _fit(
        self, fields: Mapping[str, Any], error: BaseException | None
    ) -> tuple[Mapping[str, Any], int]:
        """Attributes that fit, and how many did not; learns names that need no second look."""
        failure = exception_attributes(error) if error is not None else {}
        given, dropped = clean_attributes({**fields, **failure})
        fitted: Mapping[str, Any] = given
        if self._scrubber is not None and given:
            fitted = self._scrubber.scrub_names(given)
        names = tuple(fields)
        if fitted is given and names == tuple(given):
            if len(self._harmless) >= _NAMES_MAX:
                self._harmless.clear()
            self._harmless.add(names)
        return fitted, dropped

    def _look_around(self, now: int) -> "_Around":
        """What is bound, scrubbed, and the machine's figures.

        Remembered for as long as the figures are, and within the day, since keys rotate by days.
        """
        given = bound()
        treated, dropped = given, 0
        if self._scrubber is not None and (given.context or given.attributes):
            treated, dropped = _scrubbed(given, self._scrubber, now)
        since = now - now % _DAY_NS
        until = since + _DAY_NS
        attributes = treated.attributes
        if self._facts is not None:
            attributes = {**self._facts.at(now), **attributes}
            since, until = max(since, self._facts.since_ns), min(until, self._facts.until_ns)
        around = _Around(given, since, until, treated.context, attributes, dropped)
        self._around = around
        return around


class _Around(NamedTuple):
    """What goes onto every record of one binding, from one time until, and without, another."""

    bound: Bound | None
    since_ns: int
    until_ns: int
    context: Mapping[str, str]
    attributes: Mapping[str, Any]
    dropped: int


def encode_log(record: dict[str, Any]) -> bytes:
    """A record's line: whatever was said, as much of it as fits."""
    try:
        line = encode_json(record)
    except (TypeError, ValueError):
        line = encode_json(encodable(record))
    if len(line) > RECORD_BYTES_SOFT:
        for characters in _CUT_CHARACTERS:
            line = _cut(record, characters)
            if len(line) <= RECORD_BYTES_SOFT:
                break
    return line


def sanitised(body: Any, severity_number: int, reason: str) -> dict[str, Any]:
    """What remains of a log call whose arguments break whoever looks at them."""
    return {
        "schema": "log/1.0",
        "kind": "log",
        "time_unix_nano": clock.unix_ns(),
        "severity_number": severity_number,
        "severity_text": _SEVERITY_TEXTS[severity_number],
        "body": encodable(clean_text(body)),
        "attributes": {SANITISED: reason},
    }


def log_line(  # noqa: PLR0913 - as `LogLines.record`
    body: Any,
    severity_number: int,
    fields: Mapping[str, Any],
    *,
    scope: Any = None,
    error: BaseException | None = None,
    time_unix_nano: int | None = None,
    scrubber: Scrubber | None = None,
) -> bytes:
    """One log record's line by itself; the arguments are those of `LogLines`."""
    record = LogLines(scrubber).record(
        body, severity_number, fields, scope=scope, error=error, time_unix_nano=time_unix_nano
    )
    return encode_log(record)


def _scrubbed(here: Bound, scrubber: Scrubber, now: int) -> tuple[Bound, int]:
    fields = {
        "schema": "log/1.0",
        "kind": "log",
        "time_unix_nano": now,
        "context": dict(here.context),
        "attributes": dict(here.attributes),
    }
    treated = scrubber.scrub(fields)
    found = replace(here, context=treated["context"], attributes=treated["attributes"])
    return found, treated.get("dropped_attributes_count", 0)


def _cut(record: dict[str, Any], characters: int) -> bytes:
    """The record with its long values cut, so that it passes everywhere."""
    attributes = dict(record.get("attributes", {}))
    large = [
        key
        for key, value in attributes.items()
        if isinstance(value, list) or (isinstance(value, str) and len(value) > characters)
    ]
    for key in large:
        attributes[key] = clean_text(attributes[key], characters // 4)
    cut = {**record, "attributes": attributes}
    cut["dropped_attributes_count"] = record.get("dropped_attributes_count", 0) + len(large)
    return encode_json(encodable(cut))
