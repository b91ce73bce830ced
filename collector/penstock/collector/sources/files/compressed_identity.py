"""Decide which compressed file holds the unread rest of a file that is gone.

Rotation writes a compressed copy of a file and removes the file. The rest that was not read by then
is in the copy. The copy is recognised by its decompressed bytes and its time. Positions count
decompressed bytes, so reading goes on where it stopped.

Older copies may begin with the same bytes, such as a long header, and were delivered long ago. So a
checkpoint marks a file with the last bytes before a position, and with the time of its last write.
A compressor keeps that time, or sets the later time at which it ran, or keeps an earlier one if the
writer went on for a while after the rename: `Mark.is_as_new`.

The fit of one compressed file (the first row that applies; `head` is what is known of the beginning
of the file that is gone, `mark` its marked bytes):

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

A file is broken if it is not of its format, is cut short, is larger than allowed, or cannot be read
now. A file that is still being written is cut short, too. Nothing is read from a file before it was
seen whole: until its checksum is met, a broken file may decompress to anything.

The choice among the candidates:

- A rest with exactly the size and time of the file that is gone is read.
- Otherwise a single rest is read, once no broken or unknown file could be the rest as well. An
  unknown file delays this while it is fresh.
- If no rest can be read, a file that cannot be read now (for want of a permission) is waited for as
  long as it is there: an operator can correct that.
- Of several rests that nothing tells apart none is read, because others may have been delivered.
  What is unread is given up and counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from penstock.collector.sources.files.identity import FileState, head_hash


class End(Enum):
    """Progress in a compressed file."""

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
        modified_ns: Time of the last write.
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
        found: Observations of each file.
        fits: Identity of each file, by the table.
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
