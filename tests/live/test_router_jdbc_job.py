"""A whole job into a database by JDBC, killed in the middle."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import psutil
import psycopg
import pytest

from tests.support.jdbc_case import Database, JdbcCase, end_jdbc_spark, mariadb
from tests.support.logd import Logd
from tests.support.router import STREAMS, RouterJob, log_line, publish
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", autouse=True)
def _spark_ends() -> Iterator[None]:
    yield
    end_jdbc_spark()


COUNT = 6000


def stored(database: Database) -> list[int]:
    """Offsets that are there; none before the table is."""
    if not database.query("SHOW TABLES LIKE 'penstock'"):
        return []
    return [
        int(offset or "")
        for (offset,) in database.query('SELECT "offset" FROM "penstock" ORDER BY "offset"')
    ]


def test_a_job_that_is_killed_has_each_record_once_and_leaves_no_process(
    tmp_path: Path, nats_url: str
) -> None:
    database = mariadb(tmp_path)
    sink = {"type": "jdbc", "url": database.url, "jars": database.jars}
    with Logd(tmp_path / "logd", nats_url, STREAMS) as logd:
        publish(nats_url, "telemetry.logs.x", [log_line(number) for number in range(COUNT)])
        job = RouterJob(
            tmp_path / "router",
            logd.fetch,
            streams=["logs"],
            sinks={"db": sink | {"batch": {"max_records": 50}}},
            routes=[{"name": "all", "sinks": ["db"]}],
            trigger={"interval_s": 0.1, "max_records": 300},
        )
        job.daemon.start(within_s=180)
        wait_until(lambda: len(stored(database)) >= COUNT // 10, within_s=240, what="some rows")
        children = psutil.Process(job.daemon.pid).children(recursive=True)
        job.daemon.kill()
        _, alive = psutil.wait_procs(children, timeout=60)
        assert alive == [], "drivers end with their job"
        assert len(stored(database)) < COUNT
        job.daemon.start("--until-caught-up", within_s=180)
        assert job.daemon.wait(within_s=240) == 0, job.daemon.log()[-3000:]
    assert stored(database) == list(range(COUNT))


class Stored(NamedTuple):
    """Numbers of rows in the table and, together, in all staging tables."""

    rows: int
    staged: int


def test_a_job_that_is_killed_between_staging_and_the_table_has_each_record_once(
    tmp_path: Path, nats_url: str
) -> None:
    case = JdbcCase(tmp_path)

    def in_postgres() -> Stored:
        tables = case.admin.execute(
            "SELECT tablename FROM pg_tables WHERE tablename LIKE 'penstock_stage%'"
        ).fetchall()
        counts = [f'(SELECT count(*) FROM "{name}")' for (name,) in tables]
        sql = f'SELECT (SELECT count(*) FROM "{case.run}"), {" + ".join(["0", *counts])}'
        ((rows, staged),) = case.admin.execute(sql).fetchall()
        return Stored(rows, staged)

    sink = {"type": "jdbc", **case.keys(), "batch": {"max_records": 500}}
    with Logd(tmp_path / "logd", nats_url, STREAMS) as logd, closing(case):
        publish(nats_url, "telemetry.logs.x", [log_line(number) for number in range(COUNT)])
        job = RouterJob(
            tmp_path / "router",
            logd.fetch,
            streams=["logs"],
            sinks={"db": sink},
            routes=[{"name": "all", "sinks": ["db"]}],
            trigger={"interval_s": 0.1, "max_records": 1500},
        )
        with psycopg.connect(case.admin.info.dsn) as lock:
            lock.execute(f'LOCK TABLE "{case.run}" IN EXCLUSIVE MODE')
            job.daemon.start(within_s=180)
            wait_until(lambda: in_postgres().staged == 500, within_s=240, what="staged rows")
            assert in_postgres().rows == 0
            job.daemon.kill()
        job.daemon.start("--until-caught-up", within_s=180)
        assert job.daemon.wait(within_s=240) == 0, job.daemon.log()[-3000:]
        found = case.admin.execute(f'SELECT "offset" FROM "{case.run}" ORDER BY 1').fetchall()
        assert [offset for (offset,) in found] == list(range(COUNT))
        assert in_postgres() == Stored(COUNT, 0)
