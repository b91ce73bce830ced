"""The fields of an answer about one record at one sink, and their JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from penstock.router.read.offsets import StreamPartition


class Fate(StrEnum):
    """What became of a record at a sink."""

    DELIVERED = "delivered"
    WAITING = "waiting"
    NOT_ROUTED = "not_routed"
    NOT_READ = "not_read"
    """The job leaves the record out before it looks at routes."""
    SAMPLED = "sampled"
    DEDUPLICATED = "deduplicated"
    DEAD_LETTER = "dead_letter"
    REPLAYED = "replayed"
    """It was a dead letter, which a replay has delivered."""
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A record that is asked about.

    Attributes:
        at: Its partition.
        offset: Its offset.
        digest: `value_digest` of its value, from who has read it; None: values are not shown.
    """

    at: StreamPartition
    offset: int
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class ConditionResult:
    """A route's condition on one record.

    Attributes:
        where: The condition; None: it has none.
        result: True, false, or None where it is NULL, which counts as false.
        values: Columns that the condition looks at, as text; None: the asker has not shown that
            the record is known, and no values are shown.
    """

    route: str
    where: str | None
    result: bool | None
    values: dict[str, str | None] | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one record at one sink.

    Attributes:
        reason: Why, for people.
        route: The route that leads the record there.
        batch: Number of the batch that went over its offset.
        time_ns: Unix time at which that batch was delivered, or of the dead letter's refusal.
        found: The file or key at the destination, where the sink can say it.
        next: Next offset that the sink reads of the partition.
        behind: Records of the partition before this one that the sink has not got.
        step: Place and verb of the transform that left the record out.
        conditions: Conditions of the routes to the sink, where none leads the record there.
        dead_letter: Code, status, reason, attempt, time, file, and the command that replays it.
        lost: First offset that the log still has, and the end of what can be read.
        notes: What the verdict takes for granted, for people.
    """

    sink: str
    type: str
    fate: Fate
    reason: str = ""
    route: str | None = None
    batch: int | None = None
    time_ns: int | None = None
    found: str | None = None
    next: int | None = None
    behind: int | None = None
    step: str | None = None
    conditions: Sequence[ConditionResult] = ()
    dead_letter: dict[str, Any] | None = None
    lost: tuple[int, int] | None = None
    notes: Sequence[str] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """The verdict without what is empty."""
        return {name: value for name, value in asdict(self).items() if value not in (None, (), "")}
