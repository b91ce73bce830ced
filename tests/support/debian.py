"""Real servers from Debian's packages, unpacked beside the tests: nothing is installed or started.

A program on PATH is used as it is. Else its package is downloaded once; where that cannot be, tests
that need it are skipped, saying why, and are red in CI.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

import pytest

CACHE: Final = Path(__file__).resolve().parents[2] / ".work" / "servers"
_DOWNLOAD_S: Final = 120


def program(name: str, *, package: str, directory: str = "usr/bin") -> Path:
    """A program's path; where there is none, the test is skipped, red in CI.

    Args:
        name: Of the program.
        package: That brings it.
        directory: Where it lies in the package.
    """
    on_path = shutil.which(name)
    if on_path:
        return Path(on_path)
    root = CACHE / package
    found = root / directory / name
    if found.exists():
        return found
    reason = _unpack(package, root)
    if reason or not found.exists():
        skip(f"no {name} here, and the package {package} cannot be had: {reason}")
    return found


@contextmanager
def one_at_a_time(root: Path) -> Iterator[bool]:
    """Whether a directory has still to be made; other processes that want it wait meanwhile."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with (root.parent / f".{root.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not root.exists()


def _unpack(package: str, root: Path) -> str:
    """Download and unpack a package; returns what went wrong."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return "this is no Debian"
    with one_at_a_time(root) as is_missing:
        return _download(package, root) if is_missing else ""


def _download(package: str, root: Path) -> str:
    download = subprocess.run(
        ["apt-get", "download", "-q", package],
        cwd=CACHE, capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False,
    )  # fmt: skip
    if download.returncode:
        return (download.stderr.strip().splitlines() or ["apt-get failed"])[-1]
    (archive,) = CACHE.glob(f"{package}_*.deb")
    unfinished = root.with_suffix(".unfinished")
    subprocess.run(["dpkg", "-x", str(archive), str(unfinished)], check=True)
    archive.unlink()
    unfinished.replace(root)
    return ""


def installed(name: str, *, package: str = "") -> str:
    """A program that cannot be had by unpacking a package: skipped where it is missing, red in CI.

    `.ci/run` installs them.
    """
    on_path = shutil.which(name)
    if on_path is None:
        skip(f"no {name} here; on Debian: apt-get install {package or name}")
    return on_path


def skip(reason: str) -> NoReturn:
    """Skip the test; in CI, where everything is to be had, fail it."""
    assert "CI" not in os.environ, reason
    pytest.skip(reason)
