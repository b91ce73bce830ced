"""One open file that is read to its end, whatever its name becomes."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import re2

from penstock.collector.core.containers import ReadPiece, read_cri, read_docker, read_plain
from penstock.collector.core.files import FileState, Found, Mark, Verdict, head_hash, written
from penstock.collector.core.joining import IsStart, Joiner
from penstock.collector.core.lines import Line, LineCutter
from penstock.collector.limits import (
    CONTAINER_LINE_BYTES_MAX,
    FILE_READ_BYTES,
    HEAD_BYTES,
    HELD_BYTES_MAX,
    MULTILINE_LOOK_BYTES,
)
from penstock.collector.source_sections import FileSource as FileSection
from penstock.collector.source_sections import MultilineSection

_CLOSED: Final = -1
"""No descriptor: whoever asks about it learns that (EBADF), and nothing of another file."""


def look(descriptor: int, marked: tuple[int, int] = (0, 0)) -> Found:
    """What identifies the file behind a descriptor, and what it has between two positions."""
    status = os.fstat(descriptor)
    head = os.pread(descriptor, HEAD_BYTES, 0)
    return Found(status.st_dev, status.st_ino, status.st_size, head, read_span(descriptor, marked))


def read_span(descriptor: int, span: tuple[int, int]) -> bytes:
    """What a file has between two positions, as far as it goes."""
    begin, end = span
    return os.pread(descriptor, end - begin, begin) if end > begin else b""


@dataclass(slots=True)
class Tail:
    """A file being read.

    Attributes:
        joiner: What makes events of several lines; None when each line is one.
        grew_ns: When something was read last.
        reads_again: False once everything was handed out that the file had when it was opened.
        orphaned_ns: When it was first seen at its end with no name of the source's any more.
        changed: Size and time of the last write, as its content was looked at last.
        before: The last bytes before the position that was read; at most `HEAD_BYTES`.
        marked: Of what the state's mark was taken.
    """

    state: FileState
    descriptor: int
    lines: LineCutter
    joiner: Joiner | None = None
    grew_ns: int = 0
    reads_again: bool = True
    orphaned_ns: int | None = None
    changed: tuple[int, int] = (-1, -1)
    before: bytes = b""
    marked: tuple[int, int, int] = (-1, -1, -1)

    @property
    def key(self) -> tuple[int, int]:
        """Device and inode."""
        return self.state.device, self.state.inode

    def verdict(self) -> Verdict:
        """Whether the content is still the one that was being read; cheap when nothing changed."""
        status = os.fstat(self.descriptor)
        now = (status.st_size, status.st_mtime_ns)
        if now == self.changed:
            return Verdict.SAME
        begin, before = written(self.lines.position - len(self.before), self.before)
        span = self.state.beyond_head((begin, begin + len(before)))
        found = look(self.descriptor, span)
        verdict = self.state.judge(found, read=self.lines.position, marked=head_hash(before))
        if verdict is Verdict.SAME:
            self.state.learn(found.head)
            self.changed = now
        return verdict

    def mark(self, end: int) -> None:
        """Know the file by what is before a position; an earlier mark stays good.

        Args:
            end: At most how far it was read.

        Raises:
            OSError: It cannot be read now.
        """
        status = os.fstat(self.descriptor)
        now = (status.st_size, status.st_mtime_ns, end)
        if now == self.marked:
            return
        begin = max(0, end - HEAD_BYTES)
        data = read_span(self.descriptor, (begin, end))
        if len(data) == end - begin and self.verdict() is Verdict.SAME:
            begin, data = written(begin, data)
            self.marked = now
            self.state.mark = Mark(*now[:2], begin + len(data), len(data), head_hash(data))

    @property
    def size(self) -> int:
        """Bytes that there are to read."""
        return os.fstat(self.descriptor).st_size

    @property
    def position(self) -> int:
        """Everything before it has been handed out."""
        held = None if self.joiner is None else self.joiner.start
        return self.lines.line_start if held is None else held

    def read(self, now_ns: int) -> tuple[int, list[Line], bool]:
        """Read on, but nothing where the content was replaced: another generation begins with it.

        Looked at after the read, for a source may have waited long for room since it looked last.

        Returns:
            The position from which the lines can be read again, the lines, or the events made of
            them, that were completed, and whether the end of the file was reached.
        """
        start = self.lines.line_start
        data = os.pread(self.descriptor, FILE_READ_BYTES, self.lines.position)
        if data:
            if self.verdict() is not Verdict.SAME:
                return start, [], True
            self.before = (self.before + data[-HEAD_BYTES:])[-HEAD_BYTES:]
        return *self.feed(data, now_ns), len(data) < FILE_READ_BYTES

    def feed(self, data: bytes, now_ns: int) -> tuple[int, list[Line]]:
        """Take what was read; returns what `read` does."""
        start = self.lines.line_start
        lines = self.lines.feed(data) if data else []
        if data:
            self.grew_ns = now_ns
        if self.joiner is not None and lines:
            start, lines = self.joiner.feed(start, lines, now_ns)
        return start, lines

    def flush_events(self, grown_before_ns: int | None = None) -> tuple[int, list[Line]]:
        """What is held for lines that may follow; the position it can be read again from first.

        Args:
            grown_before_ns: Only what did not grow since then.
        """
        if self.joiner is None or self.joiner.start is None:
            return self.position, []
        return self.joiner.flush(grown_before_ns)

    def flush_all(self) -> tuple[int, list[Line]]:
        """The same with a line that has no newline yet."""
        start = self.lines.line_start
        rest = self.lines.flush()
        if rest is None:
            return self.flush_events()
        if self.joiner is None:
            return start, [rest]
        start, lines = self.joiner.feed(start, [rest], self.grew_ns)
        _, more = self.flush_events()
        return start, lines + more

    def has_name(self, path: Path) -> bool:
        """Whether `path` names this very file now."""
        try:
            status = path.stat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self.key

    def close(self) -> None:
        """Give the descriptor back; its number may be another file's at once."""
        descriptor, self.descriptor = self.descriptor, _CLOSED
        os.close(descriptor)


def make_tail(section: FileSection, state: FileState, descriptor: int) -> Tail:
    """A tail that reads as its source is configured, from where the state says."""
    tail = Tail(state, descriptor, *make_cutter(section, state.position))
    with contextlib.suppress(OSError):  # it is known by less then
        begin = max(0, state.position - HEAD_BYTES)
        tail.before = read_span(descriptor, (begin, state.position))
    return tail


def make_cutter(section: FileSection, position: int) -> tuple[LineCutter, Joiner | None]:
    """What makes lines of bytes from `position` on, and events of lines."""
    read = _READERS[section.format]
    framed = section.format != "plain"
    bytes_max = CONTAINER_LINE_BYTES_MAX if framed else section.line_bytes_max
    lines = LineCutter(bytes_max, position=position)
    if not framed and section.multiline is None:
        return lines, None
    joiner = Joiner(
        read,
        None if section.multiline is None else _is_start(section.multiline),
        bytes_max=section.line_bytes_max,
        held_bytes_max=HELD_BYTES_MAX,
    )
    return lines, joiner


def _is_start(section: MultilineSection) -> IsStart:
    """Which lines begin an event; re2 takes time in proportion to a line, whatever the pattern."""
    if section.start is not None:
        begins = re2.compile(section.start.encode())
        return lambda line: begins.search(line[:MULTILINE_LOOK_BYTES]) is not None
    assert section.continuation is not None
    goes_on = re2.compile(section.continuation.encode())
    return lambda line: goes_on.search(line[:MULTILINE_LOOK_BYTES]) is None


_READERS: Final[dict[str, ReadPiece]] = {
    "plain": read_plain,
    "docker": read_docker,
    "cri": read_cri,
}
