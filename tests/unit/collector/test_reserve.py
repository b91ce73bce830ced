"""Room on the disk that is kept for the checkpoint."""

import asyncio
import errno
from contextlib import nullcontext as does_not_raise
from pathlib import Path
from typing import Any

import pytest

from penstock.collector.agent.agent import Agent
from penstock.collector.checkpoint.checkpointer import NAME, Reserve
from penstock.logd.storage import Checkpoint
from tests.support.collector import log_line
from tests.support.collector_agent import RunningAgent, TestLog, config_of, running
from tests.support.failing_disk import FailingDisk
from tests.support.waiting import wait_until_async


def test_it_is_as_large_as_some_checkpoints_and_grows_with_them(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.write_bytes(b"x")
    reserve = Reserve(tmp_path, checkpoint)
    reserve.make()
    assert (tmp_path / NAME).stat().st_size == 256 * 1024
    assert (tmp_path / NAME).stat().st_blocks * 512 >= 256 * 1024
    checkpoint.write_bytes(b"x" * 100_000)
    reserve.make()
    assert (tmp_path / NAME).stat().st_size == 400_000
    reserve.give()
    assert not (tmp_path / NAME).exists()
    reserve.give()
    reserve.make()
    assert (tmp_path / NAME).stat().st_size == 400_000


def test_what_was_there_before_is_used(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(b"x")
    for _ in range(2):
        Reserve(tmp_path, tmp_path / "checkpoint").make()
    assert (tmp_path / NAME).stat().st_size == 256 * 1024


def test_a_disk_without_room_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(b"x")
    (tmp_path / NAME).mkdir()
    with does_not_raise():
        Reserve(tmp_path, tmp_path / "checkpoint").make()


CHECKPOINT = "data/checkpoint.tmp"
"""What is written in place of the checkpoint."""


def agent_of(tmp_path: Path, disk: FailingDisk, **keys: Any) -> Agent:
    config = config_of(tmp_path, checkpoint_interval_s=0.05, **keys)
    return Agent(config, Path("collector.yaml"), disk=disk, make_publisher=TestLog().publisher)


def saved(tmp_path: Path) -> int:
    """Units of the spool that the checkpoint says are done."""
    document = Checkpoint(tmp_path / "data/checkpoint").load() or {}
    return int(document["cursor"])


async def test_a_checkpoint_on_a_full_disk_takes_the_room_that_is_kept(tmp_path: Path) -> None:
    """No checkpoint can be written as long as the room that is kept is."""
    disk, reserve = FailingDisk(), tmp_path / "data" / NAME
    agent = agent_of(tmp_path, disk)
    async with running(tmp_path, agent) as collector:
        await wait_until_async(reserve.exists)
        with disk.failing(errno.ENOSPC, under=tmp_path / CHECKPOINT, when=reserve.exists):
            for number in (1, 2):  # and again, for the room is taken once more
                await collector.send(log_line(number))
                await wait_until_async(lambda done=number: saved(tmp_path) == done)  # type: ignore[misc]
                await wait_until_async(reserve.exists)
        await collector.wait_for_reasons()


async def test_records_wait_while_the_room_that_is_kept_is_given_to_the_checkpoint(
    tmp_path: Path,
) -> None:
    disk, reserve = FailingDisk(), tmp_path / "data" / NAME
    async with running(tmp_path, agent_of(tmp_path, disk)) as collector:
        await collector.send(log_line(1))
        with disk.holds("sync", name="checkpoint.tmp") as held:
            with disk.failing(errno.ENOSPC, under=tmp_path / CHECKPOINT, when=reserve.exists):
                await wait_until_async(held.reached.is_set)
                assert not reserve.exists()
                sending = asyncio.ensure_future(collector.send(log_line(2)))
                await asyncio.wait([sending], timeout=0.2)
                assert not sending.done()
            held.go_on.set()
            assert "ack" in await sending


HELD = {"type": "reduce", "inputs": ["app"], "key": "resource.service.name", "window_s": 600}


@pytest.mark.parametrize("keys", [{}, {"transforms": {"held": HELD}}], ids=["delivered", "held"])
async def test_a_spool_that_waits_for_nothing_takes_it_to_free_its_only_segment(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    """The checkpoint is as it will be: nothing comes in as long as no room is made.

    What transforms hold of it is held back no more, since what they make needs that room.
    """
    disk, reserve, spool = FailingDisk(), tmp_path / "data" / NAME, tmp_path / "data/spool"
    async with running(tmp_path, agent_of(tmp_path, disk, **keys)) as collector:
        await collector.send(log_line(1))
        ended = "aggregated" if keys else "delivered"
        await collector.wait_for_status(
            lambda status: status["info"]["reconciliation"]["app"][ended] == 1
        )
        await wait_until_async(lambda: saved(tmp_path) == (0 if keys else 1))
        (first,) = spool.glob("*.log")
        with disk.failing(errno.ENOSPC, under=spool, when=reserve.exists):
            assert (await collector.send(log_line(2)))["reason"] == "spool_failed"
            await wait_until_async(lambda: not first.exists())
            await wait_until_async(reserve.exists)
        assert "ack" in await collector.send(log_line(2))
        await collector.wait_for_reasons()


async def test_a_disk_that_fails_otherwise_is_told_and_the_room_kept(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with running(tmp_path, agent_of(tmp_path, disk)) as collector:
        with disk.failing(under=tmp_path / CHECKPOINT):
            await collector.send(log_line(1))
            status = await collector.wait_for_status(lambda status: bool(status["reasons"]))
            assert "Input/output error" in status["reasons"][0]
            assert (tmp_path / "data" / NAME).exists()
        await collector.wait_for_reasons()


async def test_the_first_checkpoint_of_a_start_takes_it_too(tmp_path: Path) -> None:
    async with running(tmp_path, agent_of(tmp_path, FailingDisk())):
        pass
    disk, reserve = FailingDisk(), tmp_path / "data" / NAME
    assert reserve.exists()
    agent = agent_of(tmp_path, disk)
    with disk.failing(errno.ENOSPC, under=tmp_path / CHECKPOINT, when=reserve.exists):
        async with running(tmp_path, agent) as collector:
            await collector.wait_for_reasons()


async def test_a_start_goes_on_where_its_addresses_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "data/endpoints.new").mkdir(parents=True)
    agent = agent_of(tmp_path, FailingDisk())
    stop = asyncio.Event()
    task = asyncio.ensure_future(agent.run(stop))
    await wait_until_async((tmp_path / "app.sock").exists)
    assert "ack" in await RunningAgent(tmp_path).send(log_line(1))
    stop.set()
    await task
