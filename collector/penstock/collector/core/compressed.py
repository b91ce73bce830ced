"""Which compressed file has what is unread of a file that is gone.

Rotation writes a file again, compressed, and removes it. What was not read of it by then is in the
compressed one, which is known by the head of what it becomes. Positions are of those bytes, so
reading goes on where it stopped.

What was seen of one compressed file (the first row that fits; `head` is as much as is known of the
file that is gone):

    letter  head             then                       fit
    a       not reached      there is more to look at   undecided: look on
    b       not reached      it is broken               unknown: only waited for while it is fresh
    c       not reached      it ended                   other
    d       differs          -                          other: it is not looked at to its end
    e       equal            there is more to look at   undecided: look on
    f       equal            it is broken               broken: looked at again when it changes
    g       equal            it ended before `position` other
    h       equal            it ended                   rest: read on in it

Broken is what is not of its format, cut short, or more than is allowed; a file still being written
is cut short, too. Nothing is read of one before it was seen whole: what a broken one becomes may be
anything until its checksum is met. Several with equal heads are not told apart: the longest is it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from penstock.collector.core.files import FileState, head_hash


class End(Enum):
    """How far a compressed file was looked at."""

    OPEN = auto()
    WHOLE = auto()
    BROKEN = auto()


class Fit(Enum):
    """What a compressed file is to one that is gone."""

    UNDECIDED = auto()
    UNKNOWN = auto()
    OTHER = auto()
    BROKEN = auto()
    REST = auto()


@dataclass(frozen=True, slots=True)
class Seen:
    """A compressed file as far as it was looked at.

    Attributes:
        head: The first `HEAD_BYTES` bytes after decompression, or fewer.
        length: Bytes after decompression, so far.
        fresh: It changed lately, or could not be read just now.
    """

    head: bytes
    length: int
    end: End
    fresh: bool = False


class Next(Enum):
    """What is to be done for a file that is gone."""

    LOOK = auto()
    WAIT = auto()
    READ = auto()
    GIVE_UP = auto()


def fit(state: FileState, seen: Seen) -> Fit:
    """The table."""
    if len(seen.head) < state.head_length:
        return {End.OPEN: Fit.UNDECIDED, End.BROKEN: Fit.UNKNOWN, End.WHOLE: Fit.OTHER}[seen.end]
    if head_hash(seen.head[: state.head_length]) != state.head_hash:
        return Fit.OTHER
    if seen.end is not End.WHOLE:
        return Fit.UNDECIDED if seen.end is End.OPEN else Fit.BROKEN
    return Fit.OTHER if seen.length < state.position else Fit.REST


def choose(state: FileState, found: Mapping[str, Seen]) -> tuple[Next, str]:
    """What to do next, and with which of the compressed files, by their names; empty: none."""
    fits = {path: fit(state, seen) for path, seen in found.items()}
    undecided = [path for path in fits if fits[path] is Fit.UNDECIDED]
    if undecided:
        return Next.LOOK, undecided[0]
    whole = [path for path in fits if fits[path] is Fit.REST]
    if whole:
        return Next.READ, max(whole, key=lambda path: found[path].length)
    waits = any(
        one is Fit.BROKEN or (one is Fit.UNKNOWN and found[path].fresh)
        for path, one in fits.items()
    )
    return (Next.WAIT if waits else Next.GIVE_UP), ""
