"""The account's row of each application: real processes, of which one is killed."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.deploy.account.command import read_account
from penstock.deploy.account.rows import Row, State
from tests.support.collector import Collector
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

ENDS = """
from penstock import specs

emitter = specs.setup("ends")
for number in range(500):
    specs.log().info("order placed", order_id=number)
"""

STAYS = """
import sys

from penstock import specs

emitter = specs.setup("stays")
for number in range(500):
    specs.log().info("order placed", order_id=number)
emitter.flush(60)
print(flush=True)
sys.stdin.read()
"""

IS_KILLED = """
import sys

from penstock import specs
from penstock.specs.emit.delivery.config import EmitterLimits

limits = EmitterLimits(max_batch_records=10, max_batch_age_ms=3600_000)
emitter = specs.setup("killed", limits=limits)
for number in range(25):
    specs.log().info("order placed", order_id=number)
print(flush=True)  # no collector runs yet: all of them wait
sys.stdin.read()
"""


def started(program: str, socket: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={"PENSTOCK_SOCKET": str(socket)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def await_line(program: subprocess.Popen[bytes]) -> None:
    assert program.stdout is not None
    assert program.stdout.readline() == b"\n"


def apps(collector: Collector) -> Mapping[str, Row]:
    parts = {"edge-1": f"http://{collector.config['admin']}"}
    found = asyncio.run(read_account(parts, 0))
    return {row.part: row for row in found if row.stage == "apps"}


def test_each_application_has_a_row_and_one_that_was_killed_with_records_is_red(
    tmp_path: Path, nats_url: str
) -> None:
    socket = tmp_path / "c.sock"
    sources = [{"type": "unix", "name": "apps", "path": str(socket)}]
    killed = started(IS_KILLED, socket)
    programs = [killed]
    try:
        await_line(killed)
        with Collector(tmp_path / "c", nats_url, sources) as collector:
            stays, ends = started(STAYS, socket), started(ENDS, socket)
            programs += [stays, ends]
            await_line(stays)
            assert ends.wait(60) == 0
            wait_until(
                lambda: (row := apps(collector).get("edge-1/killed")) and row.went["acked"] == 20,
                what="both full batches are acknowledged",
            )
            killed.kill()
            assert killed.wait(60) == -signal.SIGKILL
            wait_until(lambda: apps(collector)["edge-1/killed"].state is State.OFF, what="a loss")
            found = apps(collector)
            for name in ("stays", "ends"):
                row = found[f"edge-1/{name}"]
                assert (row.state, row.difference) == (State.BALANCED, 0)
                assert row.came["emitted"] == row.went["acked"] >= 500
                assert row.went["queued"] == 0
            row = found["edge-1/killed"]
            assert (row.difference, row.went["acked"]) == (5, 20)
            assert "5 were in the memory of a process that ended" in row.note
            assert row.came["emitted"] == sum(row.went.values()) + row.difference
    finally:
        for program in programs:
            program.kill()
            program.communicate()
