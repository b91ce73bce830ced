"""A streaming query that waits at logd for new records, with a real Spark and a real logd."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from penstock.base.clock import monotonic_ns
from tests.support.logd import Logd
from tests.support.processes import arguments_of
from tests.support.router import STREAMS, log_line, publish
from tests.support.spark import gateway_of, running_spark
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.live

WAIT_S = 10
"""How long a look waits at logd where nothing comes."""
SOON_S = 8
"""Before such a wait is over, on a machine that does much else."""


@pytest.fixture
def logd(tmp_path: Path, nats_url: str) -> Iterator[Logd]:
    with Logd(tmp_path / "logd", nats_url, STREAMS) as running:
        publish(nats_url, "telemetry.logs.a", [log_line(0)])
        yield running


def started(spark: SparkSession, logd: Logd, checkpoint: Path, got: list[int]) -> Any:
    """A query that has found nothing, and waits."""
    query = (
        spark.readStream.format("logd")
        .options(logd=logd.fetch, subscribe="logs,traces", batchInterval="0s")
        .load()
        .writeStream.foreachBatch(lambda rows, _: got.append(rows.toArrow().num_rows))
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="0 seconds")
        .start()
    )
    wait_until(lambda: query.lastProgress is not None, within_s=60, what="a first look")
    return query


def planners(spark: SparkSession) -> list[psutil.Process]:
    """The processes that look for new records."""
    jvm = psutil.Process(gateway_of(spark).proc.pid)
    return [
        it
        for it in jvm.children(recursive=True)
        if any("python_streaming_source_runner" in part for part in arguments_of(it))
    ]


def has_records(got: list[int], count: int) -> bool:
    return sum(got) == count


def test_a_record_ends_the_wait_and_so_does_a_stop(
    tmp_path: Path, nats_url: str, logd: Logd
) -> None:
    got: list[int] = []
    with running_spark(tmp_path / "spark") as session:
        session.spark.conf.set("spark.sql.streaming.stopTimeout", str(SOON_S * 1000))
        query = started(session.spark, logd, tmp_path / "checkpoint", got)
        assert planners(session.spark)
        for number in range(1, 4):
            begun_ns = monotonic_ns()
            publish(nats_url, "telemetry.logs.a", [log_line(number)])
            wait_until(partial(has_records, got, number), within_s=60)
            assert number == 1 or monotonic_ns() - begun_ns < SOON_S * 10**9
        begun_ns = monotonic_ns()
        query.stop()
        assert monotonic_ns() - begun_ns < SOON_S * 10**9
        assert not query.isActive
        assert query.exception() is None
        wait_until(lambda: not planners(session.spark), within_s=SOON_S / PATIENCE)
    assert got == [0, 1, 1, 1], "the first trigger of a query always has a batch"


def test_who_waits_for_a_jvm_that_was_killed_ends(tmp_path: Path, logd: Logd) -> None:
    with running_spark(tmp_path / "spark") as session:
        started(session.spark, logd, tmp_path / "checkpoint", [])
        waiting = planners(session.spark)
        assert waiting
        psutil.Process(gateway_of(session.spark).proc.pid).kill()
        _, left = psutil.wait_procs(waiting, timeout=SOON_S)
        assert left == []
