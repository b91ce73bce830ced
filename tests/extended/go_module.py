"""Programs of Go modules, each built in a module of its own."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.extended.product import UnavailableError


def built(package: str, version: str, directory: Path, *, tags: str = "") -> Path:
    """The program of a package at its module's version; built once.

    Raises:
        UnavailableError: There is no go here, or it cannot be had or built.
    """
    name = package.rpartition("/")[2]
    home = directory / f"{name}-{version}"
    wanted = ("-tool", f"{package}@{version}")
    return _built(home, wanted, f"-tags={tags}", package)


def written(source: str, packages: Sequence[str], home: Path) -> Path:
    """The program of a main.go, and of the packages at their versions that it uses; built once.

    Raises:
        UnavailableError: There is no go here, or they cannot be had or built.
    """
    home.mkdir(parents=True, exist_ok=True)
    (home / "main.go").write_text(source)
    return _built(home, packages, ".")


def _built(home: Path, wanted: Sequence[str], *what: str) -> Path:
    program = home / "program"
    if program.exists():
        return program
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "go.mod").exists():
        _go(home, "mod", "init", f"penstock.products/{home.name}")
    _go(home, "get", *wanted)
    unfinished = home / "unfinished"
    _go(home, "build", "-o", str(unfinished), *what)
    return unfinished.replace(program)


def _go(home: Path, *arguments: str) -> None:
    go = shutil.which("go")
    if go is None:
        raise UnavailableError("no go on PATH")
    flags = f"{os.environ.get('GOFLAGS', '')} -buildvcs=false".strip()
    done = subprocess.run(
        [go, *arguments], cwd=home, capture_output=True, text=True, check=False,
        env={**os.environ, "GOFLAGS": flags},
    )  # fmt: skip
    if done.returncode:
        raise UnavailableError(f"go {arguments[0]} for {home.name}: {done.stderr[-400:]}")
