"""A reload of a running collector: what runs then, and what can no longer refuse it."""

import asyncio
import gc
import os
import signal
import threading
from pathlib import Path
from typing import Any

from nats.errors import ConnectionClosedError

from penstock.collector.agent.agent import Agent
from penstock.collector.config import CollectorConfig
from penstock.logd.storage import Checkpoint
from tests.support.collector import log_line
from tests.support.collector_agent import RunningAgent, TestLog, config_of, running
from tests.support.failing_disk import FailingDisk
from tests.support.waiting import wait_until_async

CONFIG = Path("collector.yaml")


def agent_of(
    before: CollectorConfig, after: CollectorConfig | None = None, **options: Any
) -> tuple[Agent, TestLog]:
    """An agent whose file says something else when it is read again, and its log."""
    log = TestLog()

    def load() -> CollectorConfig:
        return after or before

    given = {"load": load, "make_publisher": log.publisher, **options}
    return Agent(before, CONFIG, **given), log


async def delivered(collector: RunningAgent, log: TestLog, number: int) -> dict[str, Any]:
    """Send a record; returns it as it was published."""
    before = len(log.records)
    assert "ack" in await collector.send(log_line(number))
    await wait_until_async(lambda: len(log.records) > before)
    return log.records[-1]


async def test_what_runs_is_not_refused_because_a_file_for_people_cannot_be_written(
    tmp_path: Path,
) -> None:
    after = config_of(tmp_path, resource={"service.name": "other"})
    agent, _ = agent_of(config_of(tmp_path), after)
    async with running(tmp_path, agent) as collector:
        (tmp_path / "data/endpoints.new").mkdir()  # as on a full disk, no file can be written there
        report = await collector.reload()
        assert (report["result"], report["error"], report["generation"]) == ("applied", "", 2)
        assert (await collector.reload())["result"] == "unchanged"


async def test_a_table_that_was_written_anew_is_read_at_a_reload(tmp_path: Path) -> None:
    """The configuration says the same, and its file of owners something else."""
    table = tmp_path / "owners.csv"
    table.write_text("service,owner\nshop,ann\n")
    tables = [{"key": 'resource["service.name"]', "file": table, "column": "service"}]
    transforms = {"own": {"type": "enrich", "inputs": ["app"], "tables": tables}}
    config = config_of(tmp_path, transforms=transforms)
    agent, log = agent_of(config)
    async with running(tmp_path, agent) as collector:

        async def owner(number: int) -> str:
            return str((await delivered(collector, log, number))["attributes"]["owner"])

        assert (await collector.reload())["result"] == "unchanged"
        assert await owner(1) == "ann"
        table.write_text("service,owner\nshop,bob\n")
        report = await collector.reload()
        assert (report["result"], report["keys"]) == ("applied", ["transforms"])
        assert await owner(2) == "bob"
        table.write_text("service,owner\nshop,cid\nshop,dan\n")
        assert "repeats the service" in (await collector.reload())["error"]
        assert await owner(3) == "bob"


async def test_a_hash_key_in_a_file_is_read_at_a_reload(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("k1:0123456789abcdef\n")
    config = config_of(tmp_path, sensitive={"hash_key": {"file": str(file)}})
    agent, _ = agent_of(config)
    async with running(tmp_path, agent) as collector:
        assert (await collector.reload())["result"] == "unchanged"
        file.write_text("k2:0123456789abcdef\n")
        report = await collector.reload()
        assert (report["result"], report["keys"]) == ("applied", ["sensitive"])
        file.write_text("k2:short\n")
        refused = await collector.reload()
        assert "sensitive.hash_key" in refused["error"]
        assert str(file) in refused["error"]


def owners_in_memory() -> set[str]:
    """The owners of all tables that there are."""
    gc.collect()
    rows = (one for one in gc.get_objects() if isinstance(one, dict) and "a shop" in one)
    return {row["owner"] for one in rows if isinstance(row := one["a shop"], dict)}


async def test_old_tables_are_not_held(tmp_path: Path) -> None:
    """They may have 100,000 rows each."""
    table = tmp_path / "owners.csv"
    table.write_text("service,owner\na shop,0\n")
    tables = [{"key": "body", "file": table, "column": "service"}]
    transforms = {"own": {"type": "enrich", "inputs": ["app"], "tables": tables}}
    agent, _ = agent_of(config_of(tmp_path, transforms=transforms))
    async with running(tmp_path, agent) as collector:
        assert owners_in_memory() == {"0"}
        table.write_text("service,owner\na shop,1\n")
        assert (await collector.reload())["result"] == "applied"
        await wait_until_async(lambda: owners_in_memory() == {"1"})


async def test_signals_that_come_again_before_the_file_is_read_are_one_reload(
    tmp_path: Path,
) -> None:
    """A storm of them must not be worked off one by one: a stop would wait behind it."""
    configs = [config_of(tmp_path, resource={"n": str(number)}) for number in range(60)]
    reads, may_read = 0, threading.Event()

    def load() -> CollectorConfig:
        nonlocal reads
        reads += 1
        assert may_read.wait(20)
        return configs[reads]

    async def hang_up() -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        for _ in range(3):  # the loop hears of each
            await asyncio.sleep(0)

    agent, _ = agent_of(configs[0], load=load)
    async with running(tmp_path, agent) as collector:
        await hang_up()
        await wait_until_async(lambda: reads == 1)  # and is being worked at
        for _ in range(50):
            await hang_up()
        may_read.set()
        await collector.wait_for_status(lambda status: reloads(status) == {"applied": 2})
        assert reads == 2
        await hang_up()
        await collector.wait_for_status(lambda status: reloads(status) == {"applied": 3})
        assert reads == 3


def reloads(status: dict[str, Any]) -> dict[str, int]:
    counts: dict[str, int] = status["info"]["reloads"]["counts"]
    return counts


async def test_a_worker_does_not_reload_by_itself(tmp_path: Path) -> None:
    agent, _ = agent_of(config_of(tmp_path), load=None)
    async with running(tmp_path, agent) as collector:
        report = await collector.reload()
        assert report["result"] == "refused"
        assert "reload the collector that it is a worker of" in report["error"]


async def test_what_runs_is_not_refused_because_the_connection_before_cannot_be_left(
    tmp_path: Path,
) -> None:
    after = config_of(tmp_path, nats={"url": "nats://127.0.0.1:2"})
    agent, log = agent_of(config_of(tmp_path), after)
    log.leave_error = ConnectionClosedError()
    async with running(tmp_path, agent) as collector:
        report = await collector.reload()
        assert (report["result"], report["error"], report["keys"]) == ("applied", "", ["nats"])
        await delivered(collector, log, 1)


async def test_where_records_go_does_not_change_before_the_checkpoint_says_so(
    tmp_path: Path,
) -> None:
    keys: dict[str, Any] = {"checkpoint_interval_s": 60}
    after = config_of(tmp_path, subject_prefix="elsewhere", **keys)
    disk, checkpoint = FailingDisk(), tmp_path / "data/checkpoint"
    agent, log = agent_of(config_of(tmp_path, **keys), after, disk=disk)
    async with running(tmp_path, agent) as collector:
        with disk.failing(under=tmp_path / "data/checkpoint.tmp"):
            refused = await collector.reload()
        assert (refused["result"], refused["generation"]) == ("refused", 1)
        assert "the checkpoint cannot be written" in refused["error"]
        await delivered(collector, log, 1)
        assert (await collector.reload())["result"] == "applied"
        await delivered(collector, log, 2)
        assert log.subjects == ["telemetry.logs.shop", "elsewhere.logs.shop"]
        document = Checkpoint(checkpoint).load() or {}
        assert document["routing"] == "", "a start reads again what was read before the reload"
    assert (Checkpoint(checkpoint).load() or {})["routing"], "what was read before it is done"
