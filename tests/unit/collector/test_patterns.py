"""Which files are meant, from wherever the process was started."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from penstock.collector.sources.files.discovery import Patterns, age_of, family_of
from penstock.collector.sources.files.settings import FileSettings
from penstock.service import FilePath


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
    section = FileSettings.model_validate({"type": "file", "service": "s", **keys})
    return [str(path) for path in Patterns(section.include, section.exclude).found()]


def test_a_pattern_that_is_not_absolute_is_of_the_directory_of_the_start(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = FileSettings.model_validate({"type": "file", "service": "s", "include": ["logs/*"]})
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


def test_without_a_directory_of_its_own_a_process_reads_absolute_paths_and_says_which_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release's directory is removed, and its collector goes on."""
    gone = tmp_path / "release"
    gone.mkdir()
    (tmp_path / "app.log").touch()
    monkeypatch.chdir(gone)
    gone.rmdir()
    here = str(tmp_path)
    assert found(include=[f"{here}/*.log"], exclude=["debug*"]) == [f"{here}/app.log"]
    with pytest.raises(ValidationError, match="relative to the directory of the start, which is"):
        found(include=["logs/*"])
    with pytest.raises(ValidationError, match="relative to the directory of the start, which is"):
        TypeAdapter(FilePath).validate_python("key.pem")


PATTERNS = ["*.log", "**/*.log", "a/**", "**/b/*", "[ab]*", "*/*", ".*", "a?/*.log*", "**/.c/*"]
NAMES = ["a.log", "b", "a/b/c.log", ".hid.log", "a/.c/d.log", "ab/x.log.1", "c/y", "a/b/.z.log"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_path_is_named_exactly_when_it_is_found(tmp_path: Path, pattern: str) -> None:
    """Also of a file that is not there any more, which nothing finds."""
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    patterns = Patterns([f"{tmp_path}/{pattern}"], ["*.log.1"])
    files = {str(tmp_path / name) for name in NAMES}
    there = {str(path) for path in patterns.found()}
    assert {path for path in files if patterns.name(path)} == there & files


def test_files_of_one_rotation_are_a_family_and_the_highest_number_is_the_oldest() -> None:
    names = [
        "app.log",
        "app.log.1",
        "app.log.10",
        "app.log.2",
        "app.log-20260102",
        "app.log.2026-01-02",
    ]
    assert {family_of(Path(f"/x/{name}")) for name in names} == {"/x/app.log"}
    assert family_of(Path("/x/2.log")) == "/x/2.log"
    numbered = sorted(names[:4], key=lambda name: age_of(Path(name), 7))
    assert numbered == ["app.log.10", "app.log.2", "app.log.1", "app.log"]
    assert age_of(Path("app.log"), 1) < age_of(Path("app.log.1"), 2), "the time comes first"


def test_compressed_files_that_are_named_are_not_found_and_told(tmp_path: Path) -> None:
    for name in ("a.log", "a.log.1.gz", "b.log.zst", "skip.log.gz"):
        (tmp_path / name).touch()
    patterns = Patterns([f"{tmp_path}/*.log*"], ["*skip*"])
    assert [path.name for path in patterns.found()] == ["a.log"]
    assert [path.name for path in patterns.compressed()] == ["a.log.1.gz", "b.log.zst"]


UNREADABLE = """
import os, sys
from penstock.collector.sources.files.discovery import Patterns
if os.getuid() == 0:
    os.setuid(65534)
print(*Patterns(sys.argv[1:2], sys.argv[2:]).unreadable())
"""


@pytest.mark.parametrize(
    ("pattern", "told"),
    [("**/*.log", ["a/closed", "closed"]), ("*/*.log", ["closed"]), ("open/*.log", [])],
)
def test_directories_that_cannot_be_read_are_told(pattern: str, told: list[str]) -> None:
    """By a process of a user who may not, where this one is root."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own can be read by nobody else
        top = Path(name)
        top.chmod(0o755)
        for directory in ("open", "a/closed", "closed", "left/out"):
            (top / directory).mkdir(parents=True)
            (top / directory / "x.log").touch()
        for directory in ("a/closed", "closed", "left/out"):
            (top / directory).chmod(0)
        program = [sys.executable, "-c", UNREADABLE, f"{top}/{pattern}", f"{top}/left*"]
        found = subprocess.run(program, capture_output=True, text=True, check=True).stdout.split()
        for directory in ("a/closed", "closed", "left/out"):
            (top / directory).chmod(0o700)
    assert found == [f"{top}/{directory}" for directory in told]


@pytest.mark.parametrize("keys", [{"include": ["~/a"]}, {"include": ["/a"], "exclude": ["${X}/b"]}])
def test_what_a_shell_would_expand_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="which is not expanded: write the whole path"):
        FileSettings.model_validate({"type": "file", "service": "s", **keys})


def test_a_pattern_that_is_none_is_refused_and_the_library_says_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ValidationError, match=r"'\[a' is no pattern of RE2: missing \]: \[a"):
        FileSettings.model_validate(
            {"type": "file", "service": "s", "include": ["/a"], "multiline": {"start": "[a"}}
        )
    assert capfd.readouterr().err == ""
