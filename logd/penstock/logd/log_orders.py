"""What a log's writer is asked to do besides appending, and what it reports.

Orders are done in the order in which they were given, appends included, and reported in that order.
Those that a replica's core asks for in the same words are its own
(`penstock.logd.core.replication.effects`).
"""

from dataclasses import dataclass
from enum import Enum

from penstock.logd.core.replication.effects import BeginEpoch, DeleteBefore, Reset, Truncate
from penstock.logd.core.turn import Append
from penstock.logd.frame import FrameHeader
from penstock.logd.memory import Memory

Frame = tuple[FrameHeader, bytes]

# Orders.


class Wish(Enum):
    """What needs no more to be said."""

    SEAL = "seal"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class Remembered:
    """What the intake remembers of everything below `offset` is written down."""

    offset: int


@dataclass(frozen=True, slots=True)
class Note:
    """What a replica knows is to be written down; durably, if what is ordered next needs it."""

    high_watermark: int
    agreed_epoch: int
    durable: bool = False


@dataclass(frozen=True, slots=True)
class Patch:
    """Put these frames in the place of the damaged range [first, upto).

    Void if the log was cut since: `cuts` is that of the last truncation or reset then.
    """

    first: int
    upto: int
    frames: tuple[Frame, ...]
    cuts: int


@dataclass(frozen=True, slots=True)
class PurgeBefore:
    """Delete whole segments below `offset`, and the active one if all of it is below."""

    offset: int


Change = BeginEpoch | Truncate | Reset | DeleteBefore | PurgeBefore | Patch | Note
"""What changes the log, or what is beside it, otherwise than by appending."""

Order = Append | Memory | Remembered | Wish | Change

# Outcomes. `cuts` is that of the last truncation or reset done by then: what was reported before
# one speaks of records that may be gone.


@dataclass(frozen=True, slots=True)
class Written:
    """Everything below `upto` can be read from the log; `Durable` follows."""

    upto: int
    cuts: int = 0


@dataclass(frozen=True, slots=True)
class Durable:
    """Everything below `upto` is as durable as the stream's policy asks."""

    upto: int
    cuts: int = 0


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """The log refuses writes; what was handed over and not reported durable is not stored."""

    reason: str


@dataclass(frozen=True, slots=True)
class MemoryWanted:
    """What the intake remembers is to be written down.

    Attributes:
        ids: Message ids, too, for records are about to be removed or rewritten. Else the next start
            would have many frames to read.
    """

    ids: bool = False


@dataclass(frozen=True, slots=True)
class MemorySynced:
    """Everything below the memory's offset is durable, so it may be written down."""

    memory: Memory


@dataclass(frozen=True, slots=True)
class EpochBegun:
    """The epoch's beginning is durable; what is submitted from now on is of it."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Cut:
    """The log has been truncated and ends at `end_offset`, at most where it was asked to."""

    end_offset: int
    cuts: int


@dataclass(frozen=True, slots=True)
class WasReset:
    """The log is empty and begins at `start`."""

    start: int
    cuts: int


@dataclass(frozen=True, slots=True)
class Patched:
    """No damage is known in [first, upto) any more; what was filled is durable."""

    first: int
    upto: int
    cuts: int


@dataclass(frozen=True, slots=True)
class StartMoved:
    """Retention has deleted what lies below `start`."""

    start: int


Outcome = (
    Written | Durable | CommitFailed | MemoryWanted | MemorySynced
    | EpochBegun | Cut | WasReset | Patched | StartMoved
)  # fmt: skip
