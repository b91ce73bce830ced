"""The identity of files: generations, and what a checkpoint keeps of each.

A file is known by device, inode and a hash of its first bytes. Each alone is not enough: inodes are
reused, heads are equal, names move. A generation is one life of one file's content. Its number is
never given twice, is durable before anything of the file is published, and is part of the producer
identity. So new content in the same file is never taken for a repeat.

Files with one long header have equal heads. So the bytes before a position that was read are known,
too, up to `HEAD_BYTES`: the marked bytes. Only bytes after the last zero are marked. A zero that is
found among marked bytes proves nothing, because zeros appear without a new file: a reserved block
is filled later, and a writer that goes on at its old position in a truncated file leaves a hole.

The verdict on a file that was found (the first row that applies):

    letter  device+inode  size     head     marked   verdict
    a       unknown       0        -        -        not yet: there is nothing to know it by
    b       unknown       > 0      -        -        new generation
    c       known         < read   -        -        new generation: truncated
    d       known         >= read  differs  -        new generation: replaced in place
    e       known         >= read  equal    differs  new generation: likewise
    f       known         >= read  equal    equal    the same: go on where reading stopped
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from penstock.collector.limits import HEAD_BYTES

DIGEST_BYTES: Final = 16
FILE_ORIGIN: Final = "file/"
"""Prefix of the origins that are generations of files."""
_SECOND_NS: Final = 1_000_000_000
_WRITTEN_ON_NS: Final = 60 * _SECOND_NS
_KEPT_NS: Final = 1_000_000


class Verdict(Enum):
    """The relation of a file that was found to one that is known."""

    NOT_YET = auto()
    NEW = auto()
    REPLACED = auto()
    TRUNCATED = auto()
    SAME = auto()


@dataclass(frozen=True, slots=True)
class Found:
    """A file as it is on disk now.

    Attributes:
        head: Its first `HEAD_BYTES` bytes or fewer.
        marked: Its bytes where the known file is marked; empty when those were not read.
    """

    device: int
    inode: int
    size: int
    head: bytes
    marked: bytes = b""


@dataclass(frozen=True, slots=True)
class Mark:
    """A file's state when it was last read, and the digest of bytes before a position.

    Attributes:
        size: Bytes that it had.
        modified_ns: Time of the last write by then.
        end: End of the marked bytes: a position of the state, or how far the file had been read
            when it was closed.
        length: Number of marked bytes before `end`; at most `HEAD_BYTES`.
        digest: Digest of these bytes, hex.
    """

    size: int
    modified_ns: int
    end: int
    length: int
    digest: str

    @property
    def span(self) -> tuple[int, int]:
        """Begin and end of the marked bytes, the end exclusive."""
        return self.end - self.length, self.end

    def as_list(self) -> list[int | str]:
        return [self.size, self.modified_ns, self.end, self.length, self.digest]

    def is_as_new(self, modified_ns: int) -> bool:
        """Return whether a copy modified at that time may have the file's later content.

        A rotation may give the copy the time that the file had before it was renamed, although its
        writer goes on until it reopens its file.
        """
        return modified_ns > self.modified_ns - _WRITTEN_ON_NS

    def is_unchanged(self, size: int, modified_ns: int) -> bool:
        """Return whether a copy of that size and time has the content that was read.

        Some tools keep a copy's time to the second, or without the last digits.
        """
        near = abs(modified_ns - self.modified_ns) < _KEPT_NS
        return size == self.size and (
            near or modified_ns == self.modified_ns - self.modified_ns % _SECOND_NS
        )


def read_mark(value: object) -> Mark | None:
    """Read what `as_list` gave; None for anything else, as a later version may write."""
    match value:
        case [int(size), int(modified_ns), int(end), int(length), str(digest)]:
            return Mark(size, modified_ns, end, length, digest)
        case _:
            return None


@dataclass(slots=True)
class FileState:
    """A file generation that is being read.

    Attributes:
        head_hash: Hash of the first `head_length` bytes, hex.
        position: Everything before it is done; where reading starts again.
        mark: Mark by which it, or a compressed copy, is also known; states from before 0060 have
            none.
    """

    source: str
    generation: int
    device: int
    inode: int
    head_hash: str
    head_length: int
    path: str
    position: int = 0
    mark: Mark | None = None

    @property
    def origin(self) -> str:
        """The name of this generation in queues."""
        return f"{FILE_ORIGIN}{self.generation}"

    def classify(self, found: Found, *, read: int, marked: str) -> Verdict:
        """Rows c to f of the table.

        Args:
            found: A file of the same device and inode.
            read: Position up to which the file was read.
            marked: Hash of what was there where `found.marked` is now.
        """
        assert (found.device, found.inode) == (self.device, self.inode)
        if found.size < read:
            return Verdict.TRUNCATED
        if head_hash(found.head[: self.head_length]) != self.head_hash:
            return Verdict.REPLACED
        if found.marked and b"\0" not in found.marked and head_hash(found.marked) != marked:
            return Verdict.REPLACED
        return Verdict.SAME

    def beyond_head(self, span: tuple[int, int]) -> tuple[int, int]:
        """The bytes to look at besides the head: these, or none where the head has them all."""
        return span if span[1] > self.head_length else (0, 0)

    def learn(self, head: bytes) -> None:
        """The file has grown: know it by more of its head."""
        if len(head) > self.head_length:
            self.head_length = min(len(head), HEAD_BYTES)
            self.head_hash = head_hash(head[: self.head_length])

    def as_dict(self) -> dict[str, Any]:
        """Return the state for the checkpoint; the mark lies elsewhere, for earlier versions."""
        return {
            "source": self.source,
            "generation": self.generation,
            "device": self.device,
            "inode": self.inode,
            "head_hash": self.head_hash,
            "head_length": self.head_length,
            "path": self.path,
            "position": self.position,
        }


class Generations:
    """Hands out generation numbers and keeps files from before a restart."""

    def __init__(self, *, following: int = 1, known: Iterable[FileState] = ()) -> None:
        self.following = following
        """The next number to be given."""
        self.known: dict[tuple[str, int, int], FileState] = {}
        """Files of the checkpoint that were not found again yet."""
        self.lost: list[FileState] = []
        """Files that are gone; what is unread of them may be in compressed ones. Their device and
        inode may be another file's by now."""
        self.add(known)

    def add(self, states: Iterable[FileState]) -> None:
        """Know files for when they are found again; two of one inode: the later has it.

        A generation that waits already is known; an earlier version's checkpoint may have it twice.
        """
        waiting = {state.generation for state in self.waiting}
        for state in states:
            if state.generation in waiting:
                continue
            waiting.add(state.generation)
            key = (state.source, state.device, state.inode)
            other = self.known.setdefault(key, state)
            if other is not state:
                older, later = sorted((other, state), key=lambda state: state.generation)
                self.known[key] = later
                self.lost.append(older)

    def lose(self, state: FileState) -> None:
        """A known file is gone."""
        del self.known[state.source, state.device, state.inode]
        self.lost.append(state)

    def forget(self, state: FileState) -> None:
        """A file that waits is not read any more, whatever is unread of it."""
        self.lost = [one for one in self.lost if one is not state]
        key = (state.source, state.device, state.inode)
        if self.known.get(key) is state:
            del self.known[key]

    @property
    def waiting(self) -> list[FileState]:
        """States of files that are not being read, in a checkpoint's order: lost ones first."""
        return [*self.lost, *self.known.values()]

    def begin(self, source: str, found: Found, path: str) -> FileState:
        """A new generation of a file."""
        number, self.following = self.following, self.following + 1
        head = found.head[:HEAD_BYTES]
        return FileState(
            source, number, found.device, found.inode, head_hash(head), len(head), path
        )

    def marked(self, source: str, found: Found) -> tuple[int, int]:
        """Return which bytes of a file are needed to recognise it."""
        state = self.known.get((source, found.device, found.inode))
        if state is None or state.mark is None:
            return 0, 0
        return state.beyond_head(state.mark.span)

    def recognise(self, source: str, found: Found) -> tuple[Verdict, FileState | None]:
        """The whole table; the state of a file that is the same is handed over, another is lost."""
        state = self.known.get((source, found.device, found.inode))
        if state is None:
            return (Verdict.NEW, None) if found.size else (Verdict.NOT_YET, None)
        mark, read = state.mark, state.position
        if mark is not None:
            read = max(read, mark.end)  # transforms may hold the position back
        marked = "" if mark is None else mark.digest
        verdict = state.classify(found, read=read, marked=marked)
        if verdict is Verdict.SAME:
            del self.known[source, found.device, found.inode]
            return verdict, state
        self.lose(state)
        return (verdict, None) if found.size else (Verdict.NOT_YET, None)


def written(begin: int, data: bytes) -> tuple[int, bytes]:
    """Return which of some bytes may be marked, and where they begin: zeros may be overwritten.

    Args:
        begin: The position of the first of them.
        data: They.
    """
    data = data.rstrip(b"\0")
    known = data.rpartition(b"\0")[2]
    return begin + len(data) - len(known), known


def head_hash(head: bytes) -> str:
    """Return the digest by which a file's head, or its marked bytes, are compared."""
    return hashlib.blake2b(head, digest_size=DIGEST_BYTES).hexdigest()
