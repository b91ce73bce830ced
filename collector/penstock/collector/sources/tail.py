"""One open file that is read to its end, whatever its name becomes."""

import os
from dataclasses import dataclass
from pathlib import Path

from penstock.collector.core.files import FileState, Found, Verdict
from penstock.collector.core.lines import Line, LineCutter
from penstock.collector.limits import FILE_READ_BYTES, HEAD_BYTES


def look(descriptor: int) -> Found:
    """What identifies the file behind a descriptor."""
    status = os.fstat(descriptor)
    head = os.pread(descriptor, HEAD_BYTES, 0)
    return Found(status.st_dev, status.st_ino, status.st_size, head)


@dataclass(slots=True)
class Tail:
    """A file being read.

    Attributes:
        orphaned_ns: When it was first seen at its end with no name of the source's any more.
    """

    state: FileState
    descriptor: int
    lines: LineCutter
    orphaned_ns: int | None = None
    changed: tuple[int, int] = (-1, -1)

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
        found = look(self.descriptor)
        verdict = self.state.judge(found, read=self.lines.position)
        if verdict is Verdict.SAME:
            self.state.learn(found.head)
            self.changed = now
        return verdict

    def read(self) -> tuple[int, list[Line], bool]:
        """Read on.

        Returns:
            The position from which the lines can be read again, the lines that were completed, and
            whether the end of the file was reached.
        """
        start = self.lines.line_start
        data = os.pread(self.descriptor, FILE_READ_BYTES, self.lines.position)
        return start, self.lines.feed(data) if data else [], len(data) < FILE_READ_BYTES

    def has_name(self, path: Path) -> bool:
        """Whether `path` names this very file now."""
        try:
            status = path.stat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self.key

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.descriptor)
