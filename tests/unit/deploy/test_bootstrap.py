"""The environment that `make` makes."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BOOTSTRAP = Path(__file__).resolve().parents[3] / "deploy" / "bootstrap.py"


@pytest.fixture
def bootstrap() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap", BOOTSTRAP)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_clone_in_a_directory_with_a_blank_installs_its_constraints(
    bootstrap: ModuleType, tmp_path: Path
) -> None:
    python = tmp_path / "my venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nprintf %s "$PIP_CONSTRAINT" > "$(dirname "$0")/said"\n')
    python.chmod(0o755)
    bootstrap.install(tmp_path / "my venv", ["penstock"], Path("/my clone/constraints.txt"))
    # pip takes these variables apart at blanks.
    said = (python.parent / "said").read_text()
    assert said.split() == ["file:///my%20clone/constraints.txt"]


SLOW = """
import sys, threading
print("Downloading spark (400 MB)", flush=True)
sys.stdin.read()
threading.Event().wait({seconds})
sys.exit({code})
"""


def test_what_takes_long_says_what_it_is_at(
    bootstrap: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = [sys.executable, "-c", SLOW.format(seconds=0.5, code=0)]
    bootstrap.follow(slow, "a fix", {}, step_s=0.02)
    assert " s  Downloading spark (400 MB)\n" in capsys.readouterr().out


def test_what_fails_is_told_with_all_that_it_said(
    bootstrap: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="a fix"):
        bootstrap.follow([sys.executable, "-c", SLOW.format(seconds=0, code=3)], "a fix", {})
    assert "Downloading spark" in capsys.readouterr().err


def test_an_environment_whose_making_was_interrupted_is_made_again(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    for name in ("deploy", ".venv/bin"):
        (clone / name).mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt", ".venv/bin/python"):
        (clone / name).touch()
    copy = shutil.copy(BOOTSTRAP, clone / "deploy")
    alone = {**os.environ, "PIP_NO_INDEX": "1"}
    done = subprocess.run(
        [sys.executable, copy], env=alone, capture_output=True, text=True, check=False
    )
    assert (clone / ".venv" / "bin" / "pip").exists(), done
    assert "check the network" in done.stderr, "nothing can be installed here"
