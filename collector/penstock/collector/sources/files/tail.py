"""One open file that is read to its end, whatever its name becomes."""

import contextlib
import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.collector.decode.line_rules import OnError
from penstock.collector.descriptors import Descriptors
from penstock.collector.limits import (
    CONTAINER_LINE_BYTES_MAX,
    FILE_READ_BYTES,
    HEAD_BYTES,
    HELD_BYTES_MAX,
)
from penstock.collector.sources.files.boundaries import Boundaries
from penstock.collector.sources.files.container_lines import READERS
from penstock.collector.sources.files.identity import (
    FileState,
    Found,
    Mark,
    Verdict,
    head_hash,
    written,
)
from penstock.collector.sources.files.multiline import Joiner
from penstock.collector.sources.files.settings import FileSettings, MultilineSection
from penstock.collector.sources.line_framing import Line, LineCutter, encoding_of

_BOM_BYTES: Final = 4
_CLOSED: Final = -1
"""No descriptor: what asks about it learns that (EBADF), and nothing of another file."""


def look(descriptor: int, marked: tuple[int, int] = (0, 0)) -> Found:
    """Return what identifies the file behind a descriptor, and its bytes between two positions."""
    status = os.fstat(descriptor)
    head = os.pread(descriptor, HEAD_BYTES, 0)
    return Found(status.st_dev, status.st_ino, status.st_size, head, read_span(descriptor, marked))


def read_span(descriptor: int, span: tuple[int, int]) -> bytes:
    """Return a file's bytes between two positions, as far as it goes."""
    begin, end = span
    return os.pread(descriptor, end - begin, begin) if end > begin else b""


@dataclass(slots=True)
class Tail:
    """A file being read.

    Attributes:
        joiner: Joiner of lines to events; None when each line is one.
        grew_ns: Time of the last read that returned bytes.
        orphaned_ns: Time when it was first seen at its end with no name of the source's any more.
        changed: Size and time of the last write, as its content was looked at last.
        before: The last bytes before the position that was read; at most `HEAD_BYTES`.
        marked: The range that the state's mark was taken of.
        files: Counts its descriptor, and may have it closed for another file's; None: not counted.
        set_aside: Its descriptor was closed for others; it is opened again when it is needed.
        catches_up_to: Bytes that the file had when it was opened: until they are read, later files
            of the same rotation wait.
        ended: Treatment of the last line that began; its continuation is treated alike.
        reported: The position that the delivery knows.
    """

    state: FileState
    descriptor: int
    lines: LineCutter
    joiner: Joiner | None = None
    grew_ns: int = 0
    orphaned_ns: int | None = None
    changed: tuple[int, int] = (-1, -1)
    before: bytes = b""
    marked: tuple[int, int, int] = (-1, -1, -1)
    files: Descriptors | None = None
    set_aside: bool = False
    catches_up_to: int = 0
    ended: OnError = "pass"
    reported: int = -1

    def opened(self) -> int:
        """Return the file's descriptor; reopen a file that was closed for others by its name.

        Raises:
            FileNotFoundError: The name is another file's now, or nobody's.
            OSError: It cannot be opened now.
        """
        if self.set_aside:
            self.reopen(self.state.path)
        elif self.files is not None:
            self.files.admit(self)
        return self.descriptor

    def reopen(self, path: str | Path) -> None:
        """Open it by a name that it has now.

        Raises:
            OSError: As `opened`.
        """
        if self.files is not None:
            self.files.admit(self)
        try:
            descriptor = open_to_read(path)
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) != self.key:
                os.close(descriptor)
                raise FileNotFoundError(errno.ENOENT, "its name is another file's now")
        except OSError as error:
            if self.files is not None:
                self.files.release(self)
                self.files.failed(error)
            raise
        self.descriptor, self.set_aside = descriptor, False

    def can_close(self) -> bool:
        """Return whether the file can be opened again by its name."""
        return self.orphaned_ns is None and self.has_name(self.state.path)

    def close_for_others(self) -> None:
        """Give the descriptor back; the file is opened again when it is needed."""
        self.close()
        self.set_aside = True

    def status(self) -> os.stat_result:
        """Return the status of the file, open or not.

        Raises:
            FileNotFoundError: It is not open, and its name is another file's now, or nobody's.
        """
        if not self.set_aside:
            return os.fstat(self.descriptor)
        status = Path(self.state.path).stat()
        if (status.st_dev, status.st_ino) != self.key:
            raise FileNotFoundError(errno.ENOENT, "its name is another file's now")
        return status

    @property
    def key(self) -> tuple[int, int]:
        """Device and inode."""
        return self.state.device, self.state.inode

    def verdict(self) -> Verdict:
        """Compare the content with what was read before; cheap when nothing has changed."""
        status = self.status()
        now = (status.st_size, status.st_mtime_ns)
        if now == self.changed:
            return Verdict.SAME
        descriptor = self.opened()
        begin, before = written(self.lines.position - len(self.before), self.before)
        span = self.state.beyond_head((begin, begin + len(before)))
        found = look(descriptor, span)
        verdict = self.state.classify(found, read=self.lines.position, marked=head_hash(before))
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
        status = self.status()
        now = (status.st_size, status.st_mtime_ns, end)
        if now == self.marked:
            return
        begin = max(0, end - HEAD_BYTES)
        if not self.set_aside:
            data = read_span(self.descriptor, (begin, end))
        elif now[:2] == self.changed and end == self.lines.position:
            data = self.before  # what was read of it is known, and need not be read again
        else:
            return
        if len(data) == end - begin and self.verdict() is Verdict.SAME:
            begin, data = written(begin, data)
            self.marked = now
            self.state.mark = Mark(*now[:2], begin + len(data), len(data), head_hash(data))

    @property
    def size(self) -> int:
        """Bytes that there are to read."""
        return self.status().st_size

    @property
    def unread(self) -> bool:
        """True if it was written since the last look, or has more than was read.

        Raises:
            OSError: The file's status cannot be read.
        """
        status = self.status()
        return (
            status.st_size != self.lines.position
            or (status.st_size, status.st_mtime_ns) != self.changed
        )

    @property
    def partial_bytes(self) -> int:
        """Bytes that were read and wait for a newline."""
        return self.lines.position - self.lines.line_start

    @property
    def position(self) -> int:
        """Everything before it has been handed out."""
        held = None if self.joiner is None else self.joiner.start
        return self.lines.line_start if held is None else held

    def read(self, now_ns: int) -> tuple[int, Sequence[Line], bool]:
        """Read on, but nothing where the content was replaced: another generation begins with it.

        Looked at after the read, for a source may have waited long for room since it looked last.

        Returns:
            The position from which the lines can be read again, the lines, or the events made of
            them, that were completed, and whether the end of the file was reached.
        """
        start = self.lines.line_start
        if self.set_aside and not self.unread:
            return start, [], True
        data = os.pread(self.opened(), FILE_READ_BYTES, self.lines.position)
        if data:
            if self.verdict() is not Verdict.SAME:
                return start, [], True
            self.before = (self.before + data[-HEAD_BYTES:])[-HEAD_BYTES:]
        return *self.feed(data, now_ns), len(data) < FILE_READ_BYTES

    def feed(self, data: bytes, now_ns: int) -> tuple[int, Sequence[Line]]:
        """Take what was read; returns what `read` does."""
        start = self.lines.line_start
        lines: Sequence[Line] = self.lines.feed(data) if data else []
        if data:
            self.grew_ns = now_ns
        if self.joiner is not None and lines:
            start, lines = self.joiner.feed(start, lines, now_ns)
        return start, lines

    def flush_events(self, grown_before_ns: int | None = None) -> tuple[int, list[Line]]:
        """Return held lines, behind the position from which they can be read again.

        Args:
            grown_before_ns: Only what did not grow since then.
        """
        if self.joiner is None or self.joiner.start is None:
            return self.position, []
        return self.joiner.flush(grown_before_ns)

    def flush_all(self) -> tuple[int, list[Line]]:
        """Return held lines like `flush_events`, with a line that has no newline yet."""
        start = self.lines.line_start
        rest = self.lines.flush()
        if rest is None:
            return self.flush_events()
        if self.joiner is None:
            return start, [rest]
        start, lines = self.joiner.feed(start, [rest], self.grew_ns)
        _, more = self.flush_events()
        return start, lines + more

    def has_name(self, path: str) -> bool:
        """Return whether `path` names this very file now."""
        try:
            status = os.stat(path)  # noqa: PTH116 - of thousands of files
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self.key

    def close(self) -> None:
        """Give the descriptor back; its number may be another file's at once."""
        if self.set_aside:
            self.set_aside = False
            return
        descriptor, self.descriptor = self.descriptor, _CLOSED
        if self.files is not None:
            self.files.release(self)
        os.close(descriptor)

    def give_up(self) -> int:
        """Hand the open descriptor over; it is not this tail's any more.

        Raises:
            OSError: It cannot be opened.
        """
        descriptor = self.opened()
        self.descriptor = _CLOSED
        if self.files is not None:
            self.files.release(self)
        return descriptor


def open_to_read(path: str | Path) -> int:
    """A descriptor of a file.

    Raises:
        OSError: It cannot be opened.
    """
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def make_tail(
    section: FileSettings, state: FileState, descriptor: int, files: Descriptors | None = None
) -> Tail:
    """A tail that reads as its source is configured, from where the state says.

    Raises:
        OSError: As many files are open as may be; `descriptor` is as it was.
    """
    head = read_span(descriptor, (0, _BOM_BYTES))
    tail = Tail(state, descriptor, *make_cutter(section, state.position, head), files=files)
    if files is not None:
        files.admit(tail)
    with contextlib.suppress(OSError):  # it is known by less then
        begin = max(0, state.position - HEAD_BYTES)
        tail.before = read_span(descriptor, (begin, state.position))
        tail.lines.continues = bool(tail.before) and not tail.lines.is_line_end(tail.before)
        tail.catches_up_to = os.fstat(descriptor).st_size
    return tail


def make_cutter(
    section: FileSettings, position: int, head: bytes
) -> tuple[LineCutter, Joiner | None]:
    """Make what cuts bytes from `position` on into lines, and what joins lines to events.

    Args:
        section: The source's settings.
        position: Position of the first byte.
        head: The file's first bytes, for the encoding.
    """
    read = READERS[section.format]
    framed = section.format != "plain"
    bytes_max = CONTAINER_LINE_BYTES_MAX if framed else section.max_line_bytes
    encoding = encoding_of(section.encoding, head)
    lines = LineCutter(bytes_max, position=position, encoding=encoding)
    if not framed and section.multiline is None:
        return lines, None
    joiner = Joiner(
        read,
        None if section.multiline is None else _boundaries(section.multiline),
        bytes_max=section.max_line_bytes,
        held_bytes_max=max(HELD_BYTES_MAX, 2 * section.max_line_bytes),
    )
    return lines, joiner


def _boundaries(section: MultilineSection) -> Boundaries:
    return Boundaries(
        start=section.start,
        continuation=section.continuation,
        end=section.end,
        presets=section.extends,
    )
