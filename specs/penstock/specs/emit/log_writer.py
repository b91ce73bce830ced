"""The way of a logger's call to the emitter: sampled, folded, made a line. Never raises.

A log record passes redaction once. Usually that is by parts: what is bound stays the same over
many records, and so do the names that a line of code gives its attributes, so both are redacted
when they are first seen, and cached. Where values are searched, too, because no collector
comes behind, it is the record as a whole, and the parts are left alone.

Free-form logs are not validated where they are made: that would cost more than all the rest. They
are built to fit instead, and the collector validates them. What cannot be encoded as it is goes out
all the same, sanitised.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

from penstock.base import clock
from penstock.specs.emit.context import Bound, bound, trace_fields
from penstock.specs.emit.delivery.unpatched import allocate_lock
from penstock.specs.emit.sampling import Folder, Sampler, Step
from penstock.specs.emit.system_metrics import MachineFacts
from penstock.specs.limits import (
    ATTRIBUTES_MAX,
    RECORD_BYTES_SOFT,
    SCOPE_CHARACTERS_MAX,
    STRING_CHARACTERS_SOFT,
)
from penstock.specs.models.attributes import (
    clean_attributes,
    clean_body,
    clean_text,
    encodable,
    exception_attributes,
    has_plain_values,
)
from penstock.specs.models.codec import encode_json
from penstock.specs.models.log import FAILED_SEVERITY, severity_text
from penstock.specs.redact.scrubber import Scrubber

_DAY_NS: Final = 86_400 * 10**9
_NAMES_MAX: Final = 4096
"""Different sets of attributes' names that are cached."""


class CommonFields(NamedTuple):
    """The fields that every record of one binding gets, within one span of time."""

    bound: Bound | None
    since_ns: int
    until_ns: int
    context: Mapping[str, str]
    attributes: Mapping[str, Any]
    dropped: int


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


_SEVERITY_TEXTS: Final = ("", *(severity_text(number) for number in range(1, 25)))
_CUT_CHARACTERS: Final = (1024, 128)
"""Length of a value to cut in a record that is too large; the second where the first is not enough.
"""
SANITISED: Final = "penstock.sanitised"
"""The attribute that says why a record is not what the application said."""


class LogLines:
    """Makes log records for one emitter. Every record of an application passes here: few calls.

    Args:
        scrubber: Takes sensitive values out.
        facts: Goes onto every record.
    """

    def __init__(self, scrubber: Scrubber | None = None, facts: MachineFacts | None = None) -> None:
        searches = scrubber is not None and scrubber.searches_values
        self._scrubber_of_records = scrubber if searches else None
        self._scrubber_of_parts = None if searches else scrubber
        self._facts = facts
        self._harmless: set[tuple[str, ...]] = set()
        self._common = CommonFields(None, 0, 0, {}, {}, 0)

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
            time_unix_nano: Unix time of the record; now, if None.
        """
        now = clock.unix_ns() if time_unix_nano is None else time_unix_nano
        common = self._common_at(now)
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
        if common.context:
            record["context"] = common.context
        attributes, dropped = self._attributes(fields, common, error)
        if not short and len(record["body"]) == STRING_CHARACTERS_SOFT:
            dropped += 1  # it was cut
        if attributes:
            record["attributes"] = attributes
        if dropped:
            record["dropped_attributes_count"] = dropped
        scrubber = self._scrubber_of_records
        return record if scrubber is None else scrubber.scrub(record)

    def _common_at(self, now: int) -> "CommonFields":
        """Return the fields that records of this context and time share."""
        common = self._common
        if common.bound is bound() and common.since_ns <= now < common.until_ns:
            return common
        return self._renew_common(now)

    def _attributes(
        self, fields: Mapping[str, Any], common: "CommonFields", error: BaseException | None = None
    ) -> tuple[dict[str, Any], int]:
        """A record's own fields over the common ones, and how many were left out."""
        dropped = common.dropped
        if error is not None or tuple(fields) not in self._harmless or not has_plain_values(fields):
            fields, more = self._fit(fields, error, common.since_ns)
            dropped += more
        attributes = {**common.attributes, **fields}
        if len(attributes) > ATTRIBUTES_MAX:
            dropped += len(attributes) - ATTRIBUTES_MAX
            attributes = dict(list(attributes.items())[-ATTRIBUTES_MAX:])
        return attributes, dropped

    def _fit(
        self, fields: Mapping[str, Any], error: BaseException | None, time_ns: int
    ) -> tuple[Mapping[str, Any], int]:
        """Attributes that fit, and how many did not; learns names that need no second look."""
        failure = exception_attributes(error) if error is not None else {}
        given, dropped = clean_attributes({**fields, **failure})
        fitted: Mapping[str, Any] = given
        if self._scrubber_of_parts is not None and given:
            fitted = self._scrubber_of_parts.scrub_names(given, time_ns)
            dropped += len(given) - len(fitted)
        names = tuple(fields)
        if fitted is given and names == tuple(given):
            if len(self._harmless) >= _NAMES_MAX:
                self._harmless.clear()
            self._harmless.add(names)
        return fitted, dropped

    def _renew_common(self, now: int) -> "CommonFields":
        """Scrub what is bound, and read the machine's figures.

        Cached for as long as the figures are, and within the day, since keys rotate by days.
        """
        given = bound()
        treated, dropped = given, 0
        if self._scrubber_of_parts is not None and (given.context or given.attributes):
            treated, dropped = _scrubbed(given, self._scrubber_of_parts, now)
        since = now - now % _DAY_NS
        until = since + _DAY_NS
        attributes = treated.attributes
        if self._facts is not None:
            attributes = {**self._facts.at(now), **attributes}
            since, until = max(since, self._facts.since_ns), min(until, self._facts.until_ns)
        common = CommonFields(given, since, until, treated.context, attributes, dropped)
        self._common = common
        return common


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
    """Return the record of a log call whose arguments raise when they are read."""
    return {
        "schema": "log/1.0",
        "kind": "log",
        "time_unix_nano": clock.unix_ns(),
        "severity_number": severity_number,
        "severity_text": _SEVERITY_TEXTS[severity_number],
        "body": encodable(clean_text(body)),
        "attributes": {SANITISED: reason},
    }


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


REPEATED: Final = "log.repeated"
"""The attribute that says for how many records one stands."""


class LineSink(Protocol):
    """Takes lines; the emitter."""

    def emit(self, kind: str, line: bytes, severity_number: int = 9) -> bool:
        """Offer one line."""
        ...

    def record_drop(self, kind: str, reason: str, count: int = 1) -> None:
        """Count records that were not offered."""
        ...


class LogWriter:
    """The base of structlog's processor and the standard library's handler.

    Args:
        sink: Gets the lines, and counts what is left out (``sampled``, ``repeated``).
        lines: Makes them.
        sampler: Leaves out traces; never errors.
        folder: Folds what repeats itself.
        encode: Makes a record's line, or whatever the way out takes for one.
    """

    def __init__(
        self,
        sink: LineSink,
        lines: LogLines,
        sampler: Sampler | None = None,
        folder: Folder | None = None,
        encode: Callable[[dict[str, Any]], bytes] = encode_log,
    ) -> None:
        self._sink = sink
        self._lines = lines
        self._sampler = sampler
        self._folder = folder
        self._encode = encode
        self._lock = allocate_lock()

    def write(
        self,
        body: Any,
        severity_number: int,
        fields: Mapping[str, Any],
        *,
        scope: Any = None,
        error: BaseException | None = None,
        time_unix_nano: int | None = None,
    ) -> None:
        """Emit one log record."""
        sampled = self._sampler is not None and severity_number < FAILED_SEVERITY
        try:
            if sampled and not self._keeps():
                self._sink.record_drop("log", "sampled")
                return
            record = self._lines.record(
                body, severity_number, fields, scope=scope, error=error,
                time_unix_nano=time_unix_nano,
            )  # fmt: skip
            if sampled:
                self._weigh(record)
            folder = self._folder
            if folder is not None:
                step = folder.classify(record["body"], record["time_unix_nano"])
                if step is not Step.PASS and self._is_folded(folder, step, record):
                    return
            line = self._encode(record)
        except Exception as failure:  # noqa: BLE001 - the application must not fail because of it
            line = self._encode(sanitised(body, severity_number, type(failure).__name__))
        self._sink.emit("log", line, severity_number)

    def release(self, *, everything: bool = False) -> bool:
        """Emit what was folded in a window that is over, or in any; True when some is left."""
        folder = self._folder
        if folder is None or not folder.is_holding:
            return False
        if everything or folder.is_over(clock.unix_ns()):
            self._roll(folder, clock.unix_ns())
        return folder.is_holding

    def renew(self) -> None:
        """Forget what was folded, which is the parent's to report; called in a forked child."""
        self._lock = allocate_lock()
        if self._folder is not None:
            self._folder.due(0)

    def _keeps(self) -> bool:
        """Return whether the running trace, if there is one, is in the sample."""
        trace_id = trace_fields().get("trace_id")
        return trace_id is None or self._sampler is None or self._sampler.keeps(trace_id)

    def _weigh(self, record: dict[str, Any]) -> None:
        if "trace_id" in record and self._sampler is not None:
            record["sample_weight"] = self._sampler.weight

    def _is_folded(self, folder: Folder, step: Step, record: dict[str, Any]) -> bool:
        if step is Step.ROLL:
            self._roll(folder, record["time_unix_nano"])
            step = folder.classify(record["body"], record["time_unix_nano"])
        if step is not Step.COMPARE:
            return False
        key = repr([record.get(name) for name in _SAME])
        # A signal handler may have interrupted this very thread in here: never wait.
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return folder.swallow(record["body"], key, record)
        finally:
            self._lock.release()

    def _roll(self, folder: Folder, now: int) -> None:
        if not self._lock.acquire(blocking=False):
            return  # another thread is about it
        try:
            due = folder.due(now)
        finally:
            self._lock.release()
        for record, times in due:
            attributes = {**record.get("attributes", {}), REPEATED: times}
            try:
                line = self._encode({**record, "attributes": attributes})
            except Exception:  # noqa: BLE001 - neither the flusher nor the application must fail
                self._sink.record_drop("log", "not_encodable", times)
                continue
            # It stands for all of them: the others are counted as dropped, this one is emitted.
            self._sink.record_drop("log", "repeated", times - 1)
            self._sink.emit("log", line, record["severity_number"])


_SAME: Final = ("scope", "severity_number", "body", "attributes", "context")
"""Fields that are equal in records that repeat one another; times and traces may differ."""
