"""What the doors must know of an option of a stream, beside its type, default, bounds and meaning.

An option is declared once, as a field of `StreamConfig`, of its `Retention`, or of
`ReplicationOptions`: an annotation gives bounds (`annotated_types`) and an `Option`. Everything
else is derived from that (`penstock.logd.stream_options`). Clients and executors of Spark
import these declarations, but not pydantic, which would cost them a fifth of a second.
"""

from dataclasses import KW_ONLY, dataclass
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


@dataclass(frozen=True, slots=True)
class Option:
    """Stands in the annotation of a field.

    Attributes:
        meaning: One sentence or more, with code in backquotes.
        change: How it is set.
        liftbridge: The field of Liftbridge's `CreateStreamRequest` that gives it; empty: none does.
        clamped: Whether a value beyond the bounds that Liftbridge's clients ask for is the nearest
            bound; else it is refused.
    """

    meaning: str
    _: KW_ONLY
    change: Change = Change.ALTER
    liftbridge: str = ""
    clamped: bool = False
