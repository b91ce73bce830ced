"""Batches of large records: bounded before they are planned, and a way out of one that was."""

import base64
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable

from tests.support.http_sink import HttpDestination
from tests.support.logd import Logd
from tests.support.router import STREAMS, RouterJob, log_line, publish
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

LARGE: Final = 2400
"""Records, together more than four times the bytes of a batch; at once they end a JVM of 640 MB."""

_DICE: Final = random.Random(5)


@pytest.fixture
def logd(tmp_path: Path, nats_url: str) -> Iterator[Logd]:
    with Logd(tmp_path / "logd", nats_url, STREAMS) as running:
        yield running


def large_line(number: int) -> bytes:
    """A record of 60 KB that hardly gets smaller."""
    record = json.loads(log_line(number))
    record["body"] = base64.b64encode(_DICE.randbytes(45_000)).decode()
    return json.dumps(record).encode()


def test_a_router_that_was_away_takes_large_records_in_batches_that_it_can_hold(
    tmp_path: Path, nats_url: str, logd: Logd
) -> None:
    lines = [large_line(number) for number in range(LARGE)]
    publish(nats_url, "telemetry.logs.x", lines, records=12)
    job = RouterJob(tmp_path / "router", logd.fetch)
    catch_up(job)
    assert job.rows()["value"].to_pylist() == lines
    sizes = [path.stat().st_size for path in job.lake.rglob("*.parquet")]
    assert len(sizes) > 4, sizes


def test_a_batch_that_is_too_large_and_begun_is_planned_again_by_hand(
    tmp_path: Path, nats_url: str, logd: Logd
) -> None:
    """As docs/howto/size-it.md says, for a sink whose batches the driver writes."""
    lines = [large_line(number) for number in range(600)]
    publish(nats_url, "telemetry.logs.x", lines, records=12)
    spark = {"conf": {"spark.driver.maxResultSize": "20m"}}
    table = tmp_path / "router" / "table"
    sinks = {"lake": {"type": "delta", "table": str(table)}}
    job = RouterJob(tmp_path / "router", logd.fetch, spark=spark, sinks=sinks)

    def problem() -> str:
        return str(job.daemon.status()["info"]["sinks"]["lake"]["problem"])

    try:
        job.daemon.start(within_s=60)
        wait_until(lambda: "spark.driver.maxResultSize" in problem(), within_s=30)
        assert job.daemon.stop() == 0, job.daemon.log()[-3000:]
    finally:
        job.daemon.close()
    checkpoint = job.checkpoint_dir / "lake" / "spark"
    assert (checkpoint / "offsets" / "0").exists()
    assert not (checkpoint / "commits" / "0").exists()
    (checkpoint / "offsets" / "0").unlink()
    again = RouterJob(tmp_path / "router", logd.fetch, sinks=sinks, trigger={"max_records": 100})
    catch_up(again)
    found = DeltaTable(table).to_pyarrow_table(columns=["offset", "value"]).sort_by("offset")
    assert found["value"].to_pylist() == lines
    assert len(DeltaTable(table).file_uris()) == 6


def test_a_batch_that_is_planned_again_after_tasks_have_sent_makes_the_same_requests(
    tmp_path: Path, nats_url: str, logd: Logd
) -> None:
    """Large records in its middle end one of its tasks, and the next tasks are smaller."""
    small = [log_line(number) for number in range(3000)]
    large = [large_line(number) for number in range(300)]
    lines = [*small[:1500], *large, *small[1500:]]
    publish(nats_url, "telemetry.logs.x", lines, records=12)
    destination = HttpDestination()
    destination.open()
    sink = {"type": "http", "url": destination.url, "batch": {"max_records": 200}}
    job = RouterJob(
        tmp_path / "router",
        logd.fetch,
        source={"min_partitions": 3},
        routes=[{"name": "all", "sinks": ["hook"]}],
        sinks={"hook": sink},
    )
    try:
        catch_up(job)
    finally:
        destination.close()
    assert "batch_replanned" in job.daemon.log()
    assert len(destination.requests) > len(set(destination.requests)), "none came again"
    assert len(destination.records) == len(lines)


def catch_up(job: RouterJob) -> None:
    try:
        job.daemon.start("--until-caught-up", within_s=60)
        assert job.daemon.wait(within_s=240) == 0, job.daemon.log()[-3000:]
    finally:
        job.daemon.close()
