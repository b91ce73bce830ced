"""Directories of a cluster's streams on a node's disk.

    <data_dir>/streams/<name>-<incarnation>/<n>   the log of partition n
    <data_dir>/held/<name>-<incarnation>-<n>      it was made here: it must be there
    <data_dir>/trash/                             data that the state says is to go

A log that was made here and is missing is never made again, empty: its node may count as having
everything that was acked. What the state does not speak of is left alone. 0.1.0 kept the mark as
`held-<n>` beside the log, where it was lost with it; one that is there counts.
"""

import threading
from pathlib import Path
from typing import Final

from penstock.logd.directories import empty, make_directories, make_file, rename
from penstock.logd.errors import CorruptError
from penstock.logd.metadata.records import StreamRecord

HELD_NAME: Final = "held"


class ReplicaDirectories:
    """The directories of one node. Its methods wait for the disk; any thread may call them.

    Attributes:
        on_disks: Those that may be on different disks.
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._streams, self._trash = data_dir / "streams", data_dir / "trash"
        self.on_disks = data_dir, self._streams
        self._held = data_dir / HELD_NAME
        self._removing = threading.Lock()
        for directory in (self._streams, self._trash, self._held):
            directory.mkdir(exist_ok=True)
        empty(self._trash)

    def prepare(self, stream: StreamRecord, number: int) -> Path:
        """A partition's directory, made unless it was before.

        Raises:
            CorruptError: It was, and is missing.
            OSError: The disk failed.
        """
        directory, mark = self._paths(stream, number)
        if not (mark.exists() or _former_mark(directory).exists()):
            make_directories(directory)
            make_file(mark)
        elif not directory.is_dir():
            raise CorruptError("it has lost its data directory", where=str(directory))
        return directory

    def remove(self, stream: StreamRecord, number: int) -> None:
        """Remove a partition's data.

        Raises:
            OSError: The disk failed.
        """
        directory, mark = self._paths(stream, number)
        with self._removing:  # or another partition's thread removes the parent on the way
            if directory.is_dir():
                rename(directory, self._trash / f"{directory.parent.name}-{number}")
            mark.unlink(missing_ok=True)
            _former_mark(directory).unlink(missing_ok=True)
            if directory.parent.is_dir() and not any(directory.parent.iterdir()):
                directory.parent.rmdir()
        empty(self._trash)

    def claim(self, name: str, incarnation: str) -> Path | None:
        """The directory of a stream's first partition, from before there was a cluster."""
        parent = self._streams / f"{name}-{incarnation}"
        if not (parent / "0").is_dir():
            return None
        make_file(self._held / f"{parent.name}-0")
        return parent / "0"

    def _paths(self, stream: StreamRecord, number: int) -> tuple[Path, Path]:
        name = f"{stream.config.name}-{stream.incarnation}"
        return self._streams / f"{name}/{number}", self._held / f"{name}-{number}"


def _former_mark(directory: Path) -> Path:
    """Where 0.1.0 kept the mark of a partition's directory."""
    return directory.with_name(f"{HELD_NAME}-{directory.name}")
