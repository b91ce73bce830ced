"""The directories of streams: made, moved out of the way, emptied."""

import shutil
import sys
from pathlib import Path
from typing import Final, Self

from msgspec import Struct

from penstock.base.files import sync_directories
from penstock.logd.errors import RefusedError
from penstock.service import raise_open_files
from penstock.service.data_format import DataFormat

DATA_FORMAT: Final = DataFormat("logd")
"""Format of a whole data directory: streams, metadata, a node's part of Raft's log."""


def make_directories(*paths: Path) -> None:
    """Make partitions' directories with their parents; their names are durable on return."""
    for path in paths:
        path.mkdir(parents=True, exist_ok=True)
    above = [path.parent for path in paths]
    sync_directories((*above, *(path.parent for path in above)))


def make_file(path: Path) -> None:
    """Make an empty file; its name is durable on return."""
    path.touch()
    sync_directories([path.parent])


def rename(source: Path, target: Path) -> None:
    """Give a directory another name; durable on return."""
    source.rename(target)
    sync_directories([source.parent, target.parent])


def empty(directory: Path) -> None:
    """Remove what is in a directory, as far as that can be done."""
    for path in directory.iterdir():
        shutil.rmtree(path, ignore_errors=True)


FILES_PER_STREAM: Final = 2
"""Files that a stream, or a replica, holds open while no reader uses it: the active segment and the
synced mark."""

FILES_BESIDES: Final = 64
"""Files and sockets besides those of streams and readers, and some for short uses."""


class Descriptors(Struct, frozen=True):
    """The limit of open files.

    Attributes:
        limit: Files that may be open.
        connections: Maximum connections of clients and other nodes, for which descriptors are
            reserved.
    """

    limit: int = sys.maxsize
    connections: int = 0

    @classmethod
    def raised(cls, connections: int) -> Self:
        """Raise this process's soft limit to the hard one."""
        return cls(raise_open_files(), connections)

    def check(self, streams: int, *, unit: str = "streams") -> None:
        """See whether there are enough for a number of streams.

        Args:
            streams: Number of streams, or of replicas.
            unit: Unit of that number, for the message.

        Raises:
            RefusedError: `TOO_MANY_STREAMS`, with `needed`.
        """
        needed = self._needed(streams)
        if needed > self.limit:
            message = (
                f"{streams} {unit} and {self.connections} connections need {needed}"
                f" open files, the limit is {self.limit}: raise LimitNOFILE of the service, or"
                f" ulimit -Hn, to {needed}"
            )
            raise RefusedError("TOO_MANY_STREAMS", message, needed=needed)

    def are_enough(self, streams: int) -> bool:
        return self._needed(streams) <= self.limit

    def _needed(self, streams: int) -> int:
        return FILES_PER_STREAM * streams + self.connections + FILES_BESIDES
