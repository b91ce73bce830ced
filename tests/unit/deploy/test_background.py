"""`penstock up --detach` and `penstock down` where something is odd."""

import fcntl
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.deploy.up import background
from penstock.deploy.up.layout import Layout, read_running, write_running
from penstock.service import ConfigError, ExitCode, UnavailableError
from tests.support.privileges import closed, others_process
from tests.support.waiting import wait_until

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


def test_on_a_full_disk_nothing_is_started_that_could_not_say_so(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="MiB are free"):
        background.start(directory=tmp_path, arguments=[], entry=SILENT, free_bytes_min=2**63)
    assert not (tmp_path / "logs" / "launcher.out").exists()


def test_a_launcher_that_ends_without_a_word_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"no output[^$]*without --detach") as caught:
        background.start(directory=tmp_path, arguments=[], entry=SILENT)
    assert caught.value.exit_code == ExitCode.FAILURE


STEPS = "print('    0 s  starting nats'); print('error: no room'); raise SystemExit(7)"
FOR_EVER = """
import os, threading
print(f"    0 s  starting nats as {os.getpid()}", flush=True)
threading.Event().wait()
"""


def test_steps_are_shown_as_they_come_and_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UnavailableError, match="no room") as caught:
        background.start(directory=tmp_path, arguments=[], entry=STEPS)
    assert "starting nats" not in str(caught.value)
    assert capsys.readouterr().err == "    0 s  starting nats\n"


def test_an_interrupted_wait_says_that_the_start_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "a b"
    said: list[str] = []

    def is_shown() -> bool:
        said.append(capsys.readouterr().err)
        return "starting nats" in "".join(said)

    def interrupt() -> None:
        wait_until(is_shown)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        background.start(directory=place, arguments=[], entry=FOR_EVER)
    interrupter.join()
    shown = "".join(said) + capsys.readouterr().err
    started = int(shown.splitlines()[0].split()[-1])
    os.kill(started, signal.SIGKILL)
    os.waitpid(started, 0)
    assert f"stop it: penstock down --dir '{place}'" in shown


@pytest.mark.parametrize("is_there", [False, True])
def test_what_the_launcher_says_is_for_its_owner_alone(tmp_path: Path, *, is_there: bool) -> None:
    output = tmp_path / "logs" / "launcher.out"
    if is_there:
        output.parent.mkdir()
        output.touch(0o644)
    with pytest.raises(UnavailableError):
        background.start(directory=tmp_path, arguments=[], entry=SILENT)
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


def test_what_another_user_runs_is_not_stopped_and_told(held: Layout) -> None:
    with others_process() as number:
        held.running.write_text(json.dumps({"pid": number, "parts": {}}))
        with pytest.raises(ConfigError, match="another user"):
            background.stop(directory=held.root, timeout_s=1)


def test_a_directory_that_is_not_for_this_user_is_told(held: Layout) -> None:
    with (
        closed(held.running),
        pytest.raises(ConfigError, match=r"running\.json: cannot be used: Permission denied"),
    ):
        background.stop(directory=held.root, timeout_s=1)


def test_one_that_runs_is_what_was_asked_for(
    held: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    held.running.write_text(json.dumps({"pid": os.getpid(), "parts": {}}))
    background.start(directory=held.root, arguments=[], entry=SILENT)
    assert "runs already" in capsys.readouterr().out
