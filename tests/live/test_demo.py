"""`penstock demo` as a user runs it: real servers, a real app, and faults in the middle."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.deploy.up.demo.report import final_status
from penstock.deploy.up.layout import Layout
from tests.support.untrusted_directory import untrusted_directory
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

PENSTOCK = Path(sys.executable).parent / "penstock"


class Launch:
    """One running `penstock` command and its output."""

    def __init__(self, directory: Path, *arguments: str, cwd: Path | None = None) -> None:
        self.directory = directory
        self._output = directory.with_suffix(".out")
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [PENSTOCK, *arguments, "--dir", directory],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                cwd=cwd,
            )  # fmt: skip

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_for(self, text: str, *, times: int = 1, within_s: float = 120) -> None:
        def said() -> bool:
            found = self.output.count(text) >= times
            assert found or self.process.poll() is None, self.output
            return found

        wait_until(said, within_s=within_s, what=text)

    def pids(self) -> dict[int, str]:
        """Every process that names the directory on its command line, but the launcher."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self.process.pid:
                continue
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            except OSError:
                continue
            if f"{self.directory}/" in command and state != "Z":
                found[int(entry.name)] = command
        return found

    def pid_of(self, part: str) -> int:
        config = f"{self.directory}/config/{part}."
        (pid,) = [pid for pid, command in self.pids().items() if config in command]
        return pid

    def jvm(self) -> int:
        (pid,) = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and _parent(entry) == self.pid_of("router")
            and b"java" in _command(entry)
        ]  # fmt: skip
        return pid


def _parent(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return -1


def _command(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


@contextmanager
def running(directory: Path, *arguments: str, cwd: Path | None = None) -> Iterator[Launch]:
    launch = Launch(directory, *arguments, cwd=cwd)
    try:
        yield launch
    finally:
        launch.process.kill()
        launch.process.wait()
        wait_until(lambda: not launch.pids(), within_s=20, what="nothing is left running")


def test_the_demo_reconciles_through_kill_9_of_each_part_and_runs_again(tmp_path: Path) -> None:
    directory, result = tmp_path / "demo", tmp_path / "result.json"
    arguments = ("demo", "--seconds", "20", "--json", str(result))
    with (
        untrusted_directory(tmp_path / "untrusted") as cwd,
        running(directory, *arguments, cwd=cwd) as launch,
    ):
        launch.wait_for("all parts are ready")
        os.kill(launch.pid_of("collector"), signal.SIGKILL)
        launch.wait_for("starting collector", times=2)
        launch.wait_for("leads logs now")  # the demo has killed who did before
        os.kill(launch.pid_of("router"), signal.SIGKILL)
        assert launch.process.wait(timeout=200) == 0, launch.output
        assert launch.pids() == {}
    verdict = json.loads(result.read_text())
    assert verdict["verified"]
    assert verdict["failover"]["killed"] != verdict["failover"]["successor"]
    assert {total["kind"] for total in verdict["landed"]} >= {"log", "span", "metric", "event"}
    states = {row["stage"]: row["state"] for row in verdict["account"]}
    assert states["app → Parquet"] == "balanced"
    assert "off" not in states.values()

    with running(directory, "demo", "--forever", "--json", str(result)) as launch:
        launch.wait_for("starting app")
        launch.process.send_signal(signal.SIGINT)
        assert launch.process.wait(timeout=150) == 0, launch.output
        assert launch.pids() == {}
    verdict = json.loads(result.read_text())
    states = {(row["stage"], row["part"]): row["state"] for row in verdict["account"]}
    assert not {"off", "unknown"} & {*states.values()}, verdict["account"]
    status = final_status(Layout(directory).log("collector"))
    assert status is not None
    assert status["component"] == "collector"


def status(directory: Path) -> dict[str, Any]:
    """What `penstock status` says, when everything is healthy."""

    def healthy() -> subprocess.CompletedProcess[bytes] | None:
        command = [str(PENSTOCK), "status", "--dir", str(directory), "--json"]
        done = subprocess.run(command, capture_output=True, check=False)
        return done if done.returncode == 0 else None

    found = wait_until(healthy, what="everything is healthy")
    assert found is not None
    document: dict[str, Any] = json.loads(found.stdout)
    return document


def test_nodes_are_supervised_and_nothing_is_left_behind_when_all_is_killed(tmp_path: Path) -> None:
    directory = tmp_path / "up"
    nodes = ["logd-1", "logd-2", "logd-3"]
    with running(directory, "up", "--free-ports", "--nodes", "3") as launch:
        launch.wait_for("all parts are ready")
        os.kill(launch.pid_of("logd-2"), signal.SIGKILL)
        launch.wait_for("starting logd-2", times=2)
        found = status(directory)
        names = ["nats", *nodes, "collector", "router", "console", "cluster", "addresses"]
        assert list(found) == names
        cluster = found["cluster"]
        assert [node["node"] for node in cluster["nodes"]] == nodes
        assert cluster["controller"] in nodes
        assert {part["leader"] for part in cluster["partitions"]} <= {*nodes}
        assert all(sorted(part["replicas"]) == nodes for part in cluster["partitions"])
        second = subprocess.run(
            [PENSTOCK, "up", "--free-ports", "--dir", directory], capture_output=True, check=False
        )
        assert (second.returncode, b"another penstock runs here" in second.stderr) == (69, True)
        jvm = launch.jvm()
        launch.process.kill()
        wait_until(lambda: not launch.pids(), within_s=20, what="every part has ended")
        wait_until(lambda: not Path(f"/proc/{jvm}").exists(), within_s=20, what="no JVM")


def test_a_second_interrupt_kills(tmp_path: Path) -> None:
    with running(tmp_path / "up", "up", "--free-ports") as launch:
        launch.wait_for("starting router")
        os.kill(launch.pid_of("collector"), signal.SIGSTOP)  # it does not end by itself
        launch.process.send_signal(signal.SIGINT)
        launch.wait_for("press Ctrl-C again")
        launch.process.send_signal(signal.SIGINT)
        assert launch.process.wait(timeout=60) == 75, launch.output
        assert re.search(r"killing everything", launch.output)
        assert launch.pids() == {}
