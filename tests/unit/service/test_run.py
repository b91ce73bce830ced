"""How every daemon runs: its limit of open files, and what its event loop has to report."""

import asyncio
import errno
import io
import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import structlog
from typing_extensions import override

from penstock.base.sockets import ACCEPT_AT_ONCE, widen_backlog
from penstock.service import LoopFailures, configure_logs, run_until_stopped
from tests.support.waiting import PATIENCE, wait_until


def test_what_fails_in_the_event_loop_goes_into_the_log() -> None:
    def fails() -> None:
        raise RuntimeError("a callback failed")

    async def main(stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(3):
            loop.call_soon(fails)
        loop.call_soon(stop.set)
        await stop.wait()

    with structlog.testing.capture_logs() as logs:
        run_until_stopped(main)
    (told,) = logs
    assert (told["event"], told["log_level"]) == ("event_loop_error", "error")
    assert isinstance(told["exc_info"], RuntimeError)


async def test_the_same_failure_is_logged_once_a_minute_with_how_often_it_was() -> None:
    class Loop:
        now_s = 1000.0

        def time(self) -> float:
            return self.now_s

    loop, failures = Loop(), LoopFailures()
    context = {
        "message": "socket.accept() out of system resource",
        "exception": OSError(errno.EMFILE, "Too many open files"),
    }
    with structlog.testing.capture_logs() as logs:
        for _ in range(500):
            failures(loop, context)  # type: ignore[arg-type]
        loop.now_s += 61
        failures(loop, context)  # type: ignore[arg-type]
    assert [(told["log_level"], told["repeated"]) for told in logs] == [
        ("warning", 0),
        ("warning", 499),
    ]


def test_the_soft_limit_of_open_files_is_raised() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    seen: list[tuple[int, int]] = []

    async def main(_: asyncio.Event) -> None:
        seen.append(resource.getrlimit(resource.RLIMIT_NOFILE))

    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[1]), before[1]))
    try:
        run_until_stopped(main)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert seen == [(before[1], before[1])]


async def test_a_server_that_accepts_one_at_a_time_has_the_usual_backlog() -> None:
    """As many connect at once as without it, before anything accepts them."""
    server = await asyncio.start_server(
        lambda _, writer: writer.close(), "127.0.0.1", 0, backlog=ACCEPT_AT_ONCE
    )
    widen_backlog(server)
    host, port = server.sockets[0].getsockname()[:2]
    async with server, asyncio.timeout(5):
        made = await asyncio.gather(*(asyncio.open_connection(host, port) for _ in range(60)))
        for reader, writer in made:
            assert await reader.read() == b""
            writer.close()


STUCK = """
import asyncio, threading
from penstock.service import run_until_stopped

async def main(stop):
    print("runs", flush=True)
    if stuck:
        threading.Event().wait()
    await stop.wait()
    print("stopped", flush=True)

run_until_stopped(main, stuck_s=stuck_s)
"""


@pytest.mark.parametrize(
    ("stuck", "stuck_s", "signals", "code", "said"),
    [
        (True, 0.05, 1, 75, "error: stopped after 0.05 s: the event loop waits for a disk"),
        (True, 600, 2, 75, "error: stopped at a second signal: the event loop waits for a disk"),
        (False, 0.05, 1, 0, ""),
    ],
)
def test_a_process_whose_event_loop_is_stuck_ends_when_it_is_told_to(
    stuck: bool,
    stuck_s: float,
    signals: int,
    code: int,
    said: str,
) -> None:
    program = f"stuck, stuck_s = {stuck}, {stuck_s}\n{STUCK}"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        process.send_signal(signal.SIGTERM)
        if signals > 1:
            wait_until(lambda: not _is_pending(process.pid, signal.SIGTERM))
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20 * PATIENCE)
    assert process.returncode == code
    assert said in err
    assert ("stopped" in out) is not stuck


def test_a_stuck_process_ends_also_when_its_last_word_cannot_be_written() -> None:
    program = f"stuck, stuck_s = True, 0.05\n{STUCK}"
    with (
        Path("/dev/full").open("w") as full,
        subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, text=True
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(timeout=20 * PATIENCE) == 75
        finally:
            process.kill()


class FullDisk(io.StringIO):
    """Takes nothing while it is full."""

    is_full = False

    @override
    def write(self, text: str) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def test_a_log_that_cannot_be_written_stops_nothing_and_goes_on_later() -> None:
    disk = FullDisk()
    configure_logs("logd", stream=disk)
    try:
        disk.is_full = True
        structlog.get_logger().warning("lost")
        disk.is_full = False
        structlog.get_logger().warning("kept")
        (line,) = disk.getvalue().splitlines()
        assert json.loads(line)["event"] == "kept"
        disk.close()
        structlog.get_logger().warning("lost", reason="its stream is closed")
    finally:
        structlog.reset_defaults()


def _is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether a process has not taken a signal yet."""
    status = Path(f"/proc/{pid}/status").read_text()
    pending = next(line for line in status.splitlines() if line.startswith("ShdPnd"))
    return bool(int(pending.split()[1], 16) >> (number - 1) & 1)
