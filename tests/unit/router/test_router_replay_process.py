"""A replay in a process of its own: what is seen of it, and what ends it."""

import ctypes
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.router.cli.main import cli
from penstock.router.job.permissions import PATH
from penstock.router.replay.process import attended
from penstock.router.replay.progress import Progress
from penstock.service import AdminStatusError, ExitCode, ask_admin
from tests.support.admin import status_code
from tests.support.processes import free_port
from tests.support.waiting import wait_until
from tests.unit.router.sink_rows import TestClock
from tests.unit.router.test_router_config import JOB, load

TOKEN = "0123456789abcdef"


class Run:
    """A replay to `lake` that is at its second batch of three."""

    def __init__(self, directory: Path) -> None:
        (directory / "token").write_text(TOKEN)
        self.keys = {
            "actions_token_file": str(directory / "token"),
            "admin": f"127.0.0.1:{free_port()}",
        }
        self.config = load(directory, checkpoint_dir=str(directory / "checkpoint"), **self.keys)
        self.stop = threading.Event()
        self.progress = Progress("batches", "lake")
        self.progress.done, self.progress.of = 1, 3
        self.cancelled = threading.Event()
        self.session = self
        self.spark = self.sparkContext = self
        self.ui = None

    def cancelAllJobs(self) -> None:  # noqa: N802 - Spark's name
        self.cancelled.set()

    def ask(self, path: str, posted: tuple[bytes, str] | None = None) -> dict[str, Any]:
        answer = ask_admin(self.config.admin, path, None, timeout_s=10, posted=posted)
        found: dict[str, Any] = json.loads(answer)
        return found

    def command(self, directory: Path, name: str) -> Any:
        path = directory / "job.yaml"
        path.write_text(yaml.safe_dump(JOB | self.keys))
        return CliRunner().invoke(cli, [name, str(path)])


@pytest.fixture(autouse=True)
def as_from_a_terminal() -> Iterator[None]:
    """A run of these tests may itself have been started under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_replay_is_seen_where_the_job_would_be(tmp_path: Path) -> None:
    run: Any = Run(tmp_path)
    with attended(run, SystemClock()):
        assert run.ask("/status")["health"] == "ready"
        run.progress.meter.problem = "ConnectionRefusedError: nobody is there"
        status = run.ask("/status")
        assert status["health"] == "degraded"
        assert status["reasons"] == ["replay to lake: ConnectionRefusedError: nobody is there"]
        said = run.command(tmp_path, "status").output
        assert f"replay to lake (process {os.getpid()}): 1 of 3 batches, 0 records" in said
        assert ask_admin(run.config.admin, "/metrics", None, timeout_s=10)
    with pytest.raises(OSError, match="refused"):
        run.ask("/status")


def test_its_endpoint_answers_to_its_names_alone(tmp_path: Path) -> None:
    run: Any = Run(tmp_path)
    run.config = load(tmp_path, checkpoint_dir="/c", admin_hosts=["a.example.org"], **run.keys)
    with attended(run, SystemClock()):
        assert status_code(run.config.admin, "a.example.org") == 200
        assert status_code(run.config.admin, "evil.example.org") == 421


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_it_and_what_spark_does_for_it(tmp_path: Path, number: int) -> None:
    run: Any = Run(tmp_path)
    before = signal.getsignal(number)
    with attended(run, SystemClock()):
        os.kill(os.getpid(), number)
        wait_until(run.stop.is_set)
        wait_until(run.cancelled.is_set)
    assert signal.getsignal(number) is before


def test_a_signal_takes_no_lock_that_the_main_thread_may_hold(tmp_path: Path) -> None:
    class Elsewhere(threading.Event):
        def __init__(self) -> None:
            super().__init__()
            self.busy = threading.Lock()

        @override
        def set(self) -> None:
            assert threading.current_thread() is not threading.main_thread()
            with self.busy:
                super().set()

    run: Any = Run(tmp_path)
    run.stop = Elsewhere()
    with attended(run, SystemClock()):
        with run.stop.busy:  # as an event's own lock is inside `wait`
            os.kill(os.getpid(), signal.SIGTERM)
        wait_until(run.stop.is_set)


HUP, TERM, INT = signal.SIGHUP, signal.SIGTERM, signal.SIGINT


@pytest.mark.parametrize(
    ("numbers", "after_s", "ends"),
    [
        ((HUP, HUP), 0.01, False),
        ((TERM, TERM), 0.9, False),
        ((HUP, HUP), 60, False),
        ((TERM, HUP), 60, False),
        ((HUP, TERM), 60, True),
        ((INT, INT), 1.1, True),
    ],
)
def test_a_second_signal_ends_the_process_unless_it_is_the_same_one_told_twice(
    tmp_path: Path, numbers: tuple[int, int], after_s: float, ends: bool
) -> None:
    """The end of a terminal is told by the shell and the kernel, `timeout` tells a group, too."""
    codes: list[int] = []
    run: Any = Run(tmp_path)
    clock = TestClock()
    with attended(run, clock, exit_now=codes.append):
        os.kill(os.getpid(), numbers[0])
        wait_until(run.cancelled.is_set)
        clock.sleep(after_s)
        os.kill(os.getpid(), numbers[1])
        if ends:
            wait_until(lambda: bool(codes))
    assert codes == [ExitCode.TEMPORARY] * ends


def test_a_signal_is_heard_in_the_midst_of_a_call_into_c(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    run: Any = Run(tmp_path)
    stopped: list[bool] = []

    def watch() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        stopped.append(run.stop.wait(20))
        os.write(writing, b".")

    with attended(run, SystemClock()):
        signal.siginterrupt(signal.SIGTERM, False)
        thread = threading.Timer(0.2, watch)
        thread.start()
        assert ctypes.CDLL(None).read(reading, ctypes.create_string_buffer(1), 1) == 1
        thread.join()
    assert stopped == [True]
    os.close(reading)
    os.close(writing)


def test_a_signal_is_heard_while_spark_does_not_answer(tmp_path: Path) -> None:
    codes: list[int] = []
    run: Any = Run(tmp_path)
    answers = threading.Event()
    run.cancelAllJobs = answers.wait
    clock = TestClock()
    with attended(run, clock, exit_now=codes.append):
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(run.stop.is_set)
        clock.sleep(2)
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: bool(codes))
        answers.set()


def test_who_wants_it_to_outlast_the_terminal_has_it_so(tmp_path: Path) -> None:
    run: Any = Run(tmp_path)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with attended(run, SystemClock()):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_where_its_address_is_taken_it_goes_on_unseen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run: Any = Run(tmp_path)
    host, port = run.config.admin.split(":")
    with socket.create_server((host, int(port))), attended(run, SystemClock()):
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(run.stop.is_set)
    assert "no `status` shows this replay" in capsys.readouterr().err


def test_a_token_is_not_sent_in_clear_text_over_a_network(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.keys["admin"] = "192.0.2.7:9294"
    done = run.command(tmp_path, "stop-replay")
    assert "the token is not sent to 192.0.2.7:9294 over plain http" in done.output
    assert done.exit_code == ExitCode.CONFIG


def test_whoever_shows_the_token_stops_it(tmp_path: Path) -> None:
    run: Any = Run(tmp_path)
    with attended(run, SystemClock()):
        for body, token, code in (
            (b'{"do": "stop"}', "wrong", 401),
            (b'{"do": "replay", "sink": "lake"}', TOKEN, 409),
            (b'{"do": "stop", "sink": "attic"}', TOKEN, 409),
            (b"[" * 10_000, TOKEN, 409),
        ):
            with pytest.raises(AdminStatusError) as caught:
                run.ask(PATH, (body, token))
            assert caught.value.response.status == code
        assert not run.stop.is_set()
        done = run.command(tmp_path, "stop-replay")
        assert (done.exit_code, done.output) == (0, "the replay to lake is to stop\n")
        assert run.stop.is_set()
    (line,) = (run.config.dead_letters / "replays.ndjson").read_text().splitlines()
    note = json.loads(line)
    assert (note["what"], note["to"]) == ("range stop asked", "lake")
    assert note["by"] == "penstock router stop-replay"
    assert note["peer"].startswith("127.0.0.1:")


def test_the_command_says_why_it_cannot(tmp_path: Path) -> None:
    run = Run(tmp_path)
    done = run.command(tmp_path, "stop-replay")
    assert "does not run: nothing listens at" in done.output
    Path(run.keys["actions_token_file"]).unlink()
    done = run.command(tmp_path, "stop-replay")
    assert "actions_token_file: " in done.output
    assert "No such file" in done.output
    assert done.exit_code == ExitCode.CONFIG
    del run.keys["actions_token_file"]
    done = run.command(tmp_path, "stop-replay")
    assert "no actions_token_file" in done.output
    assert "SIGTERM" in done.output
