"""Which files a section's patterns mean now."""

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from glob import escape, iglob
from pathlib import Path
from typing import Final

_COMPRESSED: Final = (".gz", ".zst", ".bz2", ".xz", ".zip")
"""What rotation leaves behind; nothing begins in one."""


class Patterns:
    """What is read, and what of that is not.

    Args:
        include: Absolute patterns, in which ``**`` stands for directories.
        exclude: Of whole paths, in which ``*`` stands for slashes, too; one that is not absolute
            may also be meant from the directory that the process was started in.
    """

    def __init__(self, include: Sequence[str], exclude: Sequence[str]) -> None:
        here = escape(os.getcwd())  # noqa: PTH109 - a pattern
        self._include = include
        self._exclude = {*exclude, *(os.path.join(here, other) for other in exclude)}  # noqa: PTH118

    def found(self) -> Iterator[Path]:
        """The files, pattern by pattern, by their names."""
        for pattern in self._include:
            for name in sorted(iglob(pattern, recursive=True)):  # noqa: PTH207 - absolute patterns
                excluded = any(fnmatch(name, other) for other in self._exclude)
                if not excluded and not name.endswith(_COMPRESSED):
                    yield Path(name)
