"""Directories and what a store has of them, for tests."""

import os
import re
from pathlib import Path

from penstock.base.files import atomic_write
from penstock.router.checkpoint.manifest import PART_BYTES
from penstock.router.checkpoint.sync import CheckpointSync
from tests.support.memory_objects import MemoryObjects

LARGE = PART_BYTES * 2 + 5


def mirror(
    objects: MemoryObjects, root: Path, job: str = "archive", boot: str = "1"
) -> CheckpointSync:
    return CheckpointSync(
        objects, "sinks/lake", root,
        job=job, boot=boot, is_kept=lambda path: path.parts[0] != "scratch",
    )  # fmt: skip


def files(root: Path) -> dict[str, bytes]:
    """What is kept of a directory."""
    found = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    return {
        name: path.read_bytes()
        for name, path in found.items()
        if not re.search(r"(^|/)\.|^scratch/", name)
    }


def write(path: Path, data: bytes) -> None:
    atomic_write(path, data, durable=False, parents=True)


def write_long_ago(path: Path, data: bytes, at: int = 1) -> None:
    """What is written while one looks, by the file system's clock, is looked at once more."""
    write(path, data)
    os.utime(path, (at, at))
