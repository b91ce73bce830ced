"""Records of tens of megabytes, which a logd may be configured to take, in several sinks."""

import asyncio
import base64
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import nats
import pytest

from tests.support.logd import Logd
from tests.support.nats_server import nats_server
from tests.support.router import RouterJob, log_line, read_lake
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

MB: Final = 1_000_000
SINKS: Final = ("one", "two", "three")
STREAM: Final = {
    "name": "logs",
    "subject": "telemetry.logs.>",
    "max_message_bytes": 32 * 1024 * 1024,
}

_DICE: Final = random.Random(30)


@pytest.fixture
def nats_url(tmp_path: Path) -> Iterator[str]:
    """Of a server that lets such records pass."""
    config = tmp_path / "nats.conf"
    config.write_text("max_payload: 67108864\nmax_pending: 268435456\n")
    with nats_server(tmp_path / "nats", config=config) as server:
        yield server.url


@pytest.fixture
def logd(tmp_path: Path, nats_url: str) -> Iterator[Logd]:
    with Logd(tmp_path / "logd", nats_url, [STREAM]) as running:
        yield running


def line(number: int, size: int) -> bytes:
    """A record of about so many bytes that hardly gets smaller."""
    record = json.loads(log_line(number))
    record["body"] = base64.b64encode(_DICE.randbytes(size * 3 // 4)).decode()
    return json.dumps(record).encode()


def store(nats_url: str, lines: Sequence[bytes]) -> None:
    async def publish() -> None:
        client = await nats.connect(nats_url)
        for value in lines:
            answer = await client.request("telemetry.logs.x", value, timeout=60)
            assert b'"offset"' in answer.data, answer.data
        await client.close()

    asyncio.run(publish())


def job_of(directory: Path, logd: Logd, **keys: Any) -> RouterJob:
    sinks = {name: {"type": "parquet", "path": str(directory / name)} for name in SINKS}
    routes = [{"name": "everything", "sinks": list(SINKS)}]
    return RouterJob(directory, logd.fetch, streams=["logs"], routes=routes, sinks=sinks, **keys)


def catch_up(job: RouterJob) -> None:
    try:
        job.daemon.start("--until-caught-up", within_s=120)
        assert job.daemon.wait(within_s=400) == 0, job.daemon.log()[-3000:]
    finally:
        job.daemon.close()


def stored(directory: Path, sink: str) -> list[bytes]:
    values: list[bytes] = read_lake(directory / sink)["value"].to_pylist()
    return values


def test_records_of_16_and_30_mb_among_small_ones_arrive_once_in_each_of_three_sinks(
    tmp_path: Path, nats_url: str, logd: Logd
) -> None:
    """With the default heap, of which one of them takes more than a half."""
    small = [log_line(number) for number in range(400)]
    large = [line(1, 16 * MB), line(2, 30 * MB), line(3, 30 * MB)]
    lines = [*small[:200], *large, *small[200:]]  # nobody looks there before a batch is read
    store(nats_url, lines)
    directory = tmp_path / "router"
    job = job_of(directory, logd)
    catch_up(job)
    for sink in SINKS:
        assert stored(directory, sink) == lines, sink
    assert "batch_replanned" in job.daemon.log()


def test_a_heap_that_is_too_small_is_reported_once_and_with_more_of_it_the_job_goes_on(
    tmp_path: Path, nats_url: str, logd: Logd
) -> None:
    lines = [log_line(0), line(1, 31 * MB), log_line(2)]
    store(nats_url, lines)
    directory = tmp_path / "router"
    job = job_of(directory, logd, spark={"driver_memory": "480m"})

    def problems() -> list[str]:
        sinks = job.daemon.status()["info"]["sinks"].values()
        return [str(sink["problem"]) for sink in sinks]

    def restarts() -> int:
        sinks = job.daemon.status()["info"]["sinks"].values()
        return min(int(sink["restarts"]) for sink in sinks)

    try:
        job.daemon.start(within_s=120)
        wait_until(lambda: all("offset 1 " in it for it in problems()), within_s=120)
        assert "raise it to at least 512m" in problems()[0]
        assert job.daemon.status()["health"] == "degraded"
        wait_until(lambda: restarts() >= 3, within_s=120)  # it looks again, and does not die
        assert job.committed() == {"logs": 1}
        assert job.daemon.stop() == 0, job.daemon.log()[-3000:]
    finally:
        job.daemon.close()
    said = [it for it in job.daemon.log().splitlines() if '"query_failed"' in it]
    assert len(said) == len(SINKS), said
    catch_up(job_of(directory, logd, spark={"driver_memory": "640m"}))
    for sink in SINKS:
        assert stored(directory, sink) == lines, sink
