"""The files that a section's patterns match now."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatch, fnmatchcase
from glob import escape, has_magic, iglob
from pathlib import Path
from typing import Final

_COMPRESSED: Final = (".gz", ".zst", ".bz2", ".xz", ".zip")
"""Endings of compressed files, which rotation leaves; no file begins as one."""


_ROTATED: Final = re.compile(r"(?:[._-][0-9][0-9T:.-]*)+$")
"""Endings that rotation adds to a name: a number, a date, a date and a time."""
_NUMBER: Final = re.compile(r"\.([0-9]{1,4})$")


class Patterns:
    """Patterns of the files that are read, and of those among them that are not.

    Args:
        include: Absolute patterns, in which ``**`` stands for directories.
        exclude: Patterns of whole paths, in which ``*`` stands for slashes, too; a relative one is
            also tried from the directory that the process was started in.
    """

    def __init__(self, include: Sequence[str], exclude: Sequence[str]) -> None:
        self._include = include
        self._exclude = {*exclude, *_from_here(exclude)}

    def found(self) -> Iterator[Path]:
        """The files, pattern by pattern, by their names."""
        for pattern in self._include:
            for name in sorted(iglob(pattern, recursive=True)):  # noqa: PTH207 - absolute patterns
                if not self._is_excluded(name) and not name.endswith(_COMPRESSED):
                    yield Path(name)

    def compressed(self) -> Iterator[Path]:
        """Files that the patterns name and that are not read, for they are compressed."""
        for pattern in self._include:
            for name in sorted(iglob(pattern, recursive=True)):  # noqa: PTH207 - as above
                if name.endswith(_COMPRESSED) and not self._is_excluded(name):
                    yield Path(name)

    def unreadable(self) -> Iterator[str]:
        """Directories in which files would be looked for, if they could be read."""
        for pattern in self._include:
            parent, _, last = pattern.rpartition("/")
            places = iglob(parent or "/", recursive=True)  # noqa: PTH207 - as above
            wanted = os.R_OK | os.X_OK if has_magic(last) or "**" in parent else os.X_OK
            for name in sorted({place.rstrip("/") or "/" for place in places}):
                excluded = self._is_excluded(name) or self._is_excluded(f"{name}/")
                if not excluded and os.path.isdir(name) and not os.access(name, wanted):  # noqa: PTH112 - never raises
                    yield name

    def directories(self) -> set[str]:
        """Directories in which a name may come that changes which files there are.

        Of a pattern whose directories are missing it is the nearest one that is there.
        """
        found: set[str] = set()
        for pattern in self._include:
            parts = pattern.split("/")
            last = len(parts) - 1
            first = next((i for i, part in enumerate(parts) if has_magic(part)), last)
            for index in range(first, last + 1):
                parent = "/".join(parts[:index]) or "/"
                names = iglob(parent, recursive=True)  # noqa: PTH207 - as above
                found |= {name.rstrip("/") or "/" for name in names if os.path.isdir(name)}  # noqa: PTH112 - never raises
            base = "/".join(parts[:first]) or "/"
            while not os.path.isdir(base):  # noqa: PTH112 - never raises
                base = os.path.dirname(base)  # noqa: PTH120 - text
            found.add(base)
        return found

    def name(self, path: str) -> bool:
        """Return whether a file of this path would be read; it need not exist."""
        if self._is_excluded(path):
            return False
        parts = path.split("/")
        return any(_matches(parts, pattern.split("/")) for pattern in self._include)

    def _is_excluded(self, path: str) -> bool:
        return any(fnmatch(path, other) for other in self._exclude)


def family_of(path: Path) -> str:
    """Return what files of one rotation share: the path without a number or date at its end."""
    return str(path.with_name(_ROTATED.sub("", path.name) or path.name))


def age_of(path: Path, modified_ns: int) -> tuple[int, int, str]:
    """Return the key that sorts files oldest first: `app.log.2` before `app.log.1`."""
    number = _NUMBER.search(path.name)
    return modified_ns, -int(number[1]) if number else 0, path.name


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether `glob` finds a path by a pattern; both are split at their slashes."""
    if not pattern:
        return not parts
    first, rest = pattern[0], pattern[1:]
    if first == "**":
        for count in range(len(parts) + 1):
            if _matches(parts[count:], rest):
                return True
            if count < len(parts) and parts[count].startswith("."):
                return False
        return False
    if not parts or (parts[0].startswith(".") and not first.startswith(".")):
        return False
    return fnmatchcase(parts[0], first) and _matches(parts[1:], rest)


def _from_here(patterns: Sequence[str]) -> Iterator[str]:
    """Yield relative patterns, made absolute from the process's directory, if that exists."""
    relative = [pattern for pattern in patterns if not pattern.startswith("/")]
    with suppress(FileNotFoundError):
        for pattern in relative:
            yield os.path.join(escape(os.getcwd()), pattern)  # noqa: PTH109, PTH118 - a pattern
