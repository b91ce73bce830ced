"""Declaration of a stream's option, beside its type, default, bounds and meaning.

An option is declared once, as a field of `StreamConfig`, of its `Retention`, or of
`ReplicationOptions`: an annotation gives bounds (`annotated_types`) and an `Option`. Everything
else is derived from that (`penstock.logd.stream_options`). Clients and executors of Spark
import these declarations, but not pydantic, which would cost them a fifth of a second.
"""

from dataclasses import KW_ONLY, dataclass
from enum import StrEnum


class Change(StrEnum):
    """Commands that set an option."""

    ALTER = "alter"
    """Set by `streams create` and `streams alter`."""
    CREATE = "create"
    """Set by `streams create`; it cannot be changed."""
    MODE = "mode"
    """Set by its own command, as `streams pause`."""
    RESTORE = "restore"
    """Set by `restore`."""


@dataclass(frozen=True, slots=True)
class Option:
    """Stands in the annotation of a field.

    Attributes:
        meaning: One sentence or more, with code in backquotes.
        change: Commands that set it.
        liftbridge: The field of Liftbridge's `CreateStreamRequest` that gives it; empty: none does.
        clamped: Whether a value beyond the bounds that Liftbridge's clients ask for is the nearest
            bound; else it is refused.
    """

    meaning: str
    _: KW_ONLY
    change: Change = Change.ALTER
    liftbridge: str = ""
    clamped: bool = False
