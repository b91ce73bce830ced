"""Storages of sinks that publish files: files are staged, then renamed to their place."""

import os
import shutil
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol, cast

from penstock.base.files import make_directories, sync_directories
from penstock.router.job.config_errors import WrongKeyError
from penstock.router.storage.hdfs import Hdfs
from penstock.service import UnavailableError

UNFINISHED: Final = "_writing"
"""The directory of what is not finished; tools for data lakes pass over names such as this one."""


class Staging(Protocol):
    """Storage in which tasks stage files. It can be pickled. No name in it is used twice."""

    def write(self, write: Callable[[BinaryIO], None]) -> tuple[str, int]:
        """Have a file written, durably; returns its name there, and its bytes."""
        ...


@dataclass(frozen=True, slots=True)
class LocalStaging:
    """A directory that the driver has made; executors elsewhere see it on a network volume."""

    path: Path
    key: str

    def write(self, write: Callable[[BinaryIO], None]) -> tuple[str, int]:
        fresh = f"{uuid.uuid4().hex}.unfinished"
        try:
            file = (self.path / fresh).open("wb")
        except FileNotFoundError:
            raise UnavailableError(
                f"{self.key}: {self.path} is not there on {socket.gethostname()}",
                fix="name a directory that the driver and all executors have, on a network volume;"
                " or write to hdfs:// or S3",
            ) from None
        with file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            return fresh, file.tell()


@dataclass(frozen=True, slots=True)
class HdfsStaging:
    """A directory of HDFS."""

    files: Hdfs
    path: str

    def write(self, write: Callable[[BinaryIO], None]) -> tuple[str, int]:
        fresh = f"{uuid.uuid4().hex}.unfinished"
        with self.files.writer(f"{self.path}/{fresh}") as file:
            write(cast("BinaryIO", file))
            file.sync()
            return fresh, file.tell()


class FileTree(Protocol):
    """A directory of files, wherever it is; places of files are relative to it.

    Attributes:
        safe: Characters that a name may have, besides letters, digits and `_.-~`.
        writing: Storage of staged files.
    """

    safe: str
    writing: str

    @property
    def staging(self) -> Staging:
        """Storage in which tasks stage files; it can be pickled."""
        ...

    def open(self) -> list[str]:
        """Make the directories, and remove what a killed job was writing.

        Returns:
            The owners (JOB.SINK) of other files that are being written, as paths to remove.

        Raises:
            ConfigError: It cannot be written to.
            UnavailableError: It cannot be reached now.
        """
        ...

    def directories(self, directory: str) -> list[str]:
        """The names of the directories in one."""
        ...

    def begin(self) -> None:
        """A batch begins; remove what an earlier attempt that failed has written aside."""
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


class LocalTree:
    """A directory of this machine, perhaps of a network volume."""

    safe = " @+,:~"

    def __init__(self, path: Path, owner: str, *, key: str) -> None:
        """Nothing is made yet; the owner is JOB.SINK, the key that of the path in the job file."""
        self._path = path
        self._key = key
        self.writing = f"{UNFINISHED}/{owner}"
        self._writing = path / self.writing
        self.staging = LocalStaging(self._writing, key)
        self._changed: list[Path] = []

    def open(self) -> list[str]:
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

    def directories(self, directory: str) -> list[str]:
        return sorted(it.name for it in os.scandir(self._path / directory) if it.is_dir())

    def begin(self) -> None:
        self._changed.clear()
        for left in self._writing.iterdir():
            left.unlink(missing_ok=True)

    def publish(self, fresh: str, path_in_lake: str) -> None:
        target = self._path / path_in_lake
        self._changed += make_directories(target.parent)
        (self._writing / fresh).replace(target)
        self._changed.append(target.parent)

    def remove(self, path_in_lake: str) -> None:
        path = self._path / path_in_lake
        if path.exists():
            path.unlink()
            self._changed.append(path.parent)

    def sync(self) -> None:
        sync_directories(self._changed)
        self._changed.clear()


class HdfsTree:
    """See `FileTree`; the namenode makes each step durable before it answers.

    A call that was given up may still be done when the next attempt at the batch is under way: no
    name in `_writing` is used twice.
    """

    safe = " @+,~"
    """Without the colon, which HDFS allows in no name; hive writes it as `%3A`, too."""

    def __init__(self, files: Hdfs, owner: str) -> None:
        """Nothing is made or connected yet; the owner is JOB.SINK."""
        self._files = files
        self._owner = owner
        self.writing = f"{UNFINISHED}/{owner}"
        self.staging = HdfsStaging(files, self.writing)

    def open(self) -> list[str]:
        """Make the directories; what a killed writer has open is removed all the same."""
        self._files.remove_directory(self.writing)
        self._files.make_directory(self.writing)
        others = set(self._files.directories(UNFINISHED)) - {self._owner}
        return [f"{self._files.url}/{UNFINISHED}/{it}" for it in sorted(others)]

    def directories(self, directory: str) -> list[str]:
        return self._files.directories(directory)

    def begin(self) -> None:
        for left in self._files.names(self.writing):
            self._files.remove(f"{self.writing}/{left}")

    def publish(self, fresh: str, path_in_lake: str) -> None:
        self._files.rename(f"{self.writing}/{fresh}", path_in_lake)

    def remove(self, path_in_lake: str) -> None:
        self._files.remove(path_in_lake)

    def sync(self) -> None:
        """It is done."""
