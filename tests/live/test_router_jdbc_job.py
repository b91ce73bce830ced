"""A whole job into a database by JDBC, killed in the middle."""

from pathlib import Path

import psutil
import pytest

from tests.support.jdbc_case import Database, mariadb
from tests.support.logd import Logd
from tests.support.processes import arguments_of
from tests.support.router import STREAMS, RouterJob, log_line, publish
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

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
        assert any("Jdbc" in command for command in map(arguments_of, children))
        job.daemon.kill()
        _, alive = psutil.wait_procs(children, timeout=60)
        assert alive == [], "drivers end with their job"
        assert len(stored(database)) < COUNT
        job.daemon.start("--until-caught-up", within_s=180)
        assert job.daemon.wait(within_s=240) == 0, job.daemon.log()[-3000:]
    assert stored(database) == list(range(COUNT))
