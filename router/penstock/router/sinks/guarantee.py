"""What a sink promises when a batch comes again, as data: the documents' table is made of it."""

from dataclasses import dataclass
from enum import StrEnum

from typing_extensions import override


class Replay(StrEnum):
    """How often a record is in the destination after its batch came twice."""

    EXACTLY_ONCE = "exactly once"
    EFFECTIVELY_ONCE = "effectively once"
    AT_LEAST_ONCE = "at least once"


@dataclass(frozen=True, slots=True)
class Guarantee:
    """A sink's promise.

    Attributes:
        level: How often a record is there.
        how: By what; part of a sentence, for people.
        within: For effectively once, how far the promise reaches: a time, a number, a condition.
    """

    level: Replay
    how: str
    within: str | None = None

    def __post_init__(self) -> None:
        """A reach belongs to effectively once, and to nothing else."""
        if (self.within is not None) != (self.level is Replay.EFFECTIVELY_ONCE):
            raise ValueError("name `within` for effectively once, and only for that")

    @override
    def __str__(self) -> str:
        """As the table says it."""
        reach = f" within {self.within}" if self.within else ""
        return f"{self.level}{reach}: {self.how}"
