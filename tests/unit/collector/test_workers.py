"""What several processes as one end with."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from penstock.collector.agent import workers
from penstock.collector.agent.worker_plan import Share
from penstock.collector.agent.workers import WorkerEndedError, Workers
from penstock.collector.config import CollectorConfig
from penstock.service import ExitCode


class FakeWorker:
    """The second ends by itself, and the first only when it is told to."""

    endpoint = None

    def __init__(self, share: Share, *_: Any) -> None:
        self.share = share
        self._stopped = asyncio.Event()

    async def run(self) -> int:
        if self.share.index == 1:
            return ExitCode.UNAVAILABLE
        await self._stopped.wait()
        return ExitCode.TEMPORARY

    def signal(self, number: signal.Signals) -> None:
        assert number is signal.SIGTERM
        self._stopped.set()

    def get(self, _: str) -> bytes | None:
        return None


async def test_the_exit_code_is_of_the_worker_that_ended_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service manager takes 75 of one that was then stopped for a success."""
    monkeypatch.setattr(workers, "Worker", FakeWorker)
    source = {"type": "syslog", "tcp": "127.0.0.1:5514", "udp": None}
    config = CollectorConfig.model_validate(
        {"data_dir": tmp_path, "admin": "127.0.0.1:0", "sources": [source]}
    )
    both = Workers(config, 2, {}, load=lambda _: config)
    with pytest.raises(WorkerEndedError, match="worker 1 ended with 69") as ended:
        await both.run(asyncio.Event())
    assert ended.value.exit_code is ExitCode.UNAVAILABLE
