"""Who may use a data directory when stopping did not go well."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import nats
import pytest

from penstock.base.errors import DrainCutShortError
from penstock.logd.config import LogdConfig
from penstock.logd.daemon import run_daemon
from penstock.logd.errors import RefusedError
from penstock.logd.storage import DirectoryLock
from tests.support.audited import audited
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.live


def make_config(directory: Path, nats_url: str, **options: Any) -> LogdConfig:
    return LogdConfig.model_validate(
        {
            "data_dir": directory,
            "nats": {"url": nats_url},
            "fetch": "127.0.0.1:0",
            "admin": "127.0.0.1:0",
            "streams": [{"name": "logs", "subject": "telemetry.logs.>"}],
        }
        | options
    )


async def run_and_stop(config: LogdConfig, nats_url: str) -> None:
    """Run logd until it has a record, so that its thread has something to write down at the end."""
    stop = asyncio.Event()
    running = asyncio.create_task(run_daemon(config, Path("logd.yaml"), stop))
    endpoints = config.data_dir / "endpoints.json"
    await wait_until_async(lambda: running.done() or endpoints.exists(), what="ready")
    async with await nats.connect(nats_url) as client:
        await client.jetstream().publish("telemetry.logs.a", b"one")
    stop.set()
    await running


async def test_a_stop_that_was_cut_short_keeps_others_out_while_a_thread_may_write(
    tmp_path: Path, nats_url: str
) -> None:
    config = make_config(tmp_path, nats_url, drain_timeout_s=0.2)
    ended = threading.Event()

    def finish_late(event: str, arguments: tuple[Any, ...]) -> None:
        """A stream's thread writes down what is remembered, and its disk is slow."""
        stopping = (tmp_path / "endpoints.json").exists()
        if stopping and event == "open" and str(arguments[0]).endswith("/producers.tmp"):
            ended.wait()

    with audited(finish_late):
        try:
            with pytest.raises(DrainCutShortError, match="still writing: logs"):
                await run_and_stop(config, nats_url)
            with pytest.raises(RefusedError, match="in use by process"):
                DirectoryLock(tmp_path)
        finally:
            ended.set()


async def test_a_stop_that_went_well_lets_others_in(tmp_path: Path, nats_url: str) -> None:
    await run_and_stop(make_config(tmp_path, nats_url), nats_url)
    with DirectoryLock(tmp_path):
        pass
