"""Find out which kinds of records a received unit holds, before it is spooled.

Audit and event records are urgent: they have their own spool, so that what is plentiful can
neither take their room nor stand before them. A unit that holds both kinds is taken apart.

The look is cheap where nothing is urgent: two searches for bytes. A line that has them is parsed,
so that no record is urgent for what its text says.
"""

from dataclasses import dataclass, field
from typing import Final

import orjson

from penstock.specs.subjects import KINDS, KindToken

Kind = KindToken
"""A kind of records, written as in subjects and in the configuration."""

URGENT: Final[frozenset[Kind]] = frozenset({"events", "audit"})
_MARKS: Final = (b'"audit"', b'"event"')


@dataclass(frozen=True, slots=True)
class ByUrgency:
    """A unit's record lines by urgency, both in their order.

    Attributes:
        kind: The kind of the first line that is not urgent; logs when there is none.
        rest: The lines that are not urgent, or none when no line is urgent.
        urgent_kind: `audit` if one line is, else events.
    """

    kind: Kind
    rest: list[bytes] = field(default_factory=list)
    urgent: list[bytes] = field(default_factory=list)
    urgent_kind: Kind = "events"


def split_by_urgency(body: bytes) -> ByUrgency:
    """Look at record lines, and take them apart where some are urgent."""
    if not any(mark in body for mark in _MARKS):
        end = body.find(b"\n")
        return ByUrgency(_kind_of(body if end < 0 else body[:end]))
    rest: list[bytes] = []
    urgent: list[bytes] = []
    found: set[Kind] = set()
    for line in body.split(b"\n"):
        kind = _kind_of(line) if any(mark in line for mark in _MARKS) else "logs"
        if kind in URGENT:
            urgent.append(line)
            found.add(kind)
        elif line:
            rest.append(line)
    kind = _kind_of(rest[0]) if rest else "logs"
    return ByUrgency(kind, rest, urgent, "audit" if "audit" in found else "events")


def _kind_of(line: bytes) -> Kind:
    """A line's kind; what is no record is a log, and the validator says what it thinks of it."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return "logs"
    kind = record.get("kind") if isinstance(record, dict) else None
    return KINDS.get(kind, "logs") if isinstance(kind, str) else "logs"
