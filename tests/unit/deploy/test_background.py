"""`penstock up --detach` and `penstock down` where something is odd."""

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from penstock.deploy import background
from penstock.deploy import layout as layout_module
from penstock.deploy.layout import Layout, read_running, write_running
from penstock.service import ConfigError, ExitCode, UnavailableError

SILENT = "raise SystemExit(7)"


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Layout]:
    """A directory that somebody holds, whose process number is written there."""
    layout = Layout(tmp_path)
    write_running(layout, {})
    with (tmp_path / "launcher.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield layout


def test_below_a_file_there_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "state"
    with pytest.raises(ConfigError, match="Not a directory"):
        background.start(directory=place, arguments=[])
    background.stop(directory=place, timeout_s=1)
    assert read_running(Layout(place)) is None


def test_on_a_full_disk_nothing_is_started_that_could_not_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout_module, "FREE_BYTES_MIN", 2**63)
    monkeypatch.setattr(background, "_ENTRY", SILENT)  # should it be started after all
    with pytest.raises(UnavailableError, match="MiB are free"):
        background.start(directory=tmp_path, arguments=[])
    assert not (tmp_path / "logs" / "launcher.out").exists()


def test_a_launcher_that_ends_without_a_word_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_ENTRY", SILENT)
    with pytest.raises(UnavailableError, match=r"no word[^$]*without --detach") as caught:
        background.start(directory=tmp_path, arguments=[])
    assert caught.value.exit_code == ExitCode.FAILURE


STEPS = "print('    0 s  starting nats'); print('error: no room'); raise SystemExit(7)"
FOR_EVER = "print('    0 s  starting nats', flush=True); import threading; threading.Event().wait()"


def test_steps_are_shown_as_they_come_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(background, "_ENTRY", STEPS)
    with pytest.raises(UnavailableError, match="no room") as caught:
        background.start(directory=tmp_path, arguments=[])
    assert "starting nats" not in str(caught.value)
    assert capsys.readouterr().err == "    0 s  starting nats\n"


def test_an_interrupted_wait_says_that_the_start_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "a b"
    started: list[int] = []
    looks = iter(range(10**9))
    spawn = background._spawn

    def remember(layout: Layout, arguments: Sequence[str], entry: str) -> int:
        started.append(spawn(layout, arguments, entry))
        return started[0]

    def interrupt(_: float) -> None:
        said = (place / "logs" / "launcher.out").read_text()
        if "starting nats" in said and next(looks) == 1:  # it has been shown, too
            raise KeyboardInterrupt

    monkeypatch.setattr(background, "_ENTRY", FOR_EVER)
    monkeypatch.setattr(time, "sleep", interrupt)
    monkeypatch.setattr(background, "_spawn", remember)
    with pytest.raises(KeyboardInterrupt):
        background.start(directory=place, arguments=[])
    os.kill(started[0], signal.SIGKILL)
    os.waitpid(started[0], 0)
    said = capsys.readouterr().err
    assert said.startswith("    0 s  starting nats\n")
    assert f"stop it: penstock down --dir '{place}'" in said


@pytest.mark.parametrize("is_there", [False, True])
def test_what_the_launcher_says_is_for_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_there: bool
) -> None:
    monkeypatch.setattr(background, "_ENTRY", SILENT)
    output = tmp_path / "logs" / "launcher.out"
    if is_there:
        output.parent.mkdir()
        output.touch(0o644)
    with pytest.raises(UnavailableError):
        background.start(directory=tmp_path, arguments=[])
    assert output.stat().st_mode & 0o777 == 0o600


def test_what_the_launcher_would_say_has_a_place(tmp_path: Path) -> None:
    (tmp_path / "logs" / "launcher.out").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"launcher\.out: cannot be used"):
        background.start(directory=tmp_path, arguments=[])


@pytest.mark.parametrize("text", ["[]", "7", "{}", '{"pid": 1}', "", "\x00", '{"parts": {}}'])
def test_a_file_that_no_launcher_wrote_names_none(tmp_path: Path, text: str) -> None:
    layout = Layout(tmp_path)
    layout.running.write_text(text)
    assert read_running(layout) is None


def test_what_another_user_runs_is_not_stopped_and_told(
    held: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int, number: int) -> None:
        assert number == signal.SIGTERM
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "kill", refuse)
    with pytest.raises(ConfigError, match="another user's"):
        background.stop(directory=held.root, timeout_s=1)


def test_a_directory_that_is_not_for_this_user_is_told(
    held: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(ConfigError, match=r"running\.json: cannot be used: Permission denied"):
        background.stop(directory=held.root, timeout_s=1)


def test_one_that_runs_is_what_was_asked_for(
    held: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/nothing/is/started")
    held.running.write_text(json.dumps({"pid": os.getpid(), "parts": {}}))
    background.start(directory=held.root, arguments=[])
    assert "runs already" in capsys.readouterr().out
