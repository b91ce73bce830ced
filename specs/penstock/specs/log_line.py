"""The line of a log record, made straight from what the application said.

Free-form logs are not validated where they are made: that would cost more than all the rest. They
are built to fit instead, and the collector's gate checks them. What cannot be encoded as it is goes
out all the same, sanitised.
"""

from collections.abc import Mapping
from typing import Any, Final

from penstock.specs import clock
from penstock.specs.attributes import clean_body, clean_text, encodable
from penstock.specs.limits import (
    RECORD_BYTES_SOFT,
    SCOPE_CHARACTERS_MAX,
    STRING_CHARACTERS_SOFT,
)
from penstock.specs.log_record import severity_text
from penstock.specs.scrub import Scrubber
from penstock.specs.surroundings import Surroundings
from penstock.specs.traces import trace_fields
from penstock.specs.wire import encode_json

_SEVERITY_TEXTS: Final = ("", *(severity_text(number) for number in range(1, 25)))
_CUT_CHARACTERS: Final = (1024, 128)
"""What counts as long when a record is too large; the second only if the first does not help."""
SANITISED: Final = "penstock.sanitised"
"""The attribute that says why a record is not what the application said."""


class LogLines(Surroundings):
    """Makes log records for one emitter. Every record of an application passes here: few calls."""

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
        around = self._around_at(now)
        short = body.__class__ is str and len(body) <= STRING_CHARACTERS_SOFT
        record: dict[str, Any] = {
            "schema": "log/1.0",
            "kind": "log",
            "time_unix_nano": now,
            "severity_number": severity_number,
            "severity_text": _SEVERITY_TEXTS[severity_number],
            "body": body if short else clean_body(body),
        }
        if trace := trace_fields():
            record.update(trace)
        if scope:
            fits = scope.__class__ is str and len(scope) <= SCOPE_CHARACTERS_MAX
            record["scope"] = scope if fits else clean_text(scope, SCOPE_CHARACTERS_MAX)
        if around.context:
            record["context"] = around.context
        attributes, dropped = self._attributes(fields, around, error)
        if not short and len(record["body"]) == STRING_CHARACTERS_SOFT:
            dropped += 1  # it was cut
        if attributes:
            record["attributes"] = attributes
        if dropped:
            record["dropped_attributes_count"] = dropped
        if self._searches and self._scrubber is not None:
            return self._scrubber.scrub(record)
        return record


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
