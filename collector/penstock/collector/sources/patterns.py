"""Which files a section's patterns mean now."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
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
        self._include = include
        self._exclude = {*exclude, *_from_here(exclude)}

    def found(self) -> Iterator[Path]:
        """The files, pattern by pattern, by their names."""
        for pattern in self._include:
            for name in sorted(iglob(pattern, recursive=True)):  # noqa: PTH207 - absolute patterns
                excluded = any(fnmatch(name, other) for other in self._exclude)
                if not excluded and not name.endswith(_COMPRESSED):
                    yield Path(name)


def _from_here(patterns: Sequence[str]) -> Iterator[str]:
    """Those that are not absolute, from the process's directory; none where that is gone."""
    relative = [pattern for pattern in patterns if not pattern.startswith("/")]
    with suppress(FileNotFoundError):
        for pattern in relative:
            yield os.path.join(escape(os.getcwd()), pattern)  # noqa: PTH109, PTH118 - a pattern
