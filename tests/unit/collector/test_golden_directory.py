"""A data directory that the collector of release 0.1.0 left when it was killed: it opens as it is.

Half of it was delivered. A record of each source waited behind a subject that nobody took, and a
record was in quarantine. The bytes in `tests/golden/collector/data-1` are never edited.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.collector.agent.agent import Agent
from penstock.logd.storage import Checkpoint
from tests.support.collector_agent import RunningAgent, TestLog, config_of, running
from tests.support.waiting import wait_until_async

GOLDEN: Final = Path(__file__).parents[2] / "golden" / "collector" / "data-1"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return shutil.copytree(GOLDEN, tmp_path / "data")


@asynccontextmanager
async def upgraded(tmp_path: Path, log: TestLog, **keys: Any) -> AsyncIterator[RunningAgent]:
    source = {"type": "unix", "name": "unix", "path": str(tmp_path / "app.sock")}
    config = config_of(tmp_path, sources=[source], drain_timeout_s=5, **keys)
    agent = Agent(config, Path("collector.yaml"), make_publisher=log.publisher)
    async with running(tmp_path, agent) as collector:
        yield collector


async def test_what_waits_in_the_spool_is_delivered_and_nothing_is_lost(
    tmp_path: Path, data_dir: Path
) -> None:
    before = Checkpoint(data_dir / "checkpoint").load() or {}
    log = TestLog()
    async with upgraded(tmp_path, log):
        await wait_until_async(
            lambda: "number 71" in [record.get("body") for record in log.records]
        )
    bodies = [record["body"] for record in log.records]
    assert {"number 1", "number 11", "number 20", "number 71"} <= {*bodies}
    after = Checkpoint(data_dir / "checkpoint").load() or {}
    assert {"rules", "since"} <= before.keys()
    assert not {"rules", "since"} & after.keys()
    assert after["incarnation"] != before["incarnation"], "what may go elsewhere begins again"
    assert after["quarantine"] == before["quarantine"]
    assert after["files"] == before["files"], "positions of files that are not there are kept"
    assert after["cursor"] > before["cursor"]
    assert after["senders"] == before["senders"]


async def test_what_is_in_quarantine_is_shown(tmp_path: Path, data_dir: Path) -> None:
    del data_dir
    async with upgraded(tmp_path, TestLog()) as collector:
        *kept, last = await collector.ask("quarantine")
    assert last["ok"]
    assert [(line["kept"]["source"], line["kept"]["replayed"]) for line in kept] == [
        ("unix", False)
    ]
