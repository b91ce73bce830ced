"""What a stop leaves to the next start: records that transforms hold, and a whole checkpoint."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.collector.agent.agent import Agent
from penstock.logd.storage import Checkpoint
from tests.support.collector import log_line
from tests.support.collector_agent import RunningAgent, TestLog, config_of, running
from tests.support.failing_disk import FailingDisk
from tests.support.waiting import wait_until_async

EVENT = orjson.dumps(
    {
        "schema": "event/1.0", "kind": "event", "time_unix_nano": 5, "event_name": "made",
        "record_id": f"{1:032x}",
        "resource": {"service.name": "shop"},
    }
)  # fmt: skip
HELD = {"type": "reduce", "inputs": ["app"], "key": "kind", "window_s": 600}


async def aggregated(collector: RunningAgent, number: int) -> None:
    """Return when transforms have taken so many records."""
    await collector.wait_for_status(
        lambda status: (
            status["info"]["reconciliation"].get("app", {}).get("aggregated", 0) == number
        )
    )


async def delivered(
    tmp_path: Path, *lines: bytes, failing: str, **keys: Any
) -> list[dict[str, Any]]:
    """Stop a collector that holds lines while a disk fails; return what both deliver."""
    disk, log = FailingDisk(), TestLog()
    keys = {"transforms": {"held": HELD}, "checkpoint_interval_s": 60, **keys}

    def agent(**more: Any) -> Agent:
        config = config_of(tmp_path, **keys, **more)
        return Agent(config, Path("collector.yaml"), disk=disk, make_publisher=log.publisher)

    with ExitStack() as failure:  # which outlasts the stop
        async with running(tmp_path, agent(), delivers=False) as collector:
            assert "ack" in await collector.send(*lines)
            await aggregated(collector, len(lines))
            failure.enter_context(disk.failing(under=tmp_path / "data" / failing))
    async with running(tmp_path, agent(drain_timeout_s=30)) as collector:
        await aggregated(collector, len(lines))
    return log.records


@pytest.mark.parametrize("failing", ["spool", "spool-urgent"])
async def test_records_that_go_into_both_spools_are_made_again_where_one_fails(
    tmp_path: Path, failing: str
) -> None:
    found = await delivered(tmp_path, log_line(1), EVENT, failing=failing)
    assert {record["kind"] for record in found} == {"event", "log"}


async def test_a_spool_that_is_half_full_holds_records_back_at_the_end(tmp_path: Path) -> None:
    """It needs no room any more, and only a kill may lose what transforms hold of it."""
    found = await delivered(
        tmp_path, *(log_line(number, filler=30_000) for number in range(20)), failing="spool",
        spool={"max_bytes": 1 << 20},
    )  # fmt: skip
    assert [record["body"][:8] for record in found] == ["number 0"]


async def test_a_checkpoint_that_is_being_written_is_not_written_over_by_the_last_one(
    tmp_path: Path,
) -> None:
    disk, log, stop = FailingDisk(), TestLog(), asyncio.Event()
    config = config_of(tmp_path, checkpoint_interval_s=0.05)
    agent = Agent(config, Path("collector.yaml"), disk=disk, make_publisher=log.publisher)
    collector = RunningAgent(tmp_path)
    task = asyncio.ensure_future(agent.run(stop))
    await wait_until_async((tmp_path / "app.sock").exists)
    assert "ack" in await collector.send(log_line(1))
    with disk.holds("write", name="checkpoint.tmp", once=True) as write:
        await collector.send(log_line(2))
        await wait_until_async(write.reached.is_set)
        await collector.send(log_line(3))
        await wait_until_async(lambda: len(log.records) == 3)
        stop.set()
        await asyncio.wait([task], timeout=0.5)
        write.go_on.set()
    await task
    await asyncio.get_running_loop().shutdown_default_executor()
    assert (Checkpoint(tmp_path / "data/checkpoint").load() or {})["cursor"] == 3
