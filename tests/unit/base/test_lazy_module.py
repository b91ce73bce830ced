"""A module that is imported when something of it is used for the first time."""

import sys
from pathlib import Path

import pytest

from penstock.base.lazy_module import LazyModule

PROGRAM = "loaded = loaded + 1 if 'loaded' in globals() else 1\nclass Odd(Exception): ...\n"


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that no process has imported."""
    monkeypatch.syspath_prepend(tmp_path)  # only a path makes a module importable
    (tmp_path / "penstock_seldom_used.py").write_text(PROGRAM)
    return "penstock_seldom_used"


def test_a_module_is_imported_once_it_is_used_and_only_once(name: str) -> None:
    lazy = LazyModule(name)
    assert name not in sys.modules
    assert lazy.loaded == 1
    assert lazy.loaded == 1
    assert sys.modules[name].Odd is lazy.Odd
    with pytest.raises(AttributeError):
        _ = lazy.missing


def test_a_module_that_cannot_be_imported_says_so_when_it_is_used() -> None:
    lazy = LazyModule("penstock_is_not_there")
    with pytest.raises(ModuleNotFoundError, match="penstock_is_not_there"):
        _ = lazy.anything
