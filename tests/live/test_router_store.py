"""Checkpoints in real stores: what each promises, and jobs whose machine is lost."""

import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from penstock.router.checkpoint.local import lock_holder
from penstock.router.checkpoint.manager import open_store
from penstock.router.checkpoint.settings import AnyStore
from penstock.router.storage.objects import Objects
from penstock.service import ConfigError, ExitCode, UnavailableError
from tests.support.hdfs_server import hdfs_server
from tests.support.logd import Logd
from tests.support.moto_server import BUCKET, S3_KEYS, MotoRun
from tests.support.router import STREAMS, RouterJob, log_line, publish, read_lake
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

StoreKeys = dict[str, Any]


@pytest.fixture
def logd(tmp_path: Path, nats_url: str) -> Iterator[Logd]:
    with Logd(tmp_path / "logd", nats_url, STREAMS) as running:
        yield running


def in_s3() -> StoreKeys:
    url = MotoRun().url
    return {"type": "s3", "url": f"s3://{BUCKET}/jobs/archive", "endpoint": url, **S3_KEYS}


def in_hdfs() -> StoreKeys:
    return {"type": "hdfs", "url": f"{hdfs_server().url}/{os.urandom(8).hex()}/archive"}


STORES = pytest.mark.parametrize("made", [in_s3, in_hdfs], ids=["s3", "hdfs"])


def opened(keys: StoreKeys) -> Objects:
    return open_store(TypeAdapter[Any](AnyStore).validate_python(keys))


@STORES
def test_a_store_has_what_was_put_there(made: Callable[[], StoreKeys]) -> None:
    with closing(opened(made())) as store:
        assert store.get("sinks/lake/a") is None
        assert store.names("sinks") == []
        store.put("sinks/lake/b", b"2")
        store.put("sinks/lake/a", b"")
        store.put("sinks/lakes", b"not below")
        store.put("sinks/lake/a", b"\x00\xff" * 200_000)
        assert store.get("sinks/lake/a") == b"\x00\xff" * 200_000
        assert store.names("sinks/lake") == ["sinks/lake/a", "sinks/lake/b"]
        assert store.names("sinks") == ["sinks/lake/a", "sinks/lake/b", "sinks/lakes"]
        store.remove("sinks/lake/a")
        store.remove("sinks/lake/a")
        assert store.names("sinks/lake") == ["sinks/lake/b"]
        odd = "letters/lake/done/logs.5f2c-0-00-01 é%25+.ndjson"
        store.put(odd, b"odd")
        assert store.names("letters") == [odd]
        assert store.get(odd) == b"odd"


@STORES
def test_of_many_who_make_a_name_one_does(made: Callable[[], StoreKeys]) -> None:
    keys = made()
    stores = [opened(keys) for _ in range(6)]
    for number in range(10):
        at_once, said = threading.Barrier(len(stores)), []

        def claim(store: Objects, who: int, name: str, start: threading.Barrier) -> None:
            start.wait()
            said.append((store.create(name, b"%d" % who), who))  # noqa: B023 - joined below

        threads = [
            threading.Thread(target=claim, args=(store, who, f"terms/{number:08d}", at_once))
            for who, store in enumerate(stores)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (winner,) = [who for won, who in said if won]
        assert len(said) == len(stores)
        assert stores[0].get(f"terms/{number:08d}") == b"%d" % winner
    for store in stores:
        store.close()


def test_many_names_are_listed_whole() -> None:
    with closing(opened(in_s3())) as store:
        for number in range(1005):  # a page has 1,000
            store.put(f"terms/{number:08d}", b"")
        assert len(store.names("terms")) == 1005


def test_what_is_wrong_with_a_bucket_is_told(tmp_path: Path) -> None:
    keys = in_s3()
    for changed, said in (
        ({"url": "s3://not-there"}, "NoSuchBucket"),
        ({"access_key_id": {"file": str(tmp_path / "none")}}, "none"),
    ):
        with (
            closing(opened(keys | changed)) as store,
            pytest.raises((ConfigError, UnavailableError), match=said),
        ):
            store.put("a", b"")
    away = keys | {"endpoint": "http://127.0.0.1:1", "lease_s": 3}
    said = r"checkpoint_store: s3://lake/.*127\.0\.0\.1"
    with closing(opened(away)) as store, pytest.raises(UnavailableError, match=said):
        store.get("a")


def job_in(directory: Path, logd: Logd, lake: Path, store: StoreKeys, **keys: Any) -> RouterJob:
    sinks = {"lake": {"type": "parquet", "path": str(lake)}}
    made = RouterJob(
        directory,
        logd.fetch,
        streams=["logs"],
        sinks=sinks,
        checkpoint_store=store | {"lease_s": 9},  # an attempt of a request has a twelfth of it
        trigger={"interval_s": 0.1, "max_records": 300},
        **keys,
    )
    made.lake = lake
    return made


@STORES
def test_a_job_whose_machine_is_lost_goes_on_elsewhere(
    tmp_path: Path, nats_url: str, logd: Logd, made: Callable[[], StoreKeys]
) -> None:
    """Killed at any moment, and nothing of its directory is left."""
    store, lake, rng = made(), tmp_path / "lake", random.Random(7)
    lines = [log_line(number, service=f"service-{number % 5}") for number in range(3000)]
    for number in range(2):
        publish(nats_url, "telemetry.logs.x", lines[number * 1000 : number * 1000 + 1000])
        job = job_in(tmp_path / f"{number}", logd, lake, store)
        try:
            job.daemon.start(within_s=90)
            upto = 1000 * number + rng.randint(1, 900)
            wait_until(lambda: job.committed()["logs"] >= upto, within_s=60)  # noqa: B023
        finally:
            job.daemon.kill()
        # The JVM has the lock, too, and writes until it sees that its driver is gone.
        wait_until(lambda: lock_holder(job.checkpoint_dir) is None, within_s=30)  # noqa: B023
        shutil.rmtree(tmp_path / f"{number}")
    publish(nats_url, "telemetry.logs.x", lines[2000:])
    last = job_in(tmp_path / "last", logd, lake, store)
    last.daemon.start("--until-caught-up", within_s=90)
    assert last.daemon.wait(within_s=120) == 0, last.daemon.log()[-3000:]
    assert read_lake(lake)["value"].to_pylist() == lines
    commits = last.checkpoint_dir / "lake" / "spark" / "commits"
    batches = sum(path.name.isdigit() for path in commits.iterdir())
    assert batches >= len(lines) // 300, "it began again"


def test_of_two_who_run_one_job_one_waits_and_takes_over(
    tmp_path: Path, nats_url: str, logd: Logd
) -> None:
    store, lake = in_s3(), tmp_path / "lake"
    publish(nats_url, "telemetry.logs.x", [log_line(number) for number in range(300)])
    first = job_in(tmp_path / "first", logd, lake, store)
    second = job_in(tmp_path / "second", logd, lake, store)
    try:
        first.daemon.start(within_s=90)
        wait_until(lambda: first.committed() == {"logs": 300}, within_s=60)
        second.daemon.launch()
        wait_until(lambda: "store_wait" in second.daemon.log(), within_s=60)
        assert first.daemon.answers()
        os.kill(first.daemon.pid, signal.SIGSTOP)  # as a machine that is suspended
        second.daemon.wait_until_ready(within_s=120)
        publish(nats_url, "telemetry.logs.x", [log_line(number) for number in range(300, 600)])
        wait_until(lambda: second.committed() == {"logs": 600}, within_s=60)
        os.kill(first.daemon.pid, signal.SIGCONT)
        code = first.daemon.wait(within_s=60)
        assert code in (ExitCode.UNAVAILABLE, ExitCode.TEMPORARY)
        assert "has taken over" in first.daemon.log()
        assert second.daemon.stop() == 0
    finally:
        for job in (first, second):
            job.daemon.close()
    numbers = [log_line(number) for number in range(600)]
    assert read_lake(lake)["value"].to_pylist() == numbers


def test_while_the_store_is_away_nothing_is_delivered_and_nothing_is_lost(
    tmp_path: Path, nats_url: str, logd: Logd
) -> None:
    lake, server = tmp_path / "lake", hdfs_server()
    job = job_in(tmp_path / "job", logd, lake, in_hdfs())
    try:
        job.daemon.start(within_s=90)
        publish(nats_url, "telemetry.logs.x", [log_line(number) for number in range(300)])
        wait_until(lambda: job.committed() == {"logs": 300}, within_s=60)
        server.kill("namenode")
        publish(nats_url, "telemetry.logs.x", [log_line(number) for number in range(300, 600)])

        def is_told() -> bool:
            return any("checkpoint_store" in it for it in job.daemon.status()["reasons"])

        wait_until(is_told, within_s=90, what="what is wrong")
        assert job.committed() == {"logs": 300}
        server.start("namenode")
        wait_until(lambda: job.committed() == {"logs": 600}, within_s=120)
        wait_until(lambda: job.daemon.status()["health"] == "ready", within_s=60)
        assert job.daemon.stop() == 0
    finally:
        server.start("namenode")
        job.daemon.close()
    assert read_lake(lake)["value"].to_pylist() == [log_line(number) for number in range(600)]
