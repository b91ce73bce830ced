"""The Parquet sink on a real HDFS: each record exactly once, whichever process is killed."""

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner
from hdfs_native import WriteOptions

from penstock.base.errors import ExitCode
from penstock.deploy.cli import cli
from penstock.router.sinks.parquet.sink import ParquetLake, ParquetSink
from penstock.router.storage.hdfs import Hdfs, HdfsSettings
from penstock.service import ConfigError, UnavailableError
from tests.support import hdfs_lake
from tests.support.hdfs_lake import SIZE, files, kept_by, names_in_time, opened, rows, stored
from tests.support.hdfs_server import HdfsServer, hdfs_server
from tests.support.processes import free_port
from tests.support.sink_batches import context
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

SEED = 85
KILLS = 20
EACH_ONCE = Counter(range(SIZE))


@pytest.fixture
def server() -> Iterator[HdfsServer]:
    found = hdfs_server()
    yield found
    found.heal()


@pytest.fixture
def url(server: HdfsServer) -> str:
    return server.url + "/data/lake"


def test_what_is_written_any_reader_of_hives_directories_reads(
    server: HdfsServer, url: str, tmp_path: Path
) -> None:
    """A colon is in no name of HDFS."""
    opened(url, tmp_path / "job").write(rows(0, service="a:b/ç "))
    found = files(url)
    assert len(found) == 4
    assert all("/service=a%3Ab%2F" in name for name in found)
    for name, data in found.items():
        (tmp_path / "lake" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lake" / name).write_bytes(data)
    table = ds.dataset(tmp_path / "lake", format="parquet", partitioning="hive").to_table()
    assert sorted(table["offset"].to_pylist()) == [*range(SIZE)]
    assert set(table["service"].to_pylist()) == {f"a:b/ç {it}" for it in range(4)}
    lake = f"read_parquet('{tmp_path}/lake/**/*.parquet')"
    asked = f"select count(*), count(distinct service) from {lake}"
    assert duckdb.sql(asked).fetchall() == [(SIZE, 4)]


def test_a_batch_that_comes_again_makes_the_same_files(
    server: HdfsServer, url: str, tmp_path: Path
) -> None:
    opened(url, tmp_path).write(rows(0))
    before = files(url)
    for _ in range(2):
        opened(url, tmp_path).write(rows(0))
    lake = opened(url, tmp_path)
    lake.write(rows(0))
    assert files(url) == before
    assert stored(url) == EACH_ONCE
    lake.write(rows(SIZE))
    assert stored(url) == Counter(range(2 * SIZE))


def test_of_a_batch_that_comes_again_with_other_rows_none_stays_that_is_not_made(
    server: HdfsServer, url: str, tmp_path: Path
) -> None:
    """As when a `where` was changed between a crash and the restart."""
    opened(url, tmp_path).write(rows(0))
    lake = opened(url, tmp_path)
    lake.write(rows(SIZE))
    again = lake
    for rule in (1, 2, 0, 2):
        its = context(tmp_path)
        its.starts["logs.5f2c19aa-0"] = SIZE
        again = opened(url, tmp_path, within=its)
        again.write(rows(SIZE, rule=rule))
        assert stored(url) == EACH_ONCE + Counter(kept_by(rule, SIZE)), rule
    again.write(rows(0).slice(0, 0))
    assert stored(url) == EACH_ONCE


def test_dead_letters_of_a_batch_do_not_take_the_place_of_its_file(
    server: HdfsServer, url: str, tmp_path: Path
) -> None:
    """Their first and last record may be the same; those that are all of a file are that file."""
    opened(url, tmp_path).write(rows(0).slice(0, 1))
    lake = opened(url, tmp_path, within=replace(context(tmp_path), of_dead_letters=True))
    lake.write(rows(0).slice(0, 1))
    assert stored(url) == Counter([0])
    whole = rows(0, 9).filter([it % 4 == 1 for it in range(9)])
    lake.write(whole)
    lake.start_over()
    lake.write(whole.filter([True, *([False] * (whole.num_rows - 2)), True]))
    names = [name for name in files(url) if "service=s1" in name]
    assert len(names) == 1 + (whole.num_rows > 2)


def test_two_sinks_cannot_have_one_directory(url: str, tmp_path: Path) -> None:
    opened(url, tmp_path)
    config = ParquetSink(type="parquet", path=url)
    other = ParquetLake(config, context(tmp_path, sink="other"))
    with pytest.raises(ConfigError, match=r"belongs to the sink 'job\.sink'") as told:
        other.open()
    assert told.value.fix.endswith(f"remove {url}/_writing/job.sink")


def test_what_a_killed_job_has_open_does_not_block_the_next_one(
    server: HdfsServer, url: str, tmp_path: Path
) -> None:
    """Its lease lasts for a minute."""
    opened(url, tmp_path)
    client = server.client()
    left = client.create("/data/lake/_writing/job.sink/x.unfinished", WriteOptions())
    left.write(b"half of it")
    left.hsync()
    lake = opened(url, tmp_path)
    assert files(url) == {}
    lake.write(rows(0))
    assert stored(url) == EACH_ONCE
    with suppress(OSError, RuntimeError):
        left.close()


def test_a_sink_that_may_not_write_there_is_refused_at_the_start(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "nobody-at-all")
    with pytest.raises(ConfigError, match=r"sinks\.sink\.path: .*Permission denied"):
        opened(url, tmp_path)


def test_a_namenode_may_come_later_and_go_in_between(
    server: HdfsServer, url: str, tmp_path: Path
) -> None:
    server.kill("namenode")
    lake = opened(url, tmp_path)
    with pytest.raises(UnavailableError, match=r"sinks\.sink\.path: hdfs://"):
        lake.write(rows(0))
    server.start("namenode")
    server.wait_for_datanode()
    lake.write(rows(0))
    server.kill("namenode")
    with pytest.raises(UnavailableError):
        lake.write(rows(SIZE))
    server.start("namenode")
    server.wait_for_datanode()
    lake.write(rows(SIZE))
    assert stored(url) == Counter(range(2 * SIZE))
    assert not [name for name in files(url) if name.startswith("_writing")]


@pytest.mark.parametrize(
    ("lake", "options", "fix"),
    [
        ("hdfs://{}/lake", (), "see whether the namenode and the datanodes run"),
        ("s3://lakes/lake", ("--endpoint", "http://{}"), "see whether the store answers at that"),
    ],
)
def test_a_command_names_no_tries_that_it_does_not_make(
    lake: str, options: tuple[str, ...], fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job tries again, and says that itself."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    nobody = f"127.0.0.1:{free_port()}"
    words = [word.format(nobody) for word in ("lake", "ls", lake, *options)]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == ExitCode.UNAVAILABLE
    assert f"fix: {fix}" in done.stderr
    assert "again" not in done.stderr


def _datanode_is_gone(server: HdfsServer) -> None:
    server.kill("datanode")


def _is_in_safe_mode(server: HdfsServer) -> None:
    server.safe_mode(on=True)


@pytest.mark.parametrize("broken", [_datanode_is_gone, _is_in_safe_mode])
def test_a_batch_that_failed_comes_again(
    server: HdfsServer, url: str, tmp_path: Path, broken: Callable[[HdfsServer], None]
) -> None:
    lake = opened(url, tmp_path, hdfs={"timeout_s": 5})
    lake.write(rows(0))
    broken(server)
    with pytest.raises(UnavailableError):
        lake.write(rows(SIZE))
    if broken is _is_in_safe_mode:
        server.safe_mode(on=False)
    else:
        server.start("datanode")
        server.wait_for_datanode()
    lake.write(rows(SIZE))
    wait_until(lambda: stored(url) == Counter(range(2 * SIZE)))


@pytest.mark.parametrize("step", ["_rename", "remove", "writer"])
def test_a_call_that_was_given_up_and_is_done_later_does_no_harm(
    server: HdfsServer, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The namenode is silent for as long as the sink waits, and then does what it was asked."""
    opened(url, tmp_path).write(rows(0, rule=2))
    its = context(tmp_path)
    lake = opened(url, tmp_path, within=its)
    hasty = Hdfs(url, location="sinks.sink.path", settings=HdfsSettings(timeout_s=1.5))
    wait_until(lambda: names_in_time(hasty) is not None, what="it is connected")
    paused: list[str] = []
    real = getattr(Hdfs, step)

    def silent(self: Hdfs, *given: Any, **more: Any) -> Any:
        if paused:
            return real(self, *given, **more)
        paused.append(step)
        server.pause("namenode")
        return real(hasty, *given, **more)

    monkeypatch.setattr(Hdfs, step, silent)  # no door can tell this call from others before it
    its.starts["logs.5f2c19aa-0"] = 0
    with pytest.raises(UnavailableError, match="has not answered"):
        lake.write(rows(0))
    assert paused
    server.resume("namenode")
    lake.write(rows(0))
    assert stored(url) == EACH_ONCE
    its.starts["logs.5f2c19aa-0"] = SIZE
    lake.write(rows(SIZE))
    assert stored(url) == Counter(range(2 * SIZE))


def test_a_job_that_is_killed_again_and_again_has_each_record_once(
    server: HdfsServer, url: str, tmp_path: Path
) -> None:
    """With another `where` each time; the rule that a batch was done with is what counts."""
    dice = random.Random(SEED)
    job, batches = tmp_path / "job", 10_000
    for number in range(KILLS):
        process = _writer(url, job, rule=number % 3, batches=batches)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        for _ in range(dice.randrange(3)):
            assert process.stdout.readline() == b"done\n"
        with suppress(subprocess.TimeoutExpired):
            process.wait(dice.uniform(0.0, 0.1))
        assert process.poll() is None, "it ended by itself"
        process.kill()
        process.communicate(timeout=20)
    last = _writer(url, job, rule=0, batches=len(hdfs_lake.done(job)) + 1)
    last.communicate(timeout=120)
    assert last.returncode == 0
    rules = hdfs_lake.done(job)
    expected = Counter(
        it for number, rule in enumerate(rules) for it in kept_by(rule, number * SIZE)
    )
    assert stored(url) == expected
    assert len(rules) > KILLS // 2, "some were killed in their first batch, others behind it"
    assert not [name for name in files(url) if name.startswith("_writing")]


def _writer(url: str, job: Path, *, rule: int, batches: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.hdfs_lake", url, str(job), str(rule), str(batches)],
        stdout=subprocess.PIPE,
    )
