"""A record on its way through the transforms, and what a transform says of it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from penstock.collector.decode.line_rules import NO_TIME, OnError
from penstock.collector.delivery.ordered_queue import Batch
from penstock.collector.transforms.paths import Fields
from penstock.collector.transforms.settings import TransformSettings
from penstock.specs.validate.validator import attach, attach_and_check, check_together
from penstock.specs.validate.verdict import Accepted


class SettingsError(ValueError):
    """What a transform's settings name cannot be used; begins with the key."""


class DropReason(Enum):
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

Verdict = str | DropReason | Refusal
"""What a transform says: the name of the output that the record leaves by, or its end."""


@dataclass(frozen=True, slots=True)
class TransformContext:
    """What a transform is made with besides its settings.

    Attributes:
        name: The transform's, unique in the configuration.
        resource: Facts of this host, and the configuration's `resource`.
    """

    name: str
    resource: Mapping[str, Any]


class Transform(Protocol):
    """One step. It does no I/O, reads no clock and rolls no dice.

    One of a third party is a class like those here; see docs/howto/write-a-source.md.
    """

    settings: ClassVar[type[TransformSettings]]
    """The model of its section of the configuration."""

    @classmethod
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        """Make the transform; `settings` is an instance of the class's own.

        Raises:
            SettingsError: What the settings name cannot be used.
        """
        ...

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


@dataclass(frozen=True, slots=True)
class Arrival:
    """Record lines of one source, as `penstock.collector.delivery.pipeline.Chunk` has them."""

    source: str
    start: int
    sequences: Sequence[int]
    lines: Sequence[bytes]
    resource: bytes
    observed_ns: int
    verdicts: Sequence[Accepted | None] = ()
    ended: Mapping[int, OnError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refused:
    """A line for quarantine, as it came."""

    sequence: int
    reason: str
    line: bytes


@dataclass(slots=True)
class Outcome:
    """What became of an arrival's records and of the copies that were made of them.

    Attributes:
        batches: By subject, and which of a record's copies for that subject it is.
        ended: How many went no further, and why.
        copies: Records besides those that arrived.
        scrubbed: Records that had something sensitive taken out.
        found: What the detectors of sensitive values found, by their names; `without_key`:
            pseudonyms that were redacted because there is no hash key.
        pause_ns: How long the source must wait before it gives more.
    """

    batches: dict[tuple[str, int], Batch] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    ended: Counter[DropReason] = field(default_factory=Counter)
    copies: int = 0
    scrubbed: int = 0
    found: Counter[str] = field(default_factory=Counter)
    pause_ns: int = 0


def without_ended(arrival: Arrival, outcome: Outcome) -> Arrival:
    """The records that go on; the outcome says of the others why they do not."""
    kept: list[int] = []
    for place, sequence in enumerate(arrival.sequences):
        match arrival.ended.get(sequence, "pass"):
            case "pass":
                kept.append(place)
            case "filter":
                outcome.ended[DropReason.FILTERED] += 1
            case "quarantine":
                outcome.refused.append(Refused(sequence, NO_TIME, arrival.lines[place]))
    return replace(
        arrival,
        sequences=[arrival.sequences[place] for place in kept],
        lines=[arrival.lines[place] for place in kept],
        verdicts=[arrival.verdicts[place] for place in kept] if arrival.verdicts else (),
    )


def judged_together(arrival: Arrival) -> tuple[Sequence[bytes], Sequence[Accepted | None]]:
    """Lines with what was hoisted out of them, and the verdicts on them.

    There is none on a line that must be judged by itself.
    """
    lines, known = arrival.lines, arrival.verdicts or [None] * len(arrival.lines)
    if all(known):
        return lines, known
    missing = [line for line, verdict in zip(lines, known, strict=True) if verdict is None]
    whole, verdicts = _completed(missing, arrival)
    if len(missing) == len(lines):
        return whole, verdicts
    others = zip(whole, verdicts, strict=True)
    found = [
        next(others) if verdict is None else (line, verdict)
        for line, verdict in zip(lines, known, strict=True)
    ]
    return [line for line, _ in found], [verdict for _, verdict in found]


def _completed(
    lines: Sequence[bytes], arrival: Arrival
) -> tuple[Sequence[bytes], Sequence[Accepted | None]]:
    resource, observed_ns = arrival.resource, arrival.observed_ns
    try:
        if resource:
            whole, verdicts = attach_and_check(lines, resource, observed_ns)
        else:
            whole, verdicts = lines, check_together(lines)
    except Exception:  # noqa: BLE001 - judged each by itself, the one that did it is found and named
        whole = [attach(line, resource, observed_ns) for line in lines] if resource else lines
        verdicts = None
    return whole, verdicts or [None] * len(whole)
