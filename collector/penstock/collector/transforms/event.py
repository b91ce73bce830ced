"""A record on its way through the transforms, and what a transform says of it."""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from penstock.collector.transforms.paths import Fields


class Ending(Enum):
    """Why a record goes no further; the value is its name in the accounts."""

    FILTERED = "filtered"
    SAMPLED = "sampled"
    THROTTLED = "throttled"
    DEDUPLICATED = "deduplicated"
    AGGREGATED = "aggregated"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A record goes to quarantine, with the reason; it never holds the record's values."""

    reason: str


@dataclass(slots=True)
class Event:
    """One record.

    Attributes:
        source: Name of the source it came from.
        sequence: Its place in what its source gave; the same when it is read again.
        fields: The record. Transforms put another object here and never change one.
        history: What the record was after each transform that changed it, with the transform's
            name; tells which one broke it.
        subject: Template by which `route` replaced the output's; None: the output's.
        pause_ns: How long its source must wait before it gives more.
    """

    source: str
    sequence: int
    fields: Fields
    history: list[tuple[str, Fields]] = field(default_factory=list)
    subject: Any = None
    pause_ns: int = 0

    def copy(self) -> "Event":
        """The same record, for another way through the graph."""
        return Event(self.source, self.sequence, self.fields, [*self.history], self.subject)


PASS = ""
"""The name of a transform's only output."""

Verdict = str | Ending | Refusal
"""What a transform says: the name of the output that the record leaves by, or its end."""


class Transform(Protocol):
    """One step. It does no I/O, reads no clock and rolls no dice."""

    outputs: tuple[str, ...]
    """Names of its outputs; `PASS` alone unless records part here."""

    def apply(self, event: Event, now_ns: int) -> Verdict:
        """Judge or change one record; `now_ns` is monotonic."""


@runtime_checkable
class Noting(Transform, Protocol):
    """A transform that counts what it does not understand of records, which go on all the same."""

    notes: Counter[str]
    """By reason, as a source's."""


@runtime_checkable
class Creating(Transform, Protocol):
    """A transform that makes records of its own, from time to time."""

    interval_ns: int

    def flush(self, now_ns: int, unix_ns: int) -> list[Fields]:
        """The records that are due, all there is since the last time."""
