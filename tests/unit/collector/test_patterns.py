"""Which files are meant, from wherever the process was started."""

from pathlib import Path
from typing import Any

import pytest

from penstock.collector.source_sections import FileSource
from penstock.collector.sources.patterns import Patterns


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose name is a pattern itself, and the one that the process is started in."""
    directory = tmp_path / "a[b]*"
    (directory / "logs").mkdir(parents=True)
    for name in ("app.log", "debug.log", "app.log.gz"):
        (directory / "logs" / name).touch()
    monkeypatch.chdir(directory)
    return directory


def found(**keys: Any) -> list[str]:
    section = FileSource.model_validate({"type": "file", "service": "s", **keys})
    return [str(path) for path in Patterns(section.include, section.exclude).found()]


def test_a_pattern_that_is_not_absolute_is_of_the_directory_of_the_start(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = FileSource.model_validate({"type": "file", "service": "s", "include": ["logs/*"]})
    monkeypatch.chdir(tmp_path)  # what was read holds
    names = [str(path) for path in Patterns(section.include, section.exclude).found()]
    assert names == [f"{here}/logs/app.log", f"{here}/logs/debug.log"]


@pytest.mark.parametrize("exclude", ["logs/debug*", "*debug.log", "*/debug.???"])
def test_what_is_excluded_may_be_a_part_of_the_path_or_begin_where_the_process_does(
    here: Path, exclude: str
) -> None:
    for include in ("logs/*", f"{here.parent}/*/logs/*"):
        names = found(include=[include], exclude=[exclude])
        assert [Path(name).name for name in names] == ["app.log"], (include, exclude)
