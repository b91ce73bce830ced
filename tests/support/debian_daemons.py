"""Daemons of Debian with the libraries that few machines have: unpacked, not installed.

For those that cannot be installed beside one another, as rsyslog and syslog-ng. A program on PATH
is used as it is. Where there is none to be had tests are skipped, saying why, and are red in CI.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.debian import one_at_a_time, skip

_CACHE: Final = Path(__file__).resolve().parents[2] / ".work" / "servers"
_DOWNLOAD_S: Final = 120
_NEVER: Final = frozenset({"libc6", "libgcc-s1"})
"""The machine's own are what everything else here was made for."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that can be run.

    Attributes:
        root: What it was unpacked below; None for one that is installed.
        environment: To run it in.
    """

    path: Path
    root: Path | None
    environment: dict[str, str]

    def modules(self, name: str) -> str:
        """Where its modules are, as a path list; empty where it finds them itself."""
        if self.root is None:
            return ""
        found = {file.parent for file in self.root.glob(f"usr/lib/**/{name}/**/*.so")}
        return ":".join(sorted(map(str, found)))


def daemon(name: str, *, package: str, deep: bool = False) -> Program:
    """A program and what it needs; where it cannot be had: skipped, red in CI.

    Args:
        name: Of the program.
        package: That brings it.
        deep: Whether libraries are needed that only its libraries name.
    """
    on_path = _installed(name)
    if on_path:
        return Program(on_path, None, dict(os.environ))
    path = _unpacked(name, package, deep=deep)
    root = _CACHE / package
    shared = {str(file.parent) for file in root.rglob("lib*.so*")}
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(sorted(shared))}
    missing = _missing(path, environment)
    if missing:
        skip(f"{name} also needs {', '.join(missing)}")
    return Program(path, root, environment)


def _installed(name: str) -> Path | None:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    return Path(found) if found else None


def _unpacked(name: str, package: str, *, deep: bool) -> Path:
    root = _CACHE / package
    places = [root / "usr" / directory / name for directory in ("bin", "sbin")]
    there = any(map(Path.exists, places))
    reason = "" if there else _unpack((package, *_libraries(package, deep=deep)), root)
    found = [place for place in places if place.exists()]
    if not found:
        skip(f"no {name} here, and the package {package} cannot be had: {reason}")
    return found[0]


def _libraries(package: str, *, deep: bool) -> list[str]:
    """Libraries that a package says it needs, and its part that other packages share."""
    if shutil.which("apt-cache") is None:
        return []
    further = ["--recurse"] if deep else []
    told = subprocess.run(
        ["apt-cache", "depends", "--important", *further, package],
        capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    wanted = r"Depends: (lib\S+|\S+-common)$" if deep else r"Depends: (lib\S+)"
    return sorted(set(re.findall(wanted, told, re.MULTILINE)) - _NEVER)


def _missing(path: Path, environment: dict[str, str]) -> list[str]:
    """Shared libraries that it is not found with."""
    told = subprocess.run(
        ["ldd", str(path)], env=environment, capture_output=True, text=True, check=False
    ).stdout
    return re.findall(r"^\s*(\S+) => not found", told, re.MULTILINE)


def _unpack(packages: Sequence[str], root: Path) -> str:
    """Download packages and unpack them as one; returns what went wrong."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return "this is no Debian"
    with one_at_a_time(root) as is_missing:
        return _download(packages, root) if is_missing else ""


def _download(packages: Sequence[str], root: Path) -> str:
    unfinished = root.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    download = subprocess.run(
        ["apt-get", "download", "-q", *packages],
        cwd=unfinished, capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False,
    )  # fmt: skip
    if download.returncode:
        return (download.stderr.strip().splitlines() or ["apt-get failed"])[-1]
    for archive in unfinished.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(archive), str(unfinished)], check=True)
        archive.unlink()
    unfinished.replace(root)
    return ""
