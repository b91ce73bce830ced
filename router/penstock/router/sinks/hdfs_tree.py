"""A directory of HDFS, as a sink that publishes files needs it."""

import uuid
from collections.abc import Callable
from typing import BinaryIO, cast

from penstock.router.hdfs import Hdfs
from penstock.router.sinks.file_tree import UNFINISHED


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

    def publish(self, fresh: str, place: str) -> None:
        """See `FileTree`."""
        self._files.rename(f"{self._writing}/{fresh}", place)
        self._unfinished.remove(fresh)

    def remove(self, place: str) -> None:
        """See `FileTree`."""
        self._files.remove(place)

    def sync(self) -> None:
        """See `FileTree`; it is done."""

    def reader(self, place: str) -> BinaryIO | None:
        """See `FileTree`."""
        try:
            return cast("BinaryIO", self._files.reader(place))
        except FileNotFoundError:
            return None
