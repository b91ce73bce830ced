"""The environment that `make` makes."""

import importlib.util
from pathlib import Path

import pytest

BOOTSTRAP = Path(__file__).resolve().parents[3] / "deploy" / "bootstrap.py"


def test_a_clone_in_a_directory_with_a_blank_installs_its_constraints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = importlib.util.spec_from_file_location("bootstrap", BOOTSTRAP)
    assert spec is not None
    assert spec.loader is not None
    bootstrap = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bootstrap)
    environments = []
    monkeypatch.setattr(bootstrap, "run", lambda *arguments: environments.append(arguments[2]))
    bootstrap.install(Path("/my venv"), ["penstock"], Path("/my clone/constraints.txt"))
    (environment,) = environments
    # pip takes these variables apart at blanks.
    assert environment["PIP_CONSTRAINT"].split() == ["file:///my%20clone/constraints.txt"]
