"""The data source reads on across kill -9 of leaders of a real cluster."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from penstock import router
from tests.support.logd_cluster import LogdCluster
from tests.support.nats_server import running_nats_server
from tests.support.router import RouterJob, publish, span_line
from tests.support.spark import running_spark
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

VALUES = [span_line(number) for number in range(6000)]


def run_until(job: RouterJob, count: int) -> None:
    """Until the lake has so many records and the job finds nothing wrong."""
    job.daemon.start(within_s=90)
    try:
        wait_until(
            lambda: job.delivered() >= count,
            within_s=60,
            what=f"{count} records are delivered",
        )
        wait_until(lambda: job.daemon.status()["health"] == "ready", what="the job is ready")
    finally:
        assert job.daemon.stop() == 0


def test_a_job_reads_the_partitions_that_are_assigned_to_it_and_goes_on_with_others(
    tmp_path: Path,
) -> None:
    """Nothing of the other partition is read before it is named, and nothing is read twice."""
    with (
        running_nats_server(tmp_path / "nats") as url,
        LogdCluster(tmp_path, url, size=1) as cluster,
    ):
        cluster.create("s", "s.a", partitions=2)
        publish(url, "s.a", VALUES[:200])
        publish(url, "s.a.1", VALUES[200:300])
        seen: set[int] = set()
        for partitions, count in (([1], 100), ([0], 300)):
            job = RouterJob(
                tmp_path / "job",
                cluster.nodes["a"].fetch,
                streams=["s"],
                source={"assign": {"s": partitions}},
            )
            run_until(job, count)
            rows = job.rows()
            seen.update(partitions)
            assert set(rows["partition"].to_pylist()) == seen
            assert rows.num_rows == count
            places = zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)
            assert len(set(places)) == count


def test_each_record_is_read_once_though_leaders_are_killed(tmp_path: Path) -> None:
    got: list[pa.Table] = []
    killed: list[str] = []
    with (
        running_nats_server(tmp_path / "nats") as url,
        LogdCluster(tmp_path, url) as cluster,
        running_spark(tmp_path / "spark") as session,
    ):
        cluster.create("s", "s.a", partitions=2)
        publish(url, "s.a", VALUES[:3000])
        publish(url, "s.a.1", VALUES[3000:])

        def take(rows: DataFrame, batch: int) -> None:
            if batch == 1:  # planned, and not read yet
                killed.append(cluster.leader("s"))
                cluster.nodes[killed[0]].daemon.kill()
            got.append(rows.toArrow())

        options = {
            "logd": ",".join(node.fetch for node in cluster.nodes.values()),
            "subscribe": "s",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "1500",
        }
        query = (
            router.raw(session.spark, options, columns=["partition", "offset", "value"])
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(400)
        assert query.exception() is None
    assert killed
    rows = pa.concat_tables(got)
    assert sorted(rows["value"].to_pylist()) == sorted(VALUES)
    places = list(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
    assert len(set(places)) == len(VALUES)
    assert {partition for partition, _ in places} == {0, 1}
