"""Real processes under the supervisor: none outlives it, however it ends."""

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.base.clock import SystemClock
from penstock.deploy.up import reaper
from penstock.deploy.up.supervision import (
    SECOND_NS,
    AllReady,
    CutShort,
    Effect,
    GaveUp,
    PartPlan,
    Restarting,
    StartPart,
)
from penstock.deploy.up.supervisor import Part, Supervisor
from tests.support.audited import audited
from tests.support.mounts import mounted
from tests.support.processes import Daemon, free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

# A part that starts a grandchild in a process group of its own, as Spark does, and waits. It writes
# both ids; SIGTERM ends only itself, so whatever ends the grandchild is not its own doing.
PARENT_OF_ONE = """
import os, pathlib, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], process_group=0)
pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()} {child.pid}")
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
while True:
    signal.pause()
"""
STUBBORN = """
import pathlib, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).write_text("up")
while True:
    signal.pause()
"""
LAUNCHER = """
import asyncio, sys
from pathlib import Path
from tests.live.test_deploy_supervisor import make_supervisor
asyncio.run(make_supervisor(Path(sys.argv[1]), print).run())
"""
KILLED_AT_THE_START = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.live.test_deploy_supervisor import ids_of_part, make_supervisor
directory, start = Path(sys.argv[1]), asyncio.create_subprocess_exec
async def start_and_be_killed(*command, **options):
    process = await start(*command, **options)
    if "watch" not in command:
        ids_of_part(directory)
        os.kill(os.getpid(), signal.SIGKILL)
    return process
asyncio.create_subprocess_exec = start_and_be_killed
asyncio.run(make_supervisor(directory, print).run())
"""

SHOWN = """
import asyncio, sys
from pathlib import Path
from penstock.deploy.up.layout import Layout
from penstock.deploy.up.progress import Screen
from penstock.service import configure_logs
from tests.live.test_deploy_supervisor import make_supervisor
directory = Path(sys.argv[1])
configure_logs("launcher")
with Screen(Layout(directory), steady=True) as screen:
    asyncio.run(make_supervisor(directory, screen.tell).run())
"""


def _part(directory: Path, code: str, plan: PartPlan | None = None) -> Part:
    plan = plan or PartPlan("part")
    ids = directory / f"{plan.name}.ids"

    async def is_up() -> bool:
        return ids.exists() and bool(ids.read_text())

    command = (sys.executable, "-c", code, str(ids))
    return Part(plan, command, directory / f"{plan.name}.log", is_ready=is_up)


def make_supervisor(directory: Path, report: object) -> Supervisor:
    assert callable(report)
    part = _part(directory, PARENT_OF_ONE)
    return Supervisor([part], ["part"], clock=SystemClock(), report=report)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ids_of_part(directory: Path) -> list[int]:
    path = directory / "part.ids"
    text = wait_until(lambda: path.exists() and path.read_text(), what="the part is up")
    return [int(word) for word in str(text).split()]


def test_stopping_ends_what_a_part_left_behind(tmp_path: Path) -> None:
    seen: list[Effect] = []

    async def main() -> None:
        def report(effect: Effect) -> None:
            seen.append(effect)
            if isinstance(effect, AllReady):
                supervisor.stop()

        supervisor = make_supervisor(tmp_path, report)
        await supervisor.run()

    asyncio.run(main())
    assert [pid for pid in ids_of_part(tmp_path) if _is_alive(pid)] == []
    assert not any(isinstance(effect, CutShort) for effect in seen)


def test_numbers_of_what_ended_are_sent_no_signal(tmp_path: Path) -> None:
    """Somebody else's process may have them by then."""
    done: list[str] = []

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.kill":
            assert Path(f"/proc/{arguments[0]}").exists(), "it is nobody's, or anybody's"
            done.append("kill")
        elif event in ("os.listdir", "os.scandir") and str(arguments[0]) == "/proc":
            done.append("look")

    with audited(note):
        test_stopping_ends_what_a_part_left_behind(tmp_path)
    last = len(done) - 1 - done[::-1].index("kill")
    assert done[last + 1 :] == ["look"], "who is left is asked until nobody is, and not after that"
    assert stat.S_IMODE((tmp_path / "part.log").stat().st_mode) == 0o600


def test_a_part_that_ignores_the_signal_is_killed(tmp_path: Path) -> None:
    seen: list[Effect] = []

    async def main() -> None:
        def report(effect: Effect) -> None:
            seen.append(effect)
            if isinstance(effect, AllReady):
                supervisor.stop()

        plan = PartPlan("part", stop_within_ns=SECOND_NS // 5)
        part = _part(tmp_path, STUBBORN, plan)
        supervisor = Supervisor([part], ["part"], clock=SystemClock(), report=report)
        await supervisor.run()

    asyncio.run(main())
    assert CutShort("part", "did not end when told to") in seen


def test_a_part_killed_by_someone_is_restarted_without_its_old_children(tmp_path: Path) -> None:
    first: list[int] = []

    async def main() -> None:
        def report(effect: Effect) -> None:
            match effect:
                case AllReady():
                    first.extend(ids_of_part(tmp_path))
                    os.kill(first[0], signal.SIGKILL)
                case Restarting():
                    (tmp_path / "part.ids").unlink()
                    assert not _is_alive(first[1])
                case StartPart() if first:
                    supervisor.stop()
                case _:
                    pass

        supervisor = make_supervisor(tmp_path, report)
        await supervisor.run()

    asyncio.run(main())
    assert first


def test_a_program_that_cannot_be_started_ends_the_launch(tmp_path: Path) -> None:
    seen: list[Effect] = []

    async def never() -> bool:
        return False

    log = tmp_path / "part.log"
    part = Part(PartPlan("part"), (str(tmp_path / "nothing"),), log, is_ready=never)
    asyncio.run(Supervisor([part], ["part"], clock=SystemClock(), report=seen.append).run())
    assert GaveUp("part", reaper.NOT_STARTED) in seen
    assert "No such file" in log.read_text()


def test_a_part_whose_answer_cannot_be_read_is_asked_again(tmp_path: Path) -> None:
    seen: list[Effect] = []
    answers = iter(["no", "nor this", "ready"])

    async def is_up() -> bool:
        if (answer := next(answers)) != "ready":
            raise KeyError(answer)
        return True

    async def main() -> None:
        def report(effect: Effect) -> None:
            seen.append(effect)
            if isinstance(effect, AllReady):
                supervisor.stop()

        command = (sys.executable, "-c", PARENT_OF_ONE, str(tmp_path / "part.ids"))
        part = Part(PartPlan("part"), command, tmp_path / "part.log", is_ready=is_up)
        supervisor = Supervisor([part], ["part"], clock=SystemClock(), report=report)
        await supervisor.run()

    asyncio.run(main())
    assert AllReady() in seen
    assert next(answers, None) is None


@contextmanager
def _launcher(
    directory: Path, code: str = LAUNCHER, output: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(directory)],
        cwd=Path(__file__).resolve().parents[2], stdout=output, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _guards_of(launcher: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == launcher and reaper.__file__.encode() in command:
            found.append(int(entry.name))
    return found


def test_nothing_outlives_a_launcher_killed_with_9(tmp_path: Path) -> None:
    with _launcher(tmp_path) as launcher:
        ids = ids_of_part(tmp_path)
        assert all(map(_is_alive, ids))
        launcher.kill()
        wait_until(lambda: not any(map(_is_alive, ids)), what="all ended", within_s=10)


def test_nothing_outlives_a_launcher_killed_while_it_starts_a_part(tmp_path: Path) -> None:
    with _launcher(tmp_path, KILLED_AT_THE_START) as launcher:
        ids = ids_of_part(tmp_path)
        assert launcher.wait(60) == -signal.SIGKILL
        try:
            wait_until(lambda: not any(map(_is_alive, ids)), what="all ended", within_s=10)
        finally:
            reaper.signal_session(ids[0], signal.SIGKILL)


def test_a_part_ends_even_when_the_guard_is_killed_too(tmp_path: Path) -> None:
    with _launcher(tmp_path) as launcher:
        ids = ids_of_part(tmp_path)
        for pid in _guards_of(launcher.pid):
            os.kill(pid, signal.SIGKILL)
        launcher.kill()
        try:
            wait_until(lambda: not _is_alive(ids[0]), what="the part ended", within_s=10)
        finally:
            reaper.signal_session(ids[0], signal.SIGKILL)


def test_a_console_with_few_open_files_answers_however_many_connect(tmp_path: Path) -> None:
    """On its own port and on the admin endpoint; the limit is hard, so that it stays."""
    console, admin = free_port(), free_port()
    config = {"listen": f"127.0.0.1:{console}", "admin": f"127.0.0.1:{admin}", "parts": {}}
    program = ("prlimit", "--nofile=96:96", sys.executable, "-m", "penstock.deploy.console")
    daemon = Daemon("console", config, tmp_path, program=program)
    daemon.start()
    try:
        crowd = [
            socket.create_connection(("127.0.0.1", port), timeout=60)
            for _ in range(150)
            for port in (console, admin)
        ]
        for _ in range(3):
            assert daemon.status()["health"] == "ready"
            with urllib.request.urlopen(f"http://127.0.0.1:{console}/", timeout=20) as page:
                assert page.status == 200
        assert len(list(Path(f"/proc/{daemon.pid}/fd").iterdir())) < 96
        for connection in crowd:
            connection.close()
        assert daemon.stop() == 0
        assert "Too many open files" not in daemon.log()
        assert len(daemon.log()) < 20_000
    finally:
        daemon.close()


def test_a_part_whose_log_cannot_be_opened_ends_alone(tmp_path: Path) -> None:
    """As without a descriptor for it; the launcher goes on, and ends the others."""
    seen: list[Effect] = []
    part = _part(tmp_path, PARENT_OF_ONE)
    part.log_path.mkdir()
    supervisor = Supervisor([part], ["part"], clock=SystemClock(), report=seen.append)
    asyncio.run(supervisor.run())
    assert any(isinstance(effect, GaveUp) for effect in seen)


def test_names_of_processes_and_mounts_may_be_no_text(tmp_path: Path) -> None:
    """The kernel cuts a process's name after 15 bytes, which may be within a character."""
    code = "open('/proc/self/comm', 'w').write('compression-inä')"
    code = f"import signal; {code}; print(flush=True); signal.pause()"
    foreign = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert foreign.stdout is not None
        foreign.stdout.readline()
        name = Path(f"/proc/{foreign.pid}/comm").read_bytes()
        assert name == b"compression-in\xc3\n"
        with _launcher(tmp_path) as launcher:
            ids = ids_of_part(tmp_path)
            launcher.kill()
            wait_until(lambda: not any(map(_is_alive, ids)), what="all ended", within_s=10)
        strange = tmp_path / os.fsdecode(b"Gr\xf6\xdfe")
        with mounted(strange, "-t", "tmpfs", "tmpfs"):
            entry = "from penstock.deploy.main import main; main()"
            command = [sys.executable, "-c", entry, "doctor", "--dir", str(strange)]
            told = subprocess.run(command, capture_output=True, check=False)
        assert b"tmpfs" in told.stdout, told.stderr
    finally:
        foreign.kill()
        foreign.communicate()


def test_a_launcher_whose_output_nobody_reads_goes_on(tmp_path: Path) -> None:
    with _launcher(tmp_path, SHOWN, subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        while b"ready" not in launcher.stdout.readline():
            assert launcher.poll() is None
        launcher.stdout.close()
        before = ids_of_part(tmp_path)
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: ids_of_part(tmp_path) != before, what="the part is up again")
        assert launcher.poll() is None
