"""Lakes of files in real storages, compacted while jobs write to them and are killed."""

import io
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from penstock.base.clock import SystemClock
from penstock.deploy.cli import cli
from penstock.router.lake.compactor import compact
from penstock.router.lake.index import LakeIndex
from penstock.router.lake.plan import Policy
from penstock.router.lake.store import HdfsLake, LakeStore, LocalLake, open_lake
from penstock.router.sinks.s3 import S3Sink
from tests.support import hdfs_lake
from tests.support.fault_door import FaultDoor
from tests.support.hdfs_server import HdfsServer, hdfs_server
from tests.support.logd import Logd
from tests.support.moto_server import BUCKET, S3_KEYS, MotoRun
from tests.support.router import RouterJob, log_line, publish
from tests.support.sink_batches import batch, context, log_record
from tests.support.sink_cases import CASES
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

LONG_AGO_NS = 1_600_000_000 * 10**9
AT_ONCE = Policy(128 * 1024 * 1024, 0, 0)
ON = {"enabled": True}


def indexed(store: LakeStore) -> Counter[int]:
    """Offsets that a reader of the index sees."""
    found: Counter[int] = Counter()
    for path in LakeIndex(store).live():
        with store.open(path) as file:
            found.update(pq.read_table(io.BytesIO(file.read()))["offset"].to_pylist())
    return found


def old_rows(first: int, count: int) -> pa.Table:
    """Rows of an hour that ended long ago."""
    long_ago = pa.scalar(LONG_AGO_NS // 1000, pa.timestamp("us", tz="UTC"))
    rows = batch([log_record(it) for it in range(first, first + count)], first=first)
    return rows.set_column(
        rows.column_names.index("time"), "time", pa.repeat(long_ago, rows.num_rows)
    )


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultDoor]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", S3_KEYS["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", S3_KEYS["secret_access_key"])
    made = FaultDoor(MotoRun())
    yield made
    made.close()


def test_objects_are_merged_and_a_replay_puts_nothing_beside_them(
    door: FaultDoor, tmp_path: Path
) -> None:
    assert isinstance(door.backend, MotoRun)
    sink, _ = CASES["s3"].sink(door, tmp_path, compaction=ON)
    for first in range(0, 50, 10):
        sink.write(old_rows(first, 10))
    place, endpoint = f"s3://{BUCKET}/telemetry", door.backend.url
    store = open_lake(place, endpoint=endpoint)
    assert len(store.files()) == 5
    assert indexed(store) == Counter(range(50))
    done = CliRunner().invoke(
        cli,
        ["lake", "compact", place, "--endpoint", endpoint, "--keep-s", "0", "--after-s", "0"],
    )
    assert "merged 5 files into 1, removed 0; 0 plans waiting" in done.output
    (merged,) = [it.path for it in store.files()]
    assert indexed(store) == Counter(range(50))
    sink.start_over()
    for first in range(0, 60, 10):
        sink.write(old_rows(first, 10))
    assert [it.path for it in store.files() if it.is_compacted] == [merged]
    assert len(store.files()) == 2, "what was not there before is put"
    assert indexed(store) == Counter(range(60))
    shown = CliRunner().invoke(cli, ["lake", "stats", place, "--endpoint", endpoint, "--json"])
    told = json.loads(shown.output)
    assert (told["rows"], told["streams"][0]["owner"]) == (60, "job.sink")
    checked = CliRunner().invoke(cli, ["lake", "verify", place, "--endpoint", endpoint])
    assert checked.exit_code == 0, checked.output


def test_a_job_s_sink_keeps_its_bucket_tidy(door: FaultDoor, tmp_path: Path) -> None:
    """Merged objects have the class and the headers of the others; old partitions go."""
    assert isinstance(door.backend, MotoRun)
    sink, _ = CASES["s3"].sink(
        door,
        tmp_path,
        storage_class="STANDARD_IA",
        compaction={**ON, "after_s": 0, "keep_s": 0},
        retention={"max_age_days": 36_500},
    )
    for first in range(0, 30, 10):
        sink.write(old_rows(first, 10))
    maintenance = sink.maintenance()
    assert maintenance is not None
    maintenance.run(lambda: False)
    kept = {key: it for key, it in door.backend.objects().items() if key.endswith(".parquet")}
    assert list(kept.values()) == ["STANDARD_IA"]
    young, its = CASES["s3"].sink(door, tmp_path, retention={"max_age_days": 30})
    wanted = young.maintenance()
    assert wanted is not None, "retention needs no compaction"
    young.start_over()
    young.write(old_rows(0, 30))
    assert its.meter.stage("x", received=0, lag=0).detail["left_out_expired"] == 30
    index = LakeIndex(open_lake(f"s3://{BUCKET}/telemetry", endpoint=door.backend.url))
    policy = Policy(1, 0, 0, 30 * 86_400.0, merges=False)
    store = open_lake(f"s3://{BUCKET}/telemetry", endpoint=door.backend.url)
    assert compact(store, policy, SystemClock(), "zstd") is not None
    assert index.live() == []
    assert not store.files()


@pytest.mark.parametrize(
    ("url", "bucket", "endpoint"),
    [
        ("https://telemetry.s3.eu-west-1.amazonaws.com/lake", "telemetry/lake", "https://s3.eu-west-1.amazonaws.com"),
        ("https://minio.example:9000/telemetry/lake/x", "telemetry/lake/x", "https://minio.example:9000"),
    ],
)  # fmt: skip
def test_a_bucket_is_found_in_host_or_path(url: str, bucket: str, endpoint: str) -> None:
    found = S3Sink.model_validate({"type": "s3", "url": url}).lake()
    assert found.url == f"s3://{bucket}"
    assert str(found.endpoint).rstrip("/") == endpoint


@pytest.fixture
def server() -> Iterator[HdfsServer]:
    found = hdfs_server()
    yield found
    found.heal()


def test_files_of_hdfs_are_merged_and_a_replay_puts_nothing_beside_them(
    server: HdfsServer, tmp_path: Path
) -> None:
    url = f"{server.url}/data/tidy"
    its = context(tmp_path)
    lake = hdfs_lake.opened(url, tmp_path / "job", within=its)
    for first in range(0, 40, 10):
        lake.write(old_rows(first, 10))
    store = HdfsLake(url, location="the test")
    assert len(store.files()) == 4
    result = compact(store, AT_ONCE, SystemClock(), "zstd")
    assert result is not None
    assert (result.counts["merged_into"], result.waiting) == (1, 0)
    assert [it.is_compacted for it in store.files()] == [True]
    again = hdfs_lake.opened(url, tmp_path / "job", within=replace(its))
    again.start_over()
    again.write(old_rows(0, 50))
    assert indexed(store) == Counter(range(50))
    assert hdfs_lake.stored(f"{url}/kind=log") == Counter(range(50))
    assert CliRunner().invoke(cli, ["lake", "verify", url]).exit_code == 0


def old_line(number: int) -> bytes:
    document: dict[str, Any] = json.loads(log_line(number, service=f"service-{number % 3}"))
    document["time_unix_nano"] = LONG_AGO_NS + number
    return json.dumps(document).encode()


def test_a_job_that_is_killed_while_it_compacts_leaves_each_record_once(
    tmp_path: Path, nats_url: str
) -> None:
    """Readers of both kinds look all the while."""
    compaction = {"interval_s": 0.2, "after_s": 0, "keep_s": 0.5}
    with Logd(
        tmp_path / "logd", nats_url, [{"name": "logs", "subject": "telemetry.logs.>"}]
    ) as logd:
        lake = str(tmp_path / "router" / "lake")
        job = RouterJob(
            tmp_path / "router", logd.fetch, streams=["logs"],
            sinks={"lake": {"type": "parquet", "path": lake, "compaction": compaction}},
        )  # fmt: skip
        store = LocalLake(job.lake)
        sent = 0
        try:
            for round_number in range(2):
                job.daemon.start(within_s=90)
                for _ in range(4):
                    lines = [old_line(it) for it in range(sent, sent + 50)]
                    publish(nats_url, "telemetry.logs.x", lines)
                    sent += len(lines)
                    wait_until(partial(look, store, job.lake, sent), within_s=120, what="all")
                if round_number < 1:
                    job.daemon.kill()
            wait_until(
                lambda: any(it.is_compacted for it in store.files()), within_s=120, what="a merge"
            )
            assert look(store, job.lake, sent)
            assert job.daemon.stop() == 0
        finally:
            job.daemon.close()
    assert indexed(store) == Counter(range(sent))


def look(store: LakeStore, lake: Path, count: int) -> bool:
    """Whether all are there; no reader sees a row twice."""
    if not lake.exists():
        return False
    while True:
        try:
            by_index = indexed(store)
            dataset = ds.dataset(lake, format="parquet", partitioning="hive")
            if not dataset.files:
                return False
            by_listing = Counter(dataset.to_table(columns=["offset"])["offset"].to_pylist())
        except FileNotFoundError:  # it was listed, and is merged now
            continue
        break
    assert max(by_index.values(), default=0) <= 1
    assert max(by_listing.values(), default=0) <= 1
    return len(by_index) == count == len(by_listing)
