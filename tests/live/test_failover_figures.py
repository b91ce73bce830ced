"""`make failover` works: a kill of each kind, real processes. No time is judged."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.worker import ROOT
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.live


def start(directory: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = (sys.executable, "-m", "tests.harness", "failover", "--rate", "200")
    return subprocess.Popen(
        [*command, "--dir", str(directory), *arguments],
        cwd=ROOT, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


@pytest.mark.timeout(720)
def test_every_acked_message_is_found_after_a_kill(tmp_path: Path) -> None:
    path, directory = tmp_path / "failover.json", tmp_path / "work"
    running = start(directory, "--runs", "1", "--json", str(path))
    output, _ = running.communicate(timeout=230 * PATIENCE)
    assert running.returncode == 0, output[-3000:]
    document = json.loads(path.read_text())
    times = document["times_s"]
    assert times["publisher without an ack"]["max"] > 0
    assert times["reader without a record"]["max"] > 0
    assert document["counts"]["found"] == document["counts"]["acked"] > 0
    assert list(directory.iterdir()) == []


@pytest.mark.timeout(420)
def test_an_interrupt_ends_it_and_what_it_started(tmp_path: Path) -> None:
    directory = tmp_path / "work"
    running = start(directory, "--runs", "100")
    wait_until(
        lambda: list(directory.glob("failover-*/round-1/cluster/acks")), within_s=60, what="a start"
    )
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=60 * PATIENCE)
    assert running.returncode == 130, output[-3000:]
    assert list(directory.iterdir()) == []
