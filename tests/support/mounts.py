"""Small and failing file systems for tests; they need root, and skip the test without."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def run(*command: str | Path) -> None:
    """Run a command that a test cannot do without.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    subprocess.run([*map(str, command)], capture_output=True, check=True)


@contextmanager
def mounted(path: Path, *arguments: str | Path) -> Iterator[Path]:
    """Mount something at a new or empty directory until the block ends; skips where it cannot."""
    path.mkdir(exist_ok=True)
    if os.getuid() != 0:
        pytest.skip("mounting needs root")
    done = subprocess.run(
        ["mount", *map(str, arguments), str(path)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.decode().strip()}")
    try:
        yield path
    finally:
        if subprocess.run(["umount", str(path)], capture_output=True, check=False).returncode:
            run("umount", "-l", path)  # something still uses it: its test has failed


@contextmanager
def small_file_system(path: Path, size: str) -> Iterator[Path]:
    """A tmpfs of a few megabytes; `grow` makes it larger."""
    with mounted(path, "-t", "tmpfs", "-o", f"size={size}", "tmpfs") as small:
        yield small


def grow(small: Path, size: str) -> None:
    """Give a tmpfs another size."""
    run("mount", "-o", f"remount,size={size}", small)


def make_read_only(small: Path) -> None:
    """As Linux does with a file system that met an error."""
    run("mount", "-o", "remount,ro", small)


class ThinDisk:
    """An ext4 file system that promises more than the memory behind it: at some time a write that
    the page cache took cannot be brought to the disk, and the sync after it fails.
    """

    def __init__(self, backing: Path) -> None:
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("no mkfs.ext4 here")
        self._image = backing / "image"
        with self._image.open("wb") as image:
            image.truncate(64 << 20)
        run("mkfs.ext4", "-q", "-F", self._image)

    @contextmanager
    def mounted(self, path: Path) -> Iterator[Path]:
        """Mount it; at the end whatever is in the page cache only is forgotten."""
        with mounted(path, "-o", "loop", self._image):
            yield path

    def repair(self) -> None:
        """As a system does at its start."""
        done = subprocess.run(
            ["e2fsck", "-f", "-y", str(self._image)], capture_output=True, check=False
        )
        assert done.returncode in (0, 1), done
