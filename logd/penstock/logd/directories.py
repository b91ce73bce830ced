"""The directories of streams: made, moved out of the way, emptied."""

import os
import shutil
from pathlib import Path
from typing import Final

from penstock.service.data_format import DataFormat

DATA_FORMAT: Final = DataFormat("logd")
"""Of a whole data directory: streams, metadata, a node's part of Raft's log."""


def make_directories(*paths: Path) -> None:
    """Make partitions' directories with their parents; their names are durable on return."""
    for path in paths:
        path.mkdir(parents=True, exist_ok=True)
        _sync_directory(path.parent)
    for streams in {path.parent.parent for path in paths}:
        _sync_directory(streams)


def make_file(path: Path) -> None:
    """Make an empty file; its name is durable on return."""
    path.touch()
    _sync_directory(path.parent)


def rename(source: Path, target: Path) -> None:
    """Give a directory another name; durable on return."""
    source.rename(target)
    _sync_directory(source.parent)
    _sync_directory(target.parent)


def empty(directory: Path) -> None:
    """Remove what is in a directory, as far as that can be done."""
    for path in directory.iterdir():
        shutil.rmtree(path, ignore_errors=True)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
