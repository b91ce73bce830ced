"""What the status says when what is received cannot be carried on."""

import errno
import json
import os
import urllib.request
from asyncio import to_thread, wrap_future
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from penstock.collector.agent.agent import Agent
from penstock.collector.delivery.core import Refused
from tests.support.collector import log_line
from tests.support.collector_agent import RunningAgent, TestLog, config_of, running
from tests.support.failing_disk import FailingDisk
from tests.support.waiting import wait_until_async

CONFIG = Path("collector.yaml")


async def wait_for_quarantined(collector: RunningAgent, count: int) -> None:
    """Return when so many records of the source are in quarantine."""

    def are_there(status: dict[str, Any]) -> bool:
        accounts = status["info"]["reconciliation"]
        return bool(accounts) and accounts["app"]["quarantined"] == count

    await collector.wait_for_status(are_there)


async def test_a_quarantine_that_cannot_be_written_is_told_until_it_can(tmp_path: Path) -> None:
    disk, log = FailingDisk(), TestLog()
    log.answer = lambda effect: Refused(effect.request, "bad_batch: no such field")
    agent = Agent(config_of(tmp_path), CONFIG, disk=disk, make_publisher=log.publisher)
    async with running(tmp_path, agent) as collector:
        with disk.failing(errno.ENOSPC, under=tmp_path / "data/quarantine"):
            await collector.send(log_line(1))
            status = await collector.wait_for_status(lambda status: bool(status["reasons"]))
            (reason,) = status["reasons"]
            assert (status["health"], reason.partition(":")[0]) == ("degraded", "quarantine")
            assert "No space left on device" in reason
        await collector.wait_for_reasons()
        (kept, _) = await collector.ask("quarantine")
        assert kept["kept"]["reason"] == "bad_batch: no such field"


async def test_a_quarantine_that_is_nearly_full_is_told_and_measured(tmp_path: Path) -> None:
    config = config_of(tmp_path, quarantine={"max_bytes": 1 << 20})
    agent = Agent(config, CONFIG, make_publisher=TestLog().publisher)
    async with running(tmp_path, agent) as collector:
        await collector.send(*(os.urandom(200_000).replace(b"\n", b"") for _ in range(5)))
        await collector.wait_for_reasons("quarantine is nearly full")
        metrics = await to_thread(read, f"http://{collector.endpoints['admin']}/metrics")
        assert float(metrics["penstock_collector_quarantine_bytes"]) > 990_000
        assert float(metrics["penstock_collector_quarantine_max_bytes"]) == 1 << 20


def read(url: str) -> dict[str, str]:
    with urllib.request.urlopen(url, timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


async def test_a_checkpoint_that_cannot_be_saved_is_told_until_it_can(tmp_path: Path) -> None:
    disk = FailingDisk()
    config = config_of(tmp_path, checkpoint_interval_s=0.05)
    agent = Agent(config, CONFIG, disk=disk, make_publisher=TestLog().publisher)
    async with running(tmp_path, agent) as collector:
        checkpoint = tmp_path / "data/checkpoint.tmp"
        with disk.failing(under=checkpoint):
            await collector.send(log_line(1))
            error = f"[Errno 5] {os.strerror(errno.EIO)}: '{checkpoint}'"
            await collector.wait_for_reasons(f"checkpoint cannot be written: {error}")
        await collector.wait_for_reasons()


async def test_reasons_stand_beside_one_another(tmp_path: Path) -> None:
    """Nobody answers at the address of NATS."""
    disk = FailingDisk()
    agent = Agent(config_of(tmp_path, checkpoint_interval_s=0.05), CONFIG, disk=disk)
    nats = "NATS at nats://127.0.0.1:1 cannot be reached since "
    reasons = (nats, "telemetry.logs.shop cannot be delivered: ", "checkpoint cannot be written: ")

    def are_told(status: dict[str, Any], count: int) -> bool:
        told = status["reasons"]
        starts = zip(told, reasons[:count], strict=False)
        return len(told) == count and all(one.startswith(start) for one, start in starts)

    async with running(tmp_path, agent, delivers=False) as collector:
        await collector.wait_for_status(lambda status: are_told(status, 1))
        with disk.failing(under=tmp_path / "data/checkpoint.tmp"):
            await collector.send(log_line(1))
            await collector.wait_for_status(lambda status: are_told(status, 3))


async def test_a_quarantine_that_cannot_be_read_now_does_not_end_the_collector(
    tmp_path: Path,
) -> None:
    """A replay was marked and not finished, and a bad sector is in the record that it is of."""
    disk, log = FailingDisk(), TestLog()
    log.answer = lambda effect: Refused(effect.request, "bad_batch: no such field")
    agent = Agent(config_of(tmp_path), CONFIG, disk=disk, make_publisher=log.publisher)
    async with running(tmp_path, agent) as collector:
        await collector.send(log_line(1, noise=os.urandom(10_000).hex()))
        await wait_for_quarantined(collector, 1)
        with disk.failing(under=tmp_path / "data/spool"):
            (outcome,) = await collector.ask("replay")
            assert (outcome["replayed"], outcome["stopped"] != "") == (0, True)
    disk, log = FailingDisk(), TestLog()
    agent = Agent(config_of(tmp_path), CONFIG, disk=disk, make_publisher=log.publisher)
    disk.bad[f"{0:020d}.log"] = range(10_000, 10_001)
    with capture_logs() as logs:
        async with running(tmp_path, agent) as collector:
            unfinished = "replay_unfinished"
            await wait_until_async(lambda: unfinished in [one["event"] for one in logs])
            await collector.send(log_line(2))
            await wait_until_async(lambda: len(log.records) == 1)
            disk.bad.clear()
            assert (await collector.ask("replay"))[0]["stopped"] == ""
            await wait_until_async(lambda: len(log.records) == 2)


async def test_a_collector_that_is_too_busy_says_how_old_its_figures_are(tmp_path: Path) -> None:
    """The last ones are better than none, but others must not take them for those of now."""
    agent = Agent(config_of(tmp_path), CONFIG, make_publisher=TestLog().publisher)
    async with running(tmp_path, agent) as collector:
        with ThreadPoolExecutor(1) as pool:
            url = f"http://{collector.endpoints['admin']}/status"
            assert "age_ms" not in (await wrap_future(pool.submit(status_at, url)))["info"]
            busy = pool.submit(status_at, url).result()  # the event loop waits for it
            assert busy["info"]["age_ms"] > 0
            assert busy["health"] == "ready"


def status_at(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=20) as answer:
        status: dict[str, Any] = json.load(answer)
    return status
