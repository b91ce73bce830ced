"""Where a sink that publishes files has them: written aside, then renamed to their place."""

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, Protocol, cast

from penstock.base.files import make_directories, sync_directories
from penstock.router.hdfs import Hdfs
from penstock.router.job.config_errors import WrongKeyError

UNFINISHED: Final = "_writing"
"""The directory of what is not finished; tools for data lakes pass over names such as this one."""


class FileTree(Protocol):
    """A directory of files, wherever it is; places of files are relative to it.

    Attributes:
        safe: Characters that a name may have, besides letters, digits and `_.-~`.
    """

    safe: str

    def open(self) -> list[str]:
        """Make the directories, and remove what a killed job was writing.

        Returns:
            The owners (JOB.SINK) of other files that are being written, as paths to remove.

        Raises:
            ConfigError: It cannot be written to.
            UnavailableError: It cannot be reached now.
        """
        ...

    def begin(self) -> None:
        """A batch begins; nothing of an earlier attempt that failed is published any more."""
        ...

    def write(self, write: Callable[[BinaryIO], None]) -> tuple[str, int]:
        """Have a file written aside, durably; returns its name there, and its bytes."""
        ...

    def publish(self, fresh: str, path_in_lake: str) -> None:
        """Rename what was written to its place, in one step; it replaces what is there."""
        ...

    def remove(self, path_in_lake: str) -> None:
        """Remove a file, if it is there."""
        ...

    def sync(self) -> None:
        """Make what was published and removed durable."""
        ...

    def reader(self, path_in_lake: str) -> BinaryIO | None:
        """A file to read; None: it is not there."""
        ...


class LocalTree:
    """A directory of this machine, perhaps of a network volume."""

    safe = " @+,:~"

    def __init__(self, path: Path, owner: str, *, key: str) -> None:
        """Nothing is made yet.

        Args:
            path: The directory.
            owner: JOB.SINK.
            key: The job file's, of the path.
        """
        self._path = path
        self._key = key
        self._writing = path / UNFINISHED / owner
        self._changed: list[Path] = []
        self._written = 0

    def open(self) -> list[str]:
        """See `FileTree`."""
        try:
            shutil.rmtree(self._writing, ignore_errors=True)
            self._writing.mkdir(parents=True)
            found = [it for it in self._writing.parent.iterdir() if it.name != self._writing.name]
        except OSError as error:
            raise WrongKeyError(
                f"{self._key}: cannot write to {self._path}: {error.strerror}",
                fix="name a directory that this user may write to",
            ) from None
        return sorted(map(str, found))

    def begin(self) -> None:
        """See `FileTree`; files of an earlier attempt are overwritten."""
        self._changed.clear()
        self._written = 0

    def write(self, write: Callable[[BinaryIO], None]) -> tuple[str, int]:
        """See `FileTree`."""
        fresh = f"{self._written:06d}.unfinished"
        self._written += 1
        with (self._writing / fresh).open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            return fresh, file.tell()

    def publish(self, fresh: str, path_in_lake: str) -> None:
        """See `FileTree`."""
        target = self._path / path_in_lake
        self._changed += make_directories(target.parent)
        (self._writing / fresh).replace(target)
        self._changed.append(target.parent)

    def remove(self, path_in_lake: str) -> None:
        """See `FileTree`."""
        path = self._path / path_in_lake
        if path.exists():
            path.unlink()
            self._changed.append(path.parent)

    def sync(self) -> None:
        """See `FileTree`."""
        sync_directories(self._changed)
        self._changed.clear()

    def reader(self, path_in_lake: str) -> BinaryIO | None:
        """See `FileTree`."""
        path = self._path / path_in_lake
        return path.open("rb") if path.exists() else None


class HdfsTree:
    """See `FileTree`; the namenode makes each step durable before it answers.

    A call that was given up may still be done when the next attempt at the batch is under way. So
    no name in `_writing` is used twice, and what an attempt left there is removed before the next.
    """

    safe = " @+,~"
    """Without the colon, which HDFS allows in no name; hive writes it as `%3A`, too."""

    def __init__(self, files: Hdfs, owner: str) -> None:
        """Nothing is made or connected yet.

        Args:
            files: The directory.
            owner: JOB.SINK.
        """
        self._files = files
        self._owner = owner
        self._writing = f"{UNFINISHED}/{owner}"
        self._unfinished: list[str] = []

    def open(self) -> list[str]:
        """See `FileTree`; what a killed writer has open is removed all the same."""
        self._files.remove_directory(self._writing)
        self._files.make_directory(self._writing)
        self._unfinished.clear()
        others = set(self._files.directories(UNFINISHED)) - {self._owner}
        return [f"{self._files.url}/{UNFINISHED}/{it}" for it in sorted(others)]

    def begin(self) -> None:
        """See `FileTree`."""
        while self._unfinished:
            self._files.remove(f"{self._writing}/{self._unfinished[-1]}")
            self._unfinished.pop()

    def write(self, write: Callable[[BinaryIO], None]) -> tuple[str, int]:
        """See `FileTree`."""
        fresh = f"{uuid.uuid4().hex}.unfinished"
        self._unfinished.append(fresh)
        with self._files.writer(f"{self._writing}/{fresh}") as file:
            write(cast("BinaryIO", file))
            file.sync()
            return fresh, file.tell()

    def publish(self, fresh: str, path_in_lake: str) -> None:
        """See `FileTree`."""
        self._files.rename(f"{self._writing}/{fresh}", path_in_lake)
        self._unfinished.remove(fresh)

    def remove(self, path_in_lake: str) -> None:
        """See `FileTree`."""
        self._files.remove(path_in_lake)

    def sync(self) -> None:
        """See `FileTree`; it is done."""

    def reader(self, path_in_lake: str) -> BinaryIO | None:
        """See `FileTree`."""
        try:
            return cast("BinaryIO", self._files.reader(path_in_lake))
        except FileNotFoundError:
            return None
