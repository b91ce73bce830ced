"""Files of the package index that pip is set up for, as they are: nothing is built or installed.

`pip download` builds what it is to download as source, which an old package does not survive. So
pip is only asked where the file is, in a process of its own, for these are no promised interfaces.
"""

import fcntl
import hashlib
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.debian import CACHE, one_at_a_time, skip

_DOWNLOAD_S: Final = 600
_PIECE_BYTES: Final = 1024 * 1024


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Within it, no other process of these tests does what has that name."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f".{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def package_file(requirement: str, *, sha256: str, binary: bool = False) -> Path:
    """A distribution's file; where it cannot be had, the test is skipped, red in CI.

    Args:
        requirement: As in `name==1.0`.
        sha256: Of the file, for another one may have been put in its place.
        binary: Whether the wheel is meant, and not the source.
    """
    place = CACHE / f"{requirement.replace('==', '-')}.{'whl' if binary else 'tar.gz'}"
    if place.exists():
        return place
    CACHE.mkdir(parents=True, exist_ok=True)
    asked = [sys.executable, "-m", "tests.support.package_files", requirement, str(place)]
    try:
        found = subprocess.run(
            [*asked, "--only-binary" if binary else "--no-binary", sha256],
            capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        skip(f"{requirement} was not downloaded in {_DOWNLOAD_S} s")
    if found.returncode:
        reason = (found.stderr.strip().splitlines() or ["pip failed"])[-1]
        skip(f"{requirement} cannot be had: {reason}")
    return place


def packages_beside(*requirements: str) -> Path:
    """A directory for PYTHONPATH with packages that the tests' own environment must not have.

    They are installed once, outside of the repository, where every worktree finds them. Where that
    cannot be, the test is skipped, red in CI.

    Args:
        requirements: As in `name==1.0`; what they require comes, too.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock-tests"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    root = home / "-".join([*(it.replace("==", "-") for it in requirements), version])
    with one_at_a_time(root) as is_missing:
        if is_missing:
            _install(requirements, root)
    return root


def _install(requirements: Sequence[str], root: Path) -> None:
    unfinished = root.with_name(f"{root.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:"]
    try:
        done = subprocess.run(
            [*pip, "--target", str(unfinished), *requirements],
            capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        skip(f"{', '.join(requirements)} was not installed in {_DOWNLOAD_S} s")
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        skip(f"{', '.join(requirements)} cannot be installed: {reason}")
    unfinished.replace(root)


_CLIENTS = {
    f"penstock.router.sinks.{sink}.client" for sink in ("bigquery", "kafka", "nats", "otlp")
}
"""Modules of sinks that import libraries."""


def uninstall(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    """For a test a library cannot be imported, nor can modules of sinks that import libraries."""
    for name in [*sys.modules]:
        if name == library or name.startswith(f"{library}."):
            monkeypatch.setitem(sys.modules, name, None)  # Python's own word for: not there
        elif name in _CLIENTS:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)  # as above


def _download(requirement: str, place: Path, kind: str, sha256: str) -> None:
    project, _, version = requirement.partition("==")
    command = importlib.import_module("pip._internal.commands").create_command("download")
    options, _ = command.parse_args(["--no-deps", kind, ":all:", "-q"])
    with command.main_context():
        session = command.get_default_session(options)
        # pip has no public way to ask where a file is.
        finder = command._build_package_finder(options, session)  # noqa: SLF001 - pip has no public finder
        candidates = finder.find_all_candidates(project)
        link = next((it.link for it in candidates if str(it.version) == version), None)
        if link is None:
            sys.exit("the package index has none for this machine")
        unfinished = place.with_name(f".{place.name}.unfinished")
        digest = hashlib.sha256()
        with (
            session.get(link.url_without_fragment, stream=True) as answer,
            unfinished.open("wb") as file,
        ):
            answer.raise_for_status()
            for chunk in answer.iter_content(_PIECE_BYTES):
                digest.update(chunk)
                file.write(chunk)
    if digest.hexdigest() != sha256:
        unfinished.unlink()
        sys.exit(f"its SHA-256 is {digest.hexdigest()}, not {sha256}")
    unfinished.replace(place)


if __name__ == "__main__":
    _, requirement, place, kind, sha256 = sys.argv
    _download(requirement, Path(place), kind, sha256)
