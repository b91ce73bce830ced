"""A file of lines that are added one by one, of which the newest are kept."""

import os
from collections import deque
from pathlib import Path

from penstock.base.files import atomic_write


class KeptLines:
    """The file. What a crash, or a full disk, leaves of a line is no part of the next one.

    Args:
        path: Its name.
        lines_max: Lines that are kept; the older ones make room, half of them at a time.
        bytes_max: Likewise, about; None: they may be of any size.
    """

    def __init__(self, path: Path, *, lines_max: int, bytes_max: int | None = None) -> None:
        self._path = path
        self._lines_max = lines_max
        self._bytes_max = bytes_max
        lines = self.load()
        self.count = len(lines)
        self.last = lines[-1] if lines else ""
        self._may_be_torn = True

    def add(self, line: str) -> None:
        """Add one that has no line break in it."""
        if self.count >= self._lines_max or (self.count and self._is_large()):
            kept = self.load()[self.count // 2 :]
            atomic_write(self._path, "".join(f"{it}\n" for it in kept).encode(), parents=True)
            self.count = len(kept)
        with self._path.open("ab") as file:
            torn = self._may_be_torn and file.tell() and not self._ends_whole()
            self._may_be_torn = True
            file.write((b"\n" if torn else b"") + line.encode() + b"\n")
        self._may_be_torn = False
        self.last = line
        self.count += 1

    def load(self) -> list[str]:
        """Those that are kept, in their order."""
        if not self._path.exists():
            return []
        with self._path.open(errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, maxlen=self._lines_max)]

    def _is_large(self) -> bool:
        return self._bytes_max is not None and self._path.stat().st_size >= self._bytes_max

    def _ends_whole(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() == b"\n"
