"""This host's figures: what cannot be read is named and costs nothing else."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from structlog.testing import capture_logs

from penstock.collector.sources.host_metrics import Failed, HostMetricsSource, Point, measure
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted
from tests.support.spool_writer import spooling
from tests.support.waiting import wait_until_async

WITHOUT_PROC = """
import psutil
from penstock.collector.sources.host_metrics import measure
psutil.PROCFS_PATH = "/nowhere"
failed = []
names = {point.name for point in measure(lambda name, error: failed.append(name))}
assert "cpu" in failed, failed
assert "system.cpu.time" not in names
assert "system.cpu.load_average.1m" in names, "it is no file of /proc"
"""


def without_disks(failed: Failed) -> Iterator[Point]:
    """What this host has, as if its disks could not be read."""
    failed("disk", PermissionError("not for you"))
    yield from measure(failed)


async def test_figures_that_cannot_be_read_are_counted_and_named_once(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with spooling(tmp_path, "host") as spool_writer:
            source = HostMetricsSource(
                0.1, {"service.name": "s"}, spool_writer=spool_writer, measure=without_disks
            )
            await source.start()
            running = asyncio.ensure_future(source.run())
            await wait_until_async(lambda: spool_writer.account.notes["figures_missing"] >= 2)
            await source.stop()
            await running
            lines = spool_writer.lines()
    assert all(isinstance(check_line(line), Accepted) for line in lines)
    names = {json.loads(line)["name"] for line in lines}
    assert {"system.cpu.time", "system.memory.usage", "system.cpu.load_average.1m"} <= names
    named = [one for one in logs if one["event"] == "figures_missing" and one["group"] == "disk"]
    assert [one["error"] for one in named] == ["not for you"]


def test_a_group_that_fails_costs_no_other() -> None:
    command = [sys.executable, "-c", WITHOUT_PROC]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr
