"""A job into a database by JDBC on a Spark standalone cluster, of which an executor is killed."""

from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest

from tests.support.jdbc_case import postgres_jar
from tests.support.logd import Logd
from tests.support.postgres_server import SUPERUSER, postgres_port
from tests.support.router import STREAMS, RouterJob, log_line, publish
from tests.support.spark_cluster import WORKERS, SparkCluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

COUNT = 6000
TABLE = "of_a_cluster"


def test_a_job_on_two_workers_stores_each_record_once(tmp_path: Path, nats_url: str) -> None:
    place = f"127.0.0.1:{postgres_port()}/postgres"
    place_url = f"postgresql://{SUPERUSER}@{place}"
    url = f"jdbc:postgresql://{place}?sslmode=disable&gssEncMode=disable"
    sink = {"type": "jdbc", "url": url, "jars": [postgres_jar()], "user": SUPERUSER, "table": TABLE}
    with (
        closing(psycopg.connect(place_url, autocommit=True)) as admin,
        closing(SparkCluster(tmp_path / "cluster")) as cluster,
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
    ):

        def stored() -> list[int]:
            """Offsets that are there; none before the table is."""
            with suppress(psycopg.errors.UndefinedTable):
                rows = admin.execute(f'SELECT "offset" FROM "{TABLE}" ORDER BY 1').fetchall()
                return [offset for (offset,) in rows]
            return []

        def is_writing() -> bool:
            waiting = f"""SELECT FROM pg_locks WHERE relation = '"{TABLE}"'::regclass"""
            return bool(admin.execute(f"{waiting} AND NOT granted").fetchall())

        lines = [log_line(number) for number in range(COUNT)]
        publish(nats_url, "telemetry.logs.x", lines[: COUNT // 2])
        cluster.start()
        job = RouterJob(
            tmp_path / "router", logd.fetch, streams=["logs"],
            sinks={"db": sink | {"batch": {"max_records": 100}}},
            routes=[{"name": "all", "sinks": ["db"]}],
            spark={"master": cluster.url, "conf": cluster.conf},
            source={"min_partitions": WORKERS},
            trigger={"interval_s": 0.1, "max_records": 600},
        )  # fmt: skip
        job.daemon.start(within_s=180)
        try:
            wait_until(lambda: len(stored()) >= COUNT // 10, within_s=240, what="some rows")
            executors = cluster.executors()
            assert len(executors) == WORKERS, "the job has an executor on each worker"
            with psycopg.connect(place_url) as holding:
                holding.execute(f'LOCK TABLE "{TABLE}" IN EXCLUSIVE MODE')  # it can be read
                publish(nats_url, "telemetry.logs.x", lines[COUNT // 2 :])
                wait_until(is_writing, within_s=60, what="a task waits for the table")
                executors[0].kill()
            wait_until(lambda: len(stored()) >= COUNT, within_s=240, what="all rows")
        finally:
            assert job.daemon.stop() == 0, job.daemon.log()[-3000:]
        assert stored() == list(range(COUNT))
