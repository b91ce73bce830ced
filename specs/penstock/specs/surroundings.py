"""What goes onto every record of a process; and attributes, made to fit and looked at once.

What is bound stays the same over many records, and so do the names that a line of code gives its
attributes: both are scrubbed when they are first seen, and remembered.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from penstock.specs.attributes import clean_attributes, has_plain_values
from penstock.specs.bound import Bound, bound
from penstock.specs.exceptions import exception_attributes
from penstock.specs.limits import ATTRIBUTES_MAX
from penstock.specs.machine import MachineFacts
from penstock.specs.scrub import Scrubber

_DAY_NS: Final = 86_400 * 10**9
_NAMES_MAX: Final = 4096
"""Different sets of attributes' names that are remembered."""


class Surroundings:
    """What makers of lines have in common.

    Args:
        scrubber: Takes sensitive values out.
        facts: Goes onto every record.
    """

    def __init__(self, scrubber: Scrubber | None = None, facts: MachineFacts | None = None) -> None:
        self._scrubber = scrubber
        self._searches = scrubber is not None and scrubber.searches_values
        self._facts = facts
        self._harmless: set[tuple[str, ...]] = set()
        self._around = Around(None, 0, 0, {}, {}, 0)

    def _around_at(self, now: int) -> "Around":
        """What goes onto a record of here and of that time."""
        around = self._around
        if around.bound is bound() and around.since_ns <= now < around.until_ns:
            return around
        return self._look_around(now)

    def _attributes(
        self, fields: Mapping[str, Any], around: "Around", error: BaseException | None = None
    ) -> tuple[dict[str, Any], int]:
        """A record's own fields over what is around, and how many were left out."""
        dropped = around.dropped
        if error is not None or tuple(fields) not in self._harmless or not has_plain_values(fields):
            fields, more = self._fit(fields, error, around.since_ns)
            dropped += more
        attributes = {**around.attributes, **fields}
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
        if self._scrubber is not None and given:
            fitted = self._scrubber.scrub_names(given, time_ns)
            dropped += len(given) - len(fitted)
        names = tuple(fields)
        if fitted is given and names == tuple(given):
            if len(self._harmless) >= _NAMES_MAX:
                self._harmless.clear()
            self._harmless.add(names)
        return fitted, dropped

    def _look_around(self, now: int) -> "Around":
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
        around = Around(given, since, until, treated.context, attributes, dropped)
        self._around = around
        return around


class Around(NamedTuple):
    """What goes onto every record of one binding, from one time until, and without, another."""

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
