"""The interface of a transform: records go in, and it decides what becomes of each.

The module of a transform has its settings, then how it reads a record, then the class that does it,
and last what the class counts besides the graph's own figures.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, runtime_checkable

from pydantic import AfterValidator, Field

from penstock.collector.regex import compile_pattern
from penstock.collector.sources.settings import Section
from penstock.collector.transforms.expressions.expression import (
    compile_condition,
    compile_expression,
)
from penstock.collector.transforms.expressions.paths import Fields, parse_path, parse_selection
from penstock.collector.transforms.expressions.subject_template import SubjectTemplate
from penstock.service.config_types import Form


def _checked_by(check: Callable[[str], object]) -> AfterValidator:
    """A text that `check` takes without a ValueError."""

    def keep(text: str) -> str:
        check(text)
        return text

    return AfterValidator(keep)


Seed = Annotated[str, Form(r"^[\x20-\x7e]{0,32}$", "at most 32 printable characters of ASCII")]
Condition = Annotated[str, _checked_by(compile_condition)]
Expression = Annotated[str, _checked_by(compile_expression)]
Pattern = Annotated[str, _checked_by(compile_pattern)]
ReadablePath = Annotated[str, _checked_by(parse_path)]
WritablePath = Annotated[str, _checked_by(partial(parse_path, writable=True))]
WritablePaths = Annotated[str, _checked_by(parse_selection)]
Subject = Annotated[str, _checked_by(SubjectTemplate)]


class TransformSettings(Section):
    """The settings of one transform; a subclass narrows `type` to its one name.

    Attributes:
        inputs: Inputs: names of sources, or outputs of transforms.
    """

    type: str
    inputs: list[str] = Field(min_length=1, max_length=256)


class SettingsError(ValueError):
    """A name in a transform's settings cannot be used; the message begins with the key."""


class DropReason(Enum):
    """Why a record goes no further; the value is its name in the accounts.

    `REPEATED`: a transform took it before a kill, and what it made of it is durable. No transform
    returns it.
    """

    FILTERED = "filtered"
    SAMPLED = "sampled"
    THROTTLED = "throttled"
    DEDUPLICATED = "deduplicated"
    AGGREGATED = "aggregated"
    REPEATED = "repeated"


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
        history: The record after each transform that changed it, with the transform's name; it
            shows which one broke it.
        subject: Template by which `route` replaced the output's; None: the output's.
        pause_ns: Nanoseconds that its source must wait before it sends more.
    """

    source: str
    sequence: int
    fields: Fields
    history: list[tuple[str, Fields]] = field(default_factory=list)
    subject: Any = None
    pause_ns: int = 0

    @property
    def observed_ns(self) -> int:
        """Arrival time at the collector in ns; a time without a year is taken near it."""
        fields = self.fields
        return int(fields.get("observed_time_unix_nano") or fields.get("time_unix_nano") or 0)

    def copy(self) -> "Event":
        """Return a copy of the record for another way through the graph."""
        return Event(self.source, self.sequence, self.fields, [*self.history], self.subject)


PASS = ""
"""The name of a transform's only output."""


@dataclass(frozen=True, slots=True)
class Split:
    """A record becomes several, which leave by the only output; none of them is the record."""

    parts: Sequence[Fields]


Verdict = str | DropReason | Refusal | Split
"""Verdict of a transform: the name of the output that the record leaves by, its end, or its parts.
"""


OnFailure = Literal["pass", "filter", "quarantine"]
"""Treatment of a record that a transform cannot read."""


def failed(policy: OnFailure, reason: str) -> Verdict:
    """The verdict on a record that could not be read, by the transform's setting."""
    match policy:
        case "pass":
            return PASS
        case "filter":
            return DropReason.FILTERED
        case "quarantine":
            return Refusal(reason)


@dataclass(frozen=True, slots=True)
class TransformContext:
    """Context of a transform besides its settings.

    Attributes:
        name: The transform's name, unique in the configuration.
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
        """Filter or change one record; `now_ns` is monotonic."""

    @property
    def notes(self) -> Mapping[str, int]:
        """Number of passed-on records that the transform did not understand, by reason."""
        return {}

    @property
    def held_since_ns(self) -> int | None:
        """When it took in the oldest record of which it still holds something; None: it has none.

        For an `Aggregator`. The time is the `now_ns` of that record. What was taken in since then
        is read again after a kill; what a transform holds and says nothing of is lost by one.
        """
        return None

    def takes(self, event: Event) -> bool:
        """Return whether `apply` passes nothing of the record on, whatever the transform holds.

        For an `Aggregator`, asked after a kill of records that are met again. What it takes and had
        given out by then it does not get a second time; else it gets all of them.
        """
        del event
        return False

    @property
    def is_flush_due(self) -> bool:
        """True if an aggregator has so much to give out that the flush may not wait."""
        return False


@runtime_checkable
class Aggregator(Transform, Protocol):
    """A transform that makes new records from time to time."""

    interval_ns: int

    def flush(self, now_ns: int, unix_ns: int, *, everything: bool = False) -> list[Fields]:
        """The records that are due; `everything`: all there are, because the graph ends."""


@runtime_checkable
class DeferredSampler(Aggregator, Protocol):
    """An aggregator that holds records whole, and decides later which of them come out again.

    That it takes a record (`DropReason.AGGREGATED`) is no drop yet.
    """

    def dropped(self) -> list[tuple[str, Fields]]:
        """The records that it has dropped since the last call, each behind its source's name."""
