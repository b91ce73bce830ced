"""What `/status` says when what is received cannot be carried on."""

import asyncio
import errno
import os
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from penstock.collector.agent import Agent
from penstock.collector.config import CollectorConfig
from penstock.collector.core.outage import Outage
from penstock.collector.journal import Entry
from penstock.collector.quarantine import Refusal
from penstock.collector.telemetry import Metrics
from penstock.logd.errors import LogdError
from penstock.logd.store import Checkpoint

NATS = (
    "NATS at nats://127.0.0.1:4222 cannot be reached since 2026-01-31T03:00:00Z; held in the spool"
)


def agent_of(directory: Path) -> Agent:
    source = {"type": "host_metrics"}
    quarantine = {"bytes_max": 1 << 20}
    config = CollectorConfig.model_validate(
        {"data_dir": directory, "sources": [source], "quarantine": quarantine}
    )
    agent = Agent(config, Path("collector.yaml"))
    agent._publisher._link._outage = Outage(1_769_828_400_000_000_000)
    agent._recover()
    return agent


def refusal(size: int) -> Refusal:
    return Refusal("spool", "app", 1, "no such field", os.urandom(size))


async def test_a_quarantine_that_cannot_be_written_is_told_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = agent_of(tmp_path)
    journal, quarantine = agent._directory.quarantine, agent._engine._quarantine
    failing = [True, False]
    write = journal._write

    def write_later(entries: list[Entry]) -> int:
        told.append(agent._describe().reasons)
        if failing.pop(0):
            raise LogdError("No space left on device")
        return write(entries)

    told: list[tuple[str, ...]] = []
    monkeypatch.setattr(journal, "_write", write_later)
    monkeypatch.setattr("penstock.collector.quarantine._RETRY_S", 0)
    commits = asyncio.ensure_future(journal.run())
    assert await quarantine.put([refusal(10)]) == 0
    commits.cancel()
    assert told == [(NATS,), (NATS, "quarantine: No space left on device")]
    assert agent._describe().reasons == (NATS,)
    await agent._engine.close()


async def test_a_quarantine_that_is_nearly_full_is_told_and_measured(tmp_path: Path) -> None:
    agent = agent_of(tmp_path)
    assert agent._engine._quarantine._offer(refusal(1_000_000)) is not None
    await agent._directory.quarantine.commit()
    status = agent._describe()
    assert status.reasons == (NATS, "quarantine is nearly full")
    registry = CollectorRegistry()
    Metrics(lambda: status, registry)
    used = registry.get_sample_value("penstock_collector_quarantine_bytes")
    assert used is not None
    assert used > 1_000_000
    assert registry.get_sample_value("penstock_collector_quarantine_max_bytes") == 1 << 20
    await agent._engine.close()


async def test_a_checkpoint_that_cannot_be_saved_is_told_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = agent_of(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    agent._saver._saved = {}
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "save", fail)
        assert not await agent._saver.save()
        reason = f"checkpoint cannot be written: [Errno 5] {os.strerror(errno.EIO)}"
        assert agent._describe().reasons == (NATS, reason)
    assert await agent._saver.save()
    assert agent._describe().reasons == (NATS,)
    await agent._engine.close()


async def test_a_quarantine_that_cannot_be_read_now_does_not_end_the_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = agent_of(tmp_path)

    async def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(agent._engine.replayer, "finish", fail)
    await agent._engine._finish_replay()
    await agent._engine.close()
