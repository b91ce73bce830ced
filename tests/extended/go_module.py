"""Programs of Go modules, each built in a module of its own."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.extended.product import UnavailableError


def built(package: str, version: str, directory: Path, *, tags: str = "") -> Path:
    """The program of a package at its module's version; built once.

    Raises:
        UnavailableError: There is no go here, or it cannot be had or built.
    """
    name = package.rpartition("/")[2]
    home = directory / f"{name}-{version}"
    program = home / name
    if program.exists():
        return program
    go = shutil.which("go")
    if go is None:
        raise UnavailableError("no go on PATH")
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "go.mod").exists():
        _run(home, go, "mod", "init", f"penstock.products/{name}")
    _run(home, go, "get", "-tool", f"{package}@{version}")
    unfinished = program.with_suffix(".unfinished")
    _run(home, go, "build", f"-tags={tags}", "-o", str(unfinished), package)
    return unfinished.replace(program)


def _run(home: Path, *command: str) -> None:
    flags = f"{os.environ.get('GOFLAGS', '')} -buildvcs=false".strip()
    done = subprocess.run(
        command, cwd=home, capture_output=True, text=True, check=False,
        env={**os.environ, "GOFLAGS": flags},
    )  # fmt: skip
    if done.returncode:
        raise UnavailableError(f"{' '.join(command[1:3])} of {home.name}: {done.stderr[-400:]}")
