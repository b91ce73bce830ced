"""The environment that `make` makes."""

import importlib.util
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
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments = []
    monkeypatch.setattr(bootstrap, "follow", lambda *arguments: environments.append(arguments[2]))
    bootstrap.install(Path("/my venv"), ["penstock"], Path("/my clone/constraints.txt"))
    (environment,) = environments
    # pip takes these variables apart at blanks.
    assert environment["PIP_CONSTRAINT"].split() == ["file:///my%20clone/constraints.txt"]


SLOW = """
import sys, threading
print("Downloading spark (400 MB)", flush=True)
sys.stdin.read()
threading.Event().wait({seconds})
sys.exit({code})
"""


def test_what_takes_long_says_what_it_is_at(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "STEP_S", 0.02)
    bootstrap.follow([sys.executable, "-c", SLOW.format(seconds=0.5, code=0)], "a fix", {})
    assert " s  Downloading spark (400 MB)\n" in capsys.readouterr().out


def test_what_fails_is_told_with_all_that_it_said(
    bootstrap: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="a fix"):
        bootstrap.follow([sys.executable, "-c", SLOW.format(seconds=0, code=3)], "a fix", {})
    assert "Downloading spark" in capsys.readouterr().err


def test_an_environment_whose_making_was_interrupted_is_made_again(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[Path] = []
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)
    monkeypatch.setattr(bootstrap, "STAMP", tmp_path / ".installed")
    monkeypatch.setattr(bootstrap, "make_venv", made.append)
    monkeypatch.setattr(bootstrap, "install", lambda *_: None)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text("")
    bootstrap.main([])
    assert made == [tmp_path]
