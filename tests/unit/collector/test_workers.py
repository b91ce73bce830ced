"""Several processes as one: what they end with, and a restart of one by another configuration."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.collector.agent import workers
from penstock.collector.agent.worker_plan import Share
from penstock.collector.agent.workers import Revision, Worker, WorkerEndedError, Workers
from penstock.collector.config import CollectorConfig
from penstock.service import ExitCode, UnavailableError
from tests.support.waiting import wait_until_async


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
    # Which of two processes ends first is the scheduler's choice, and this test's subject.
    monkeypatch.setattr(workers, "Worker", FakeWorker)
    source = {"type": "syslog", "tcp": "127.0.0.1:5514", "udp": None}
    config = CollectorConfig.model_validate(
        {"data_dir": tmp_path, "admin": "127.0.0.1:0", "sources": [source]}
    )
    both = Workers(config, 2, {}, load=lambda _: config)
    with pytest.raises(WorkerEndedError, match="worker 1 ended with 69") as ended:
        await both.run(asyncio.Event())
    assert ended.value.exit_code is ExitCode.UNAVAILABLE


PROGRAM = """
import json, os, signal, sys, threading
from pathlib import Path

os.lseek(int(sys.argv[sys.argv.index("--inherited") + 1]), 0, 0)
(text,) = json.load(open(int(sys.argv[-1]))).values()
directory = Path(sys.argv[1])
with (directory / "log").open("a") as log:
    print("began", text, file=log)
stop = threading.Event()
if text == "does not end":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
if text == "cannot start":
    sys.exit(78)
if text != "is never ready":
    (directory / "endpoints.new").write_text(json.dumps({"admin": "127.0.0.1:1"}))
    (directory / "endpoints.new").rename(directory / "endpoints.json")
while not stop.wait(60):
    pass
(directory / "endpoints.json").unlink(missing_ok=True)
with (directory / "log").open("a") as log:
    print("drained", text, file=log)
"""


class Place:
    """A data directory, a worker whose program notes what it does, and the worker's task."""

    def __init__(self, tmp_path: Path, *, index: int = 0, **options: float) -> None:
        self.path = tmp_path
        self.config = CollectorConfig.model_validate(
            {
                "data_dir": tmp_path,
                "drain_timeout_s": 0,
                "sources": [{"type": "syslog", "tcp": "127.0.0.1:5514", "udp": None}],
            }
        )
        program = (sys.executable, "-c", PROGRAM, str(tmp_path))
        share = Share(index, 1)
        if index:
            tmp_path = tmp_path / "workers" / str(index)
            tmp_path.mkdir(parents=True)
            program = (*program[:-1], str(tmp_path))
        self.log_path = tmp_path / "log"
        self.worker = Worker(share, self.revision("first"), program=program, **options)

    def revision(self, text: str) -> Revision:
        return Revision({Path("c.yaml"): text}, self.config, "")

    @property
    def log(self) -> list[str]:
        return self.log_path.read_text().splitlines()


@asynccontextmanager
async def running(place: Place) -> AsyncIterator[asyncio.Task[int]]:
    async with asyncio.timeout(60):
        task = asyncio.create_task(place.worker.run())
        await wait_until_async(lambda: place.worker.endpoint is not None)
        yield task
        place.worker.signal(signal.SIGTERM)
        await task


async def test_a_worker_drains_before_it_is_started_by_another_configuration(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path)
    async with running(place) as task:
        await place.worker.restart(place.revision("second"))
        assert place.worker.endpoint is not None
        assert place.log == ["began first", "drained first", "began second"]
    assert task.result() == 0
    assert place.log[-1] == "drained second"


async def test_a_worker_that_cannot_start_by_it_goes_back(tmp_path: Path) -> None:
    place = Place(tmp_path)
    async with running(place):
        with pytest.raises(WorkerEndedError, match="worker 0 ended with 78 with the conf") as ended:
            await place.worker.restart(place.revision("cannot start"))
        assert ended.value.exit_code is ExitCode.CONFIG
        await wait_until_async(lambda: place.worker.endpoint is not None)
        assert place.log[2:] == ["began cannot start", "began first"]
        await place.worker.restart(place.revision("third"))
        assert place.log[-2:] == ["drained first", "began third"]


async def test_a_worker_that_is_not_ready_in_time_goes_back(tmp_path: Path) -> None:
    place = Place(tmp_path, start_s=0.5)
    async with running(place):
        with pytest.raises(UnavailableError, match=r"was not ready within 0\.5 s"):
            await place.worker.restart(place.revision("is never ready"))
        await wait_until_async(lambda: place.worker.endpoint is not None)
        assert place.log[-1] == "began first"


async def test_a_worker_that_does_not_end_is_killed(tmp_path: Path) -> None:
    place = Place(tmp_path, stop_s=0.5)
    async with running(place):
        await place.worker.restart(place.revision("does not end"))
        await place.worker.restart(place.revision("third"))
        assert place.log[-2:] == ["began does not end", "began third"]


async def test_a_worker_that_only_drains_and_is_done_needs_no_restart(tmp_path: Path) -> None:
    place = Place(tmp_path, index=1)
    async with running(place) as task:
        await place.worker.restart(place.revision("second"))
        assert await task == 0
        await place.worker.restart(place.revision("third"))
        assert place.log == ["began first", "drained first"]


async def test_a_restart_of_a_collector_that_is_being_stopped_ends(tmp_path: Path) -> None:
    place = Place(tmp_path, start_s=60)
    async with running(place):
        restart = asyncio.create_task(place.worker.restart(place.revision("is never ready")))
        await wait_until_async(lambda: place.log[-1] == "began is never ready")
        place.worker.signal(signal.SIGTERM)
        with pytest.raises(UnavailableError, match="is being stopped"):
            await restart
