"""A lake of files that stays tidy: compaction, retention, and what readers and replays see."""

import json
import os
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pydantic import ValidationError
from structlog.testing import capture_logs

from penstock.base.clock import SystemClock
from penstock.base.errors import DamagedDataError, ExitCode
from penstock.deploy.cli import cli
from penstock.router.lake.compactor import compact, leased
from penstock.router.lake.index import LakeIndex
from penstock.router.lake.layout import FORMER_PARTITIONED_BY, Source, Span, source_of
from penstock.router.lake.plan import PLANS_MAX, Policy
from penstock.router.lake.store import LocalLake
from penstock.router.sinks import SinkContext
from penstock.router.sinks.parquet.sink import ParquetLake, ParquetSink
from penstock.service import ConfigError
from tests.unit.router.sink_rows import MORNING, TestClock, context, row, table

NS = 1_000_000_000
DAY_S = 86_400
KEEP_S = 600.0
MIB = 1024 * 1024
AT_ONCE = Policy(128 * MIB, 0, 0)
PATIENT = Policy(128 * MIB, 60, KEEP_S)


@pytest.fixture
def clock() -> TestClock:
    """Some days after all rows, and after all files were written."""
    made = TestClock()
    made.now_ns = max(SystemClock().unix_ns(), int(MORNING.timestamp()) * NS) + 2 * DAY_S * NS
    return made


def sink(
    directory: Path, clock: TestClock, *, within: SinkContext | None = None, **settings: Any
) -> ParquetLake:
    given = {"path": directory / "lake", "partition_by": FORMER_PARTITIONED_BY, **settings}
    config = ParquetSink.model_validate({"type": "parquet", **given})
    its = within or replace(context(directory), clock=clock)
    lake = ParquetLake(config, its)
    lake.open()
    return lake


def small_files(lake: ParquetLake, *, batches: int = 6, each: int = 10, **fields: Any) -> None:
    for first in range(0, batches * each, each):
        lake.context.starts["logs.5f2c19aa-0"] = first
        rows = [
            row(
                offset,
                service=f"s{offset % 3}" if "service" not in fields else fields["service"],
                **{name: value for name, value in fields.items() if name != "service"},
            )
            for offset in range(first, first + each)
        ]
        lake.write(table(rows))
    lake.context.starts.clear()


def listed(directory: Path) -> Counter[int]:
    """Offsets that a reader sees who lists the directory."""
    dataset = ds.dataset(directory / "lake", format="parquet", partitioning="hive")
    return Counter(dataset.to_table(columns=["offset"])["offset"].to_pylist())


def indexed(directory: Path) -> Counter[int]:
    """Offsets that a reader sees who asks the index."""
    store = LocalLake(directory / "lake")
    paths = [store.locate(path) for path in LakeIndex(store).live()]
    return Counter(
        offset
        for path in paths
        for offset in pq.ParquetFile(path).read(["offset"])["offset"].to_pylist()
    )


def files(directory: Path) -> list[str]:
    return sorted(
        path.relative_to(directory / "lake").as_posix()
        for path in (directory / "lake").glob("kind=*/**/*.parquet")
    )


def run(directory: Path, policy: Policy, clock: TestClock) -> dict[str, int]:
    result = compact(LocalLake(directory / "lake"), policy, clock, "zstd")
    assert result is not None
    return {**result.counts, "waiting": result.waiting}


def test_small_files_of_a_partition_that_has_ended_become_one(
    tmp_path: Path, clock: TestClock
) -> None:
    small_files(sink(tmp_path, clock), service="checkout")
    assert len(files(tmp_path)) == 6
    done = run(tmp_path, AT_ONCE, clock)
    assert (done["merged_files"], done["merged_into"], done["waiting"]) == (6, 1, 0)
    (name,) = files(tmp_path)
    assert "/compacted-" in name
    assert listed(tmp_path) == indexed(tmp_path) == Counter(range(60))
    assert not [*(tmp_path / "lake").glob("_compaction/**/*.merged")]


@pytest.mark.parametrize(
    ("name", "owner", "span"),
    [
        ("logs.5-e7988f-0-{}-{}.parquet", "", ("logs", "5-e7988f", 0, 7, 9)),
        ("logs.5f2c19aa.12-3-{}-{}.parquet", "", ("logs", "5f2c19aa.12", 3, 7, 9)),
        ("a.b-1.5-e7988f.2-0-{}-{}.0a1b.parquet", "", ("a.b-1", "5-e7988f.2", 0, 7, 9)),
        ("lake.cold.logs.0-0-{}-{}.0a1b.parquet", "lake.cold", ("logs", "0", 0, 7, 9)),
    ],
)
def test_a_name_says_whose_records_a_file_holds(
    name: str, owner: str, span: tuple[str, str, int, int, int]
) -> None:
    path = "kind=log/" + name.format(f"{7:020d}", f"{9:020d}")
    assert source_of(path, has_owner=bool(owner)) == Source(owner, (Span(*span),))


def test_a_merged_file_is_sorted_and_has_statistics_and_bloom_filters(
    tmp_path: Path, clock: TestClock
) -> None:
    columns = {
        "trace_id": [f"{number:032x}" for number in range(4)],
        "record_id": [f"r{number}" for number in range(4)],
        "service": ["b", "a", "b", "a"],
        "time": pa.array([4, 3, 2, 1], pa.timestamp("us", tz="UTC")),
        "stream": ["logs"] * 4,
        "partition": pa.array([0] * 4, pa.int32()),
        "offset": pa.array([0, 1, 2, 3], pa.int64()),
    }
    place = tmp_path / "lake/kind=log/date=2026-11-21/hour=08"
    place.mkdir(parents=True)
    rows = pa.table(columns)
    for first in (0, 2):
        name = f"logs.5f2c19aa-0-{first:020d}-{first + 1:020d}.parquet"
        pq.write_table(rows.slice(first, 2), place / name)
    run(tmp_path, AT_ONCE, clock)
    (path,) = (tmp_path / "lake").glob("kind=*/**/*.parquet")
    found = pq.ParquetFile(path)
    assert found.read(["offset"])["offset"].to_pylist() == [3, 1, 2, 0]
    group = found.metadata.row_group(0)
    by_name = {group.column(it).path_in_schema: group.column(it) for it in range(len(columns))}
    assert by_name["service"].statistics.max == "b"
    assert by_name["trace_id"].bloom_filter_offset is not None
    assert by_name["record_id"].bloom_filter_offset is not None
    assert by_name["service"].bloom_filter_offset is None


def test_a_partition_is_left_alone_until_its_time_has_ended(
    tmp_path: Path, clock: TestClock
) -> None:
    small_files(sink(tmp_path, clock), service="checkout")
    clock.now_ns = int(MORNING.timestamp() + 12 * 3600) * NS
    run(tmp_path, AT_ONCE, clock)
    assert len(files(tmp_path)) == 6


def test_files_that_are_large_enough_stay(tmp_path: Path, clock: TestClock) -> None:
    small_files(sink(tmp_path, clock), service="checkout")
    run(tmp_path, Policy(1000, 0, 0), clock)
    assert len(files(tmp_path)) == 6


def test_readers_of_the_index_may_take_their_time(tmp_path: Path, clock: TestClock) -> None:
    """At each step both kinds of readers see each row once, and what was listed stays there."""
    small_files(sink(tmp_path, clock), service="checkout")
    store = LocalLake(tmp_path / "lake")
    seen: list[list[str]] = []
    waiting = 1
    while waiting:
        waiting = run(tmp_path, PATIENT, clock)["waiting"]
        assert listed(tmp_path) == indexed(tmp_path) == Counter(range(60))
        for paths in seen[-1:]:
            assert all((tmp_path / "lake" / path).exists() for path in paths)
        seen.append(LakeIndex(store).live())
        clock.now_ns += int(KEEP_S) * NS
    assert [len(it) for it in seen] == [6, 1, 1, 1]
    assert seen[1][0].endswith(".merged"), "it is read where it is before it is shown"
    assert seen[-1] == files(tmp_path)


def test_sql_reads_the_files_that_the_index_lists(tmp_path: Path, clock: TestClock) -> None:
    """As the documents say."""
    small_files(sink(tmp_path, clock), service="checkout")
    for _ in range(2):
        run(tmp_path, PATIENT, clock)
        clock.now_ns += int(KEEP_S) * NS
    connection = duckdb.connect()
    lake = tmp_path / "lake"
    connection.execute(
        f"set variable files = (select list(path) from read_json('{lake}/_index/live.json'))"
    )
    found = connection.execute(
        "select service, kind, count(*) from read_parquet(getvariable('files'),"
        " hive_partitioning = true) group by all"
    ).fetchall()
    assert found == [("checkout", "log", 60)]


def test_a_replay_puts_nothing_beside_merged_rows(tmp_path: Path, clock: TestClock) -> None:
    lake = sink(tmp_path, clock)
    small_files(lake)
    run(tmp_path, AT_ONCE, clock)
    merged = files(tmp_path)
    lake.start_over()
    small_files(lake)
    assert files(tmp_path) == merged
    small_files(lake, batches=7)
    assert listed(tmp_path) == Counter(range(70)), "and what was not there is"
    detail = lake.context.meter.stage("x", received=0, lag=0).detail
    assert detail["already_there"] == 120


def test_a_dead_letter_that_is_replayed_joins_the_rows_it_was_missing_from(
    tmp_path: Path, clock: TestClock
) -> None:
    lake = sink(tmp_path, clock)
    lake.write(table([row(it) for it in (0, 1, 3, 4)]))
    lake.write(table([row(it) for it in (5, 6)]))
    run(tmp_path, AT_ONCE, clock)
    again = sink(tmp_path, clock, within=replace(lake.context, of_dead_letters=True))
    again.start_over()
    again.write(table([row(2), row(3)]))
    assert listed(tmp_path) == Counter(range(7))


def test_a_stream_that_was_made_again_is_another_one(tmp_path: Path, clock: TestClock) -> None:
    """It has the offsets of the first one, in files that are never merged with its files."""
    lake = sink(tmp_path, clock)
    small_files(lake, service="checkout")
    run(tmp_path, AT_ONCE, clock)
    lake.context.stream_ids["logs"] = "77aa000000000000"
    lake.start_over()
    small_files(lake, service="checkout")
    run(tmp_path, AT_ONCE, clock)
    assert len(files(tmp_path)) == 2
    assert listed(tmp_path) == Counter(dict.fromkeys(range(60), 2))
    assert invoke("verify", tmp_path).exit_code == 0, "that is twice by offset, and not by record"


def test_late_files_are_merged_once_there_are_enough(tmp_path: Path, clock: TestClock) -> None:
    lake = sink(tmp_path, clock)
    for first in range(0, 40, 20):
        lake.write(table([row(it, value=os.urandom(1000)) for it in range(first, first + 20)]))
    run(tmp_path, AT_ONCE, clock)
    for number in range(8):
        lake.write(table([row(1000 + number)]))
        run(tmp_path, AT_ONCE, clock)
        assert len(files(tmp_path)) == (number + 2 if number < 7 else 1)
    assert set(listed(tmp_path).values()) == {1}
    assert len(listed(tmp_path)) == 48


def test_a_batch_that_comes_again_while_it_is_planned_stops_the_plan(
    tmp_path: Path, clock: TestClock
) -> None:
    lake = sink(tmp_path, clock)
    small_files(lake, service="checkout")
    run(tmp_path, PATIENT, clock)
    lake.write(table([row(it, service="checkout") for it in range(50, 60)]))
    clock.now_ns += int(KEEP_S) * NS
    assert "merged_files" not in run(tmp_path, PATIENT, clock)
    assert listed(tmp_path) == indexed(tmp_path) == Counter(range(60))


def test_a_file_system_that_exchanges_nothing_gets_the_same_in_the_end(
    tmp_path: Path, clock: TestClock
) -> None:
    small_files(sink(tmp_path, clock))
    compact(LocalLake(tmp_path / "lake", exchanges=False), AT_ONCE, clock, "zstd")
    assert len(files(tmp_path)) == 3
    assert listed(tmp_path) == indexed(tmp_path) == Counter(range(60))


def test_more_files_are_merged_than_may_be_open(tmp_path: Path, clock: TestClock) -> None:
    small_files(sink(tmp_path, clock), batches=60, each=1, service="checkout")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len([*Path("/proc/self/fd").iterdir()])
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 30, hard))
    try:
        run(tmp_path, AT_ONCE, clock)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(files(tmp_path)) == 1
    assert listed(tmp_path) == Counter(range(60))


def test_so_many_plans_are_on_their_way_at_a_time_as_can_be_looked_at(
    tmp_path: Path, clock: TestClock
) -> None:
    """All get their turn: here at once, for nothing is kept for readers."""
    days = [MORNING - timedelta(days=it) for it in range(PLANS_MAX + 10)]
    lake = sink(tmp_path, clock)
    for first in range(0, 2 * len(days), 70):
        numbers = range(first, first + 70)
        lake.write(table([row(it, time=days[it % len(days)]) for it in numbers]))
    assert run(tmp_path, PATIENT, clock)["waiting"] == PLANS_MAX
    assert compact(LocalLake(tmp_path / "lake"), AT_ONCE, clock, "zstd") is not None
    assert len(files(tmp_path)) == len(days)


def test_files_of_others_are_left_alone(tmp_path: Path, clock: TestClock) -> None:
    small_files(sink(tmp_path, clock), service="checkout")
    place = tmp_path / "lake" / Path(files(tmp_path)[0]).parent
    pq.write_table(pa.table({"x": [1]}), place / "mine.parquet")
    run(tmp_path, replace(AT_ONCE, max_age_s=1.0, merges=False), clock)
    assert [Path(it).name for it in files(tmp_path)] == ["mine.parquet"]


def damage(path: Path, where: str) -> None:
    """Damage a Parquet file: all of it, its first page, or its metadata."""
    data = bytearray(path.read_bytes())
    begin, end = {"whole": (0, len(data)), "page": (4, 40), "metadata": (-60, -8)}[where]
    data[begin:end] = bytes(byte ^ 0xA5 for byte in data[begin:end])
    path.write_bytes(data)


DAMAGES = ("whole", "page", "metadata")


@pytest.mark.parametrize("where", DAMAGES)
def test_a_file_that_cannot_be_read_stops_no_other_partition(
    tmp_path: Path, clock: TestClock, where: str
) -> None:
    small_files(sink(tmp_path, clock))
    damaged = sorted((tmp_path / "lake").glob("kind=log/service=s1/**/*.parquet"))[2]
    damage(damaged, where)
    with capture_logs() as said:
        done = run(tmp_path, AT_ONCE, clock)
    assert (done["merged_into"], done["skipped_plans"]) == (2, 1)
    assert [it["file"] for it in said] == [damaged.relative_to(tmp_path / "lake").as_posix()]
    result = invoke("verify", tmp_path)
    assert result.exit_code == ExitCode.DATA
    assert str(damaged.name) in result.output


@pytest.mark.parametrize("where", ["whole", "metadata"])
def test_a_merged_file_that_cannot_be_read_stops_no_other_partition(
    tmp_path: Path, clock: TestClock, where: str
) -> None:
    lake = sink(tmp_path, clock)
    small_files(lake)
    assert run(tmp_path, AT_ONCE, clock)["merged_into"] == 3
    (damaged,) = (tmp_path / "lake").glob("kind=log/service=s1/**/compacted-*.parquet")
    damage(damaged, where)
    for first in range(60, 120, 10):
        lake.write(table([row(it, service=f"s{it % 2 * 2}") for it in range(first, first + 10)]))
    assert run(tmp_path, AT_ONCE, clock)["merged_into"] == 2
    clock.now_ns += DAY_S * NS
    run(tmp_path, replace(AT_ONCE, max_age_s=float(DAY_S)), clock)
    assert not files(tmp_path), "and its age ends the damaged one, too"


def test_a_damaged_file_is_named_by_whoever_needs_it(tmp_path: Path, clock: TestClock) -> None:
    lake = sink(tmp_path, clock)
    small_files(lake, service="checkout")
    run(tmp_path, AT_ONCE, clock)
    (name,) = files(tmp_path)
    damaged = tmp_path / "lake" / name
    damage(damaged, "metadata")
    lake.start_over()
    with pytest.raises(DamagedDataError) as told:
        lake.write(table([row(3, service="checkout")]))
    assert str(damaged) in told.value.reason
    for command in ("ls", "stats"):
        result = invoke(command, tmp_path)
        assert result.exit_code == ExitCode.DATA
        assert f"{damaged} cannot be read: " in result.stderr
        assert "penstock router replay" in result.stderr


def test_partitions_past_their_age_go_and_a_replay_does_not_bring_them_back(
    tmp_path: Path, clock: TestClock
) -> None:
    lake = sink(tmp_path, clock, retention={"max_age_days": 1})
    young = clock.now_ns // NS
    small_files(lake, time=MORNING.fromtimestamp(young - 3600, MORNING.tzinfo), service="new")
    old = sink(tmp_path, clock)
    for number in range(100, 104):
        old.write(table([row(number)]))
    policy = replace(PATIENT, max_age_s=float(DAY_S))
    waiting = run(tmp_path, policy, clock)["waiting"]
    assert waiting
    clock.now_ns += int(KEEP_S) * NS
    run(tmp_path, policy, clock)
    assert set(indexed(tmp_path)) == set(range(60)), "the index is first"
    assert set(listed(tmp_path)) == {*range(60), *range(100, 104)}
    clock.now_ns += int(KEEP_S) * NS
    assert run(tmp_path, policy, clock)["removed_files"] == 4
    assert listed(tmp_path) == indexed(tmp_path) == Counter(range(60))
    lake.start_over()
    lake.write(table([row(number) for number in range(100, 104)]))
    assert listed(tmp_path) == Counter(range(60))
    stage = lake.context.meter.stage("x", received=64, lag=0)
    assert (stage.sent, stage.detail["left_out_expired"]) == (60, 4)


@pytest.mark.parametrize("where", DAMAGES)
def test_a_partition_that_cannot_be_merged_goes_once_it_is_past_its_age(
    tmp_path: Path, clock: TestClock, where: str
) -> None:
    small_files(sink(tmp_path, clock), service="s1")
    damaged = next(iter((tmp_path / "lake").glob("kind=log/service=s1/**/*.parquet")))
    damage(damaged, where)
    assert run(tmp_path, AT_ONCE, clock) == {"skipped_plans": 1, "waiting": 1}
    clock.now_ns += DAY_S * NS
    done = run(tmp_path, replace(AT_ONCE, max_age_s=float(DAY_S)), clock)
    assert (done["removed_files"], done["waiting"]) == (6, 0)
    assert not files(tmp_path)


def test_one_compactor_is_at_work_at_a_time(tmp_path: Path, clock: TestClock) -> None:
    small_files(sink(tmp_path, clock))
    store = LocalLake(tmp_path / "lake")
    real = SystemClock()
    with leased(store, real, lambda: False) as held:
        assert held is not None
        with leased(store, clock, lambda: True) as other:
            assert other is None


def invoke(command: str, directory: Path, *options: str) -> Any:
    return CliRunner().invoke(cli, ["lake", command, str(directory / "lake"), *options])


def test_commands_tell_what_is_in_a_lake(tmp_path: Path, clock: TestClock) -> None:
    lake = sink(tmp_path, clock)
    small_files(lake, batches=2)
    lake.write(table([row(30, kind="span"), row(32, kind="span")]))
    listing = invoke("ls", tmp_path)
    assert listing.exit_code == 0
    assert listing.output.splitlines()[0].split() == [
        "files", "compacted", "rows", "bytes", "partition",
    ]  # fmt: skip
    assert "kind=span/service=checkout/date=2026-11-21" in listing.output
    assert len(invoke("ls", tmp_path, "--files").output.splitlines()) == 7
    counted = json.loads(invoke("stats", tmp_path, "--json").output)
    assert (counted["files"], counted["rows"]) == (7, 22)
    (stream,) = counted["streams"]
    assert (stream["stream"], stream["stream_id"], stream["first"], stream["last"]) == (
        "logs", "5f2c19aa", 0, 32,
    )  # fmt: skip
    assert "7 files (0 compacted), 22 rows" in invoke("stats", tmp_path).output
    checked = json.loads(invoke("verify", tmp_path, "--json").output)
    assert checked["sound"]
    assert checked["streams"][0]["gaps"] == [[20, 29], [31, 31]]
    assert "offsets 20 to 29 are not there" in invoke("verify", tmp_path).output


def test_verify_finds_rows_that_are_there_twice(tmp_path: Path, clock: TestClock) -> None:
    small_files(sink(tmp_path, clock), service="checkout")
    path = tmp_path / "lake" / files(tmp_path)[0]
    path.with_name(path.name.replace("-0000", "-1000", 1)).write_bytes(path.read_bytes())
    result = invoke("verify", tmp_path)
    assert result.exit_code == ExitCode.DATA
    assert "offsets 0 to 9 are double" in result.output
    assert "10 rows too many" in result.output


def test_compact_is_a_command(tmp_path: Path, clock: TestClock) -> None:
    small_files(sink(tmp_path, clock), time=MORNING.replace(year=2020))
    result = invoke("compact", tmp_path, "--keep-s", "0", "--after-s", "0", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output) == {
        "merged_files": 18, "merged_into": 3, "removed_files": 0, "skipped_plans": 0,
        "waiting_plans": 0,
    }  # fmt: skip
    assert listed(tmp_path) == Counter(range(60))
    result = invoke("compact", tmp_path, "--keep-s", "0", "--max-age-days", "30")
    assert "removed 3" in result.output
    assert not files(tmp_path)


def test_a_lake_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = invoke("ls", tmp_path)
    assert result.exit_code == ExitCode.CONFIG
    assert "is no directory" in result.output


@pytest.mark.parametrize("command", ["ls", "stats", "verify"])
def test_a_directory_that_is_no_lake_is_not_passed_for_an_empty_one(
    tmp_path: Path, command: str
) -> None:
    (tmp_path / "lake").mkdir()
    done = invoke(command, tmp_path)
    assert done.exit_code == 0
    assert (
        done.stderr == f"{tmp_path / 'lake'} has no file of a lake; is it the path of the sink?\n"
    )


def test_a_new_lake_has_a_directory_for_each_kind_and_hour(
    tmp_path: Path, clock: TestClock
) -> None:
    """However many services there are."""
    lake = sink(tmp_path, clock, partition_by=None)
    later = MORNING.replace(hour=23)
    rows = [row(number, service=f"service-{number}") for number in range(10_000)]
    rows += [row(10_000, time=later), row(10_001, kind="span", time=later)]
    lake.write(table(rows))
    assert [Path(it).parent.as_posix() for it in files(tmp_path)] == [
        "kind=log/date=2026-11-21/hour=08",
        "kind=log/date=2026-11-21/hour=23",
        "kind=span/date=2026-11-21/hour=23",
    ]
    assert listed(tmp_path) == Counter(range(10_002))
    found = duckdb.sql(
        f"select count(distinct service) from read_parquet('{tmp_path}/lake/kind=*/*/*/*.parquet')"
        " where hour = '08'"
    ).fetchall()
    assert found == [(10_000,)], "and each is in its rows"


def test_a_lake_that_is_there_keeps_its_directories(tmp_path: Path, clock: TestClock) -> None:
    sink(tmp_path, clock).write(table([row(0)]))
    sink(tmp_path, clock, partition_by=None).write(table([row(1)]))
    assert {Path(it).parent.as_posix() for it in files(tmp_path)} == {
        "kind=log/service=checkout/date=2026-11-21"
    }
    with pytest.raises(ConfigError, match="is partitioned by kind, service, date") as caught:
        sink(tmp_path, clock, partition_by=["kind", "date", "hour"])
    assert "set partition_by to [kind, service, date]" in caught.value.fix


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"partition_by": ["hour", "date"]}, "an hour is of a date"),
        ({"partition_by": ["kind", "kind"]}, "twice"),
        ({"partition_by": []}, "at least 1"),
        ({"partition_by": ["kind"], "retention": {"max_age_days": 1}}, "retention needs date"),
    ],
)
def test_partitions_that_make_no_sense_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        ParquetSink.model_validate({"type": "parquet", "path": "/lake", **settings})


def test_clocks_that_say_anything_make_no_file_for_each_hour(
    tmp_path: Path, clock: TestClock
) -> None:
    """The hours with the most rows have files of their own; the others share one."""
    lake = sink(tmp_path, clock, partition_by=None)
    rows = [row(it, time=MORNING - timedelta(hours=it)) for it in range(1000)]
    rows += [row(it) for it in range(1000, 1100)]
    lake.write(table(rows))
    before = files(tmp_path)
    assert len(before) == 101
    assert "date=__HIVE_DEFAULT_PARTITION__/hour=__HIVE_DEFAULT_PARTITION__" in before[-1]
    assert listed(tmp_path) == Counter(range(1100))
    lake.write(table(rows))
    assert files(tmp_path) == before


def test_the_log_s_time_may_part_a_lake(tmp_path: Path, clock: TestClock) -> None:
    lake = sink(tmp_path, clock, partition_by=["date"], partition_time="log")
    rows = table([row(0, time=MORNING.replace(year=1999))])
    rows = rows.append_column("timestamp", pa.array([MORNING], pa.timestamp("us", tz="UTC")))
    lake.write(rows)
    assert [Path(it).parent.as_posix() for it in files(tmp_path)] == []
    (path,) = (tmp_path / "lake").glob("date=*/*.parquet")
    assert path.parent.name == "date=2026-11-21"
    assert "kind" in pq.read_schema(path).names


KILLED = """
import sys
from pathlib import Path
from penstock.base.clock import SystemClock
from penstock.router.lake.compactor import Compactor
from penstock.router.lake.layout import FORMER_PARTITIONED_BY
from penstock.router.lake.plan import Policy
from penstock.router.lake.store import LocalLake
store = LocalLake(Path(sys.argv[1]), exchanges=sys.argv[2] == "exchange")
print("ready", flush=True)
Compactor(store, Policy(2**27, 0, 0), SystemClock(), "zstd").run_pass()
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", ["exchange", "one by one"])
def test_a_compactor_that_is_killed_anywhere_leaves_each_row_once(
    tmp_path: Path, clock: TestClock, way: str
) -> None:
    small_files(sink(tmp_path, clock), batches=12, time=MORNING.replace(year=2020))
    before = len(files(tmp_path))
    for wait_s in killing_times():
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", KILLED, str(tmp_path / "lake"), way],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        assert indexed(tmp_path) == Counter(range(120))
        if way == "exchange":
            assert listed(tmp_path) == Counter(range(120))
        else:
            assert max(listed(tmp_path).values()) == 1
    run(tmp_path, AT_ONCE, clock)
    assert listed(tmp_path) == indexed(tmp_path) == Counter(range(120))
    assert len(files(tmp_path)) == 3 < before


def killing_times() -> Iterator[float]:
    for number in range(12):
        yield 0.002 + number * 0.006
