"""`penstock up --detach` and `penstock down`, with a launcher that starts nothing."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from prometheus_client import CollectorRegistry

from penstock.deploy.up import background
from penstock.deploy.up.layout import Layout, read_running
from penstock.service import AdminServer, Health, Status, UnavailableError
from tests.support.untrusted_directory import untrusted_directory
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

LAUNCHER = """
import os, signal, sys, threading
from pathlib import Path
from prometheus_client import CollectorRegistry
from penstock.deploy.up.layout import Layout, claimed, write_running
from penstock.service import AdminServer, Health, Status

layout = Layout(Path(sys.argv[sys.argv.index("--dir") + 1]))
ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: {on_signal})
with claimed(layout):
    admin = AdminServer(lambda: Status("logd", "logd-1", "1", Health.READY), CollectorRegistry())
    parts = {{"logd": "http://" + admin.start("127.0.0.1:0")}}
    write_running(layout, parts)
    ended.wait(0.6)  # it serves, and has not yet said where
    print("    1 s  all parts are ready; Ctrl-C drains and stops them", flush=True)
    addresses = {{"console": "http://127.0.0.1:9299/"}}
    write_running(layout, parts, addresses=addresses, ready=True)
    ended.wait()
"""


def test_up_returns_when_all_is_ready_and_again_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = LAUNCHER.format(on_signal="ended.set()")
    background.start(directory=tmp_path, arguments=[], entry=entry)
    running = read_running(Layout(tmp_path))
    assert running is not None
    assert _shows_console(capsys.readouterr().out)
    background.start(directory=tmp_path, arguments=[], entry=entry)
    again = capsys.readouterr().out
    assert f"runs already in {tmp_path} (process {running['pid']})" in again
    assert _shows_console(again)
    background.stop(directory=tmp_path, timeout_s=60)
    assert read_running(Layout(tmp_path)) is None
    background.stop(directory=tmp_path, timeout_s=60)
    assert f"nothing runs in {tmp_path}" in capsys.readouterr().out


def _shows_console(text: str) -> bool:
    return re.search(r"^ +console +http://127\.0\.0\.1:9299/$", text, re.MULTILINE) is not None


def test_what_ends_before_it_is_ready_says_why(tmp_path: Path) -> None:
    entry = "import sys; print('no space'); sys.exit(69)"
    with pytest.raises(UnavailableError, match="no space") as caught:
        background.start(directory=tmp_path, arguments=[], entry=entry)
    assert caught.value.exit_code == 69


def test_a_launcher_imports_nothing_from_the_callers_directory(tmp_path: Path) -> None:
    penstock = Path(sys.executable).parent / "penstock"
    command = [str(penstock), "up", "--detach", "--dir", str(tmp_path / "up")]
    with untrusted_directory(tmp_path / "untrusted") as cwd:
        done = subprocess.run(
            [*command, "--nats-url", "nats://127.0.0.1:9"],
            cwd=cwd, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 69
    assert "no NATS server at nats://127.0.0.1:9" in done.stderr


def test_what_drains_for_longer_than_that_is_told_and_left_alone(tmp_path: Path) -> None:
    code = LAUNCHER.format(on_signal="None")
    with subprocess.Popen([sys.executable, "-c", code, "--dir", str(tmp_path)]) as process:
        try:
            wait_until(lambda: read_running(Layout(tmp_path)), what="it runs")
            with pytest.raises(background.StillRunningError, match=str(process.pid)):
                background.stop(directory=tmp_path, timeout_s=1)
            assert process.poll() is None
        finally:
            process.kill()
    background.stop(directory=tmp_path, timeout_s=1)


def test_another_process_of_that_number_is_not_stopped(tmp_path: Path) -> None:
    """The launcher was killed, and its number is another's now."""
    layout = Layout(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        layout.running.write_text(f'{{"pid": {stranger.pid}, "parts": {{}}}}')
        (tmp_path / "launcher.lock").touch()
        background.stop(directory=tmp_path, timeout_s=1)
        assert stranger.poll() is None
        stranger.send_signal(signal.SIGKILL)


def test_what_another_launch_has_left_is_not_taken_for_this_one(
    tmp_path: Path,
) -> None:
    """Its launcher was killed, its number is another's, and its parts still answer."""
    ready = Status("logd", "logd-1", "1", Health.READY)
    part = AdminServer(lambda: ready, CollectorRegistry())
    url = f"http://{part.start('127.0.0.1:0')}"
    document = json.dumps({"pid": os.getpid(), "parts": {"logd": url}})
    begin = LAUNCHER.index("write_running(layout, ")
    number = tmp_path / "number"
    leave = f"layout.running.write_text({document!r})\n"
    told = f"    Path({str(number)!r}).write_text(str(os.getpid()))\n"
    entry = LAUNCHER[:begin].format(on_signal="ended.set()") + leave + told + "    ended.wait()\n"
    try:
        with pytest.raises(UnavailableError, match="not all parts were ready"):
            background.start(directory=tmp_path, arguments=(), entry=entry, ready_s=3)
    finally:
        pid = int(wait_until(lambda: number.exists() and number.read_text()))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        part.close()


def test_every_part_may_have_as_many_open_files_as_the_hard_limit_says(tmp_path: Path) -> None:
    """Those that raise no limit themselves have it from the launcher, as the guard of all parts."""
    penstock = Path(sys.executable).parent / "penstock"
    command = ["prlimit", "--nofile=256:4096", str(penstock), "up", "--free-ports"]
    output = tmp_path / "up.out"
    with (
        output.open("wb") as out,
        subprocess.Popen(
            [*command, "--dir", str(tmp_path / "up")],
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
        ) as launcher,
    ):
        try:
            started = wait_until(
                lambda: _limits_with(launcher.pid, "-m penstock.logd"), what="a logd", within_s=60
            )
            assert started is not None
            assert set(started.values()) == {(4096, 4096)}, started
        finally:
            launcher.send_signal(signal.SIGTERM)
            wait_until(lambda: "stopping" in output.read_text(), what="it drains")
            launcher.send_signal(signal.SIGTERM)
            launcher.wait(timeout=60)


def _limits_with(launcher: int, part: str) -> dict[str, tuple[int, int]] | None:
    """The limits of every process below a launcher, by command; None until the part runs."""
    found = {}
    for process in psutil.Process(launcher).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            command = f"{process.pid} {' '.join(process.cmdline())}"
            found[command] = process.rlimit(psutil.RLIMIT_NOFILE)
    return found if any(part in command for command in found) else None
