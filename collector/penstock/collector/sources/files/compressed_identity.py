"""Which compressed file has what is unread of a file that is gone.

Rotation writes a file again, compressed, and removes it. What was not read of it by then is in the
compressed one, which is known by what it becomes and by its time. Positions are of those bytes, so
reading goes on where it stopped.

Old ones may begin like the file, as all with one long header do, and were delivered long ago. So a
checkpoint marks a file: it has the last bytes before a position, and when it was last written. What
compresses either keeps that time, or leaves that of its own work, which is later, or keeps the one
from before it renamed the file, whose writer goes on for a while: `Mark.is_as_new`.

What was seen of one compressed file (the first row that fits; `head` is as much as is known of the
file that is gone, `mark` the bytes that are marked):

    letter  time or head     then                       fit
    a       nothing marked   -                          other: nothing tells it from an old one
    b       too old          -                          other: it is not even opened
    c       head not reached there is more to look at   undecided: look on
    d       head not reached it is broken               unknown: see below
    e       head not reached it ended                   other
    f       head differs     -                          other: it is not looked at to its end
    g       equal            mark reached, unseen       undecided: look again
    h       equal            mark differs               other
    i       equal            there is more to look at   undecided: look on
    j       equal            it is broken               broken: looked at again when it changes
    k       equal            shorter than the file was  other
    l       equal            it ended                   rest

Broken is what is not of its format, cut short, more than is allowed, or cannot be read now; a file
still being written is cut short, too. Nothing is read of one before it was seen whole: what a
broken one becomes may be anything until its checksum is met.

A rest with the very size and time that the file had is it. Else the only one is read, and only when
nothing broken or unknown may be it as well. An unknown one keeps a rest from being read while it is
fresh. One that cannot be read now, as for want of a permission, is waited for as long as it is
there where nothing would be read otherwise: that can be put right. Of several that nothing tells
apart none is read: what is unread is given up and counted, for of the others something may have
been delivered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from penstock.collector.sources.files.identity import FileState, head_hash


class End(Enum):
    """How far a compressed file was read."""

    OPEN = auto()
    WHOLE = auto()
    BROKEN = auto()


class Fit(Enum):
    """The relation of a compressed file to a file that is gone."""

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
        modified_ns: When it was last written.
        fresh: It was met lately as it is.
        unreadable: It could not be opened or read, which may be put right.
        digests: Digests of the bytes between two positions that were asked for before.
    """

    head: bytes
    length: int
    end: End
    modified_ns: int
    fresh: bool = False
    unreadable: bool = False
    digests: Mapping[tuple[int, int], str] = field(default_factory=dict)


class Next(Enum):
    """The next step for a file that is gone."""

    LOOK = auto()
    WAIT = auto()
    READ = auto()
    ALIKE = auto()
    GIVE_UP = auto()


def fit(state: FileState, seen: Seen) -> Fit:
    """The table."""
    mark = state.mark
    if mark is None or not mark.is_as_new(seen.modified_ns):
        return Fit.OTHER
    if len(seen.head) < state.head_length:
        return {End.OPEN: Fit.UNDECIDED, End.BROKEN: Fit.UNKNOWN, End.WHOLE: Fit.OTHER}[seen.end]
    if head_hash(seen.head[: state.head_length]) != state.head_hash:
        return Fit.OTHER
    if seen.length >= mark.end and mark.length:
        digest = seen.digests.get(mark.span)
        if digest != mark.digest:
            return Fit.UNDECIDED if digest is None else Fit.OTHER
    if seen.end is not End.WHOLE:
        return Fit.UNDECIDED if seen.end is End.OPEN else Fit.BROKEN
    return Fit.OTHER if seen.length < max(state.position, mark.size) else Fit.REST


def choose(
    state: FileState, found: Mapping[str, Seen], fits: Mapping[str, Fit]
) -> tuple[Next, str]:
    """Choose the next step, and the compressed file it is for, by its name; empty: none.

    Args:
        state: The state of the file that is gone.
        found: What was seen of each.
        fits: What each is, by the table.
    """
    undecided = [path for path, one in fits.items() if one is Fit.UNDECIDED]
    if undecided:
        return Next.LOOK, undecided[0]
    whole = [path for path, one in fits.items() if one is Fit.REST]
    for path in whole:
        assert state.mark is not None
        if state.mark.is_unchanged(found[path].length, found[path].modified_ns):
            return Next.READ, path
    if any(
        one is Fit.BROKEN or (one is Fit.UNKNOWN and found[path].fresh)
        for path, one in fits.items()
    ):
        return Next.WAIT, ""
    if len(whole) == 1:
        return Next.READ, whole[0]
    if any(found[path].unreadable for path, one in fits.items() if one is Fit.UNKNOWN):
        return Next.WAIT, ""
    return (Next.ALIKE if whole else Next.GIVE_UP), ""
