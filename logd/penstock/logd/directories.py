"""The directories of streams: made, moved out of the way, emptied."""

import shutil
from pathlib import Path
from typing import Final

from penstock.base.files import sync_directories
from penstock.service.data_format import DataFormat

DATA_FORMAT: Final = DataFormat("logd")
"""Of a whole data directory: streams, metadata, a node's part of Raft's log."""


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
