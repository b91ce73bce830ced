"""The line of a log record, made straight from what the application said.

Free-form logs are not validated where they are made: that would cost more than all the rest. They
are built to fit instead, and the collector's gate checks them.
"""

from collections.abc import Mapping
from typing import Any, Final

from penstock.specs import clock
from penstock.specs.attributes import clean_attributes, clean_text, encodable
from penstock.specs.bound import bound
from penstock.specs.exceptions import exception_attributes
from penstock.specs.limits import RECORD_BYTES_SOFT, SCOPE_CHARACTERS_MAX
from penstock.specs.log_record import severity_text
from penstock.specs.scrub import Scrubber
from penstock.specs.traces import trace_fields
from penstock.specs.wire import encode_json

_SEVERITY_TEXTS: Final = ("", *(severity_text(number) for number in range(1, 25)))
_CUT_CHARACTERS: Final = (1024, 128)
"""What counts as long when a record is too large; the second only if the first does not help."""


def log_line(  # noqa: PLR0913 - most are optional and named
    body: Any,
    severity_number: int,
    fields: Mapping[str, Any],
    *,
    scope: Any = None,
    error: BaseException | None = None,
    time_unix_nano: int | None = None,
    scrubber: Scrubber | None = None,
) -> bytes:
    """One log record, without its resource.

    Args:
        body: The constant message.
        severity_number: 1 to 24.
        fields: Become attributes, over those that are bound.
        scope: The logger's name; whatever it is, its text.
        error: Added as ``exception.*``.
        time_unix_nano: When it was said; now, if None.
        scrubber: Takes sensitive values out; the emitter's.
    """
    here = bound()
    given: Mapping[str, Any] = {**here.attributes, **fields} if here.attributes else fields
    if error is not None:
        given = {**given, **exception_attributes(error)}
    attributes, dropped = clean_attributes(given)
    record: dict[str, Any] = {
        "schema": "log/1.0",
        "kind": "log",
        "time_unix_nano": clock.unix_ns() if time_unix_nano is None else time_unix_nano,
        **trace_fields(),
    }
    if scope:
        record["scope"] = clean_text(scope, SCOPE_CHARACTERS_MAX)
    if here.context:
        record["context"] = here.context
    record["severity_number"] = severity_number
    record["severity_text"] = _SEVERITY_TEXTS[severity_number]
    record["body"] = clean_text(body)
    if attributes:
        record["attributes"] = attributes
    if dropped:
        record["dropped_attributes_count"] = dropped
    return _encode(record if scrubber is None else scrubber.scrub(record))


def _encode(record: dict[str, Any]) -> bytes:
    try:
        line = encode_json(record)
    except (TypeError, ValueError):
        line = encode_json(encodable(record))
    for characters in _CUT_CHARACTERS:
        if len(line) > RECORD_BYTES_SOFT:
            line = _cut(record, characters)
    return line


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
