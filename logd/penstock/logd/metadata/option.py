"""What the doors must know of an option of a stream, beside its type, default, bounds and meaning.

An option is declared once, as a field of `StreamConfig`, of its `Retention`, or of
`ReplicationOptions`: an annotation gives bounds and meaning (`pydantic.Field`) and, where an option
is not set as most are, an `Option`. Everything else is derived from that
(`penstock.logd.api.stream_options`).
"""

from dataclasses import dataclass
from enum import StrEnum


class Change(StrEnum):
    """How an option is set on a command line."""

    ALTER = "alter"
    """By `streams create` and `streams alter`."""
    CREATE = "create"
    """By `streams create`; it cannot be changed."""
    MODE = "mode"
    """By a command of its own, as `streams pause`."""
    RESTORE = "restore"
    """By `restore`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Stands in the annotation of a field.

    Attributes:
        change: How it is set.
        liftbridge: The field of Liftbridge's `CreateStreamRequest` that gives it; empty: none does.
        clamped: Whether a value beyond the bounds that Liftbridge's clients ask for is the nearest
            bound; else it is refused.
    """

    change: Change = Change.ALTER
    liftbridge: str = ""
    clamped: bool = False
