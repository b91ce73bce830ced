"""Files that appear whole or not at all, and stay after a crash."""

import os
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file atomically and durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_directories([path.parent])


def make_directories(path: Path, *, below: Path) -> list[Path]:
    """Create `path`; returns the directories, from `below` on, that got a new entry."""
    changed = []
    missing = path
    while missing != below and not missing.exists():
        missing = missing.parent
        changed.append(missing)
    path.mkdir(parents=True, exist_ok=True)
    return changed


def sync_directories(paths: Iterable[Path]) -> None:
    """Make the entries of directories durable."""
    for path in dict.fromkeys(paths):
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
