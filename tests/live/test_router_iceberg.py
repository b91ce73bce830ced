"""What only the Iceberg sink does: its summaries, expired snapshots, catalogs that answer badly."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyiceberg.catalog import load_catalog

from penstock.router.errors import StoppedError
from penstock.router.sinks import SinkContext, make_sink
from penstock.router.sinks.iceberg.sink import MARKS, IcebergSink
from tests.support.fake_iceberg_catalog import TOKEN, FakeIcebergCatalog
from tests.support.fault_door import Fault, FaultDoor, resets_after_taking, says
from tests.support.lake_cases import FAST
from tests.support.sink_batches import batch, context, dead_letters, log_record, span_record
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

PLACE = "penstock/job.sink/logs/5f2c19aa00000000/0"


def catalog_of(directory: Path) -> dict[str, str]:
    home = str(directory)
    return {"type": "sql", "uri": f"sqlite:///{home}/catalog.db", "warehouse": f"file://{home}/w"}


def local(directory: Path, **keys: Any) -> tuple[Any, SinkContext]:
    made = context(directory)
    settings = {"type": "iceberg", "table": "telemetry.records", **FAST}
    settings |= {"catalog": catalog_of(directory), **keys}
    sink = make_sink(IcebergSink.model_validate(settings), made)
    sink.open()
    return sink, made


def table_of(directory: Path) -> Any:
    return load_catalog("default", **catalog_of(directory)).load_table("telemetry.records")


def offsets(directory: Path) -> list[int]:
    found = table_of(directory).scan(selected_fields=("offset",)).to_arrow()
    return sorted(found["offset"].to_pylist())


def test_a_table_is_partitioned_and_read_by_duckdb(tmp_path: Path) -> None:
    sink, _ = local(tmp_path, partition_by=["date", "kind"])
    rows = batch([log_record(0), span_record(1), log_record(2)])
    sink.write(rows)
    sink.write(rows)
    sink.close()
    date = rows["time"][0].as_py().date()
    files = {str(it.parent).rpartition("/data/")[2] for it in tmp_path.rglob("*.parquet")}
    assert files == {f"date={date}/kind=log", f"date={date}/kind=span"}
    lake = table_of(tmp_path).scan().to_arrow()  # noqa: F841 - DuckDB reads it
    found = duckdb.sql('select kind, date, "offset" from lake order by "offset"').fetchall()
    assert found == [("log", date, 0), ("span", date, 1), ("log", date, 2)]


def test_the_summary_says_how_far_each_partition_is_and_never_goes_back(tmp_path: Path) -> None:
    sink, _ = local(tmp_path)
    sink.write(batch([log_record(0), log_record(1)], first=40))
    sink.write(batch([log_record(0)], first=3))  # a replay of what was never here
    sink.close()
    summaries = [it.summary[MARKS] for it in table_of(tmp_path).snapshots()]
    assert [json.loads(it) for it in summaries] == [{PLACE: 42}, {PLACE: 42}]
    assert offsets(tmp_path) == [3, 40, 41]


def test_where_snapshots_are_expired_the_rows_say_how_far_it_is(tmp_path: Path) -> None:
    sink, _ = local(tmp_path)
    sink.write(batch([log_record(it) for it in range(6)]))
    sink.close()
    table = table_of(tmp_path)
    others = table.scan().to_arrow()
    others = others.set_column(4, "sink", [["not.ours"] * 6])
    table.append(others)
    first = table.snapshots()[0].snapshot_id
    table.maintenance.expire_snapshots().by_id(first).commit()
    again, found = local(tmp_path)
    again.write(batch([log_record(it) for it in range(4)]))
    again.write(batch([log_record(it) for it in range(8)]))
    again.close()
    assert offsets(tmp_path) == sorted([*range(6), *range(8)])
    assert found.meter.stage("x", received=8, lag=0).detail["already_there"] == 4 + 6


def test_a_column_of_another_type_is_told_and_nothing_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sink, context = local(tmp_path)
    sink.write(batch([log_record(0)]))
    rows = batch([log_record(1)], first=1)
    numbers = rows.set_column(rows.column_names.index("service"), "service", [[7]])
    writing = threading.Thread(target=_until_stopped, args=(sink, numbers))
    writing.start()
    problem = wait_until(lambda: context.meter.problem) or ""
    context.stop.set()
    writing.join(60)
    sink.close()
    assert "service: string -> long; paused" in problem
    assert capsys.readouterr().out == ""


def _until_stopped(sink: Any, rows: Any) -> None:
    with pytest.raises(StoppedError):
        sink.write(rows)


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[FaultDoor]:
    behind = load_catalog("behind", **catalog_of(tmp_path))
    made = FaultDoor(FakeIcebergCatalog(behind))
    yield made
    made.close()
    behind.close()


def by_rest(rest: FaultDoor, directory: Path, **keys: Any) -> tuple[Any, SinkContext]:
    own = {"timeout_s": keys.pop("timeout_s", FAST["timeout_s"])}
    catalog = {"type": "rest", "uri": rest.url, "token": TOKEN, **keys}
    sink, made = local(directory, catalog=catalog, **own)
    rest.closing.append(sink.close)
    return sink, made


def stored(rest: FaultDoor) -> list[int]:
    backend: Any = rest.backend
    found = backend.catalog.load_table("telemetry.records").scan().to_arrow()
    return sorted(found["offset"].to_pylist())


def test_a_rest_catalog_is_a_matter_of_configuration(rest: FaultDoor, tmp_path: Path) -> None:
    sink, context = by_rest(rest, tmp_path)
    for _ in range(2):
        sink.write(batch([log_record(it) for it in range(5)]))
    assert stored(rest) == list(range(5))
    assert context.meter.stage("x", received=5, lag=0).detail["already_there"] == 5


TROUBLES: dict[str, Callable[[], Fault]] = {
    "conflict": lambda: says(409, b'{"error":{"message":"","type":"X","code":409}}'),
    "unknown": lambda: resets_after_taking,
    "state unknown": lambda: says(500, b'{"error":{"message":"","type":"X","code":500}}'),
    "busy": lambda: says(503, b'{"error":{"message":"","type":"X","code":503}}'),
    "too many": lambda: says(429, b'{"error":{"message":"","type":"X","code":429}}'),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_catalog_that_fails_at_a_commit_is_asked_again(
    rest: FaultDoor, tmp_path: Path, trouble: str
) -> None:
    sink, context = by_rest(rest, tmp_path)
    sink.write(batch([log_record(0)]))
    handle = rest.backend.handle
    faults = [TROUBLES[trouble]()]

    def handled(asked: Any) -> Any:
        if faults and asked.method == "POST":
            return faults.pop()(asked, rest.backend)
        return handle(asked)

    rest.backend.handle = handled  # type: ignore[method-assign]
    sink.write(batch([log_record(it) for it in range(5)]))
    assert not faults
    assert stored(rest) == list(range(5))
    assert dead_letters(context) == []


def test_a_wrong_token_pauses_the_sink_until_its_file_is_right(
    rest: FaultDoor, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("wrong")
    sink, context = by_rest(rest, tmp_path, token={"file": str(token)})
    writing = threading.Thread(target=sink.write, args=(batch([log_record(0)]),))
    writing.start()
    problem = wait_until(lambda: context.meter.problem) or ""
    token.write_text(TOKEN)
    writing.join(60)
    assert not writing.is_alive()
    assert "paused until that is corrected" in problem
    assert stored(rest) == [0]


@pytest.mark.parametrize("at", ["config", "tables/records", "commit"])
def test_a_catalog_that_falls_silent_is_given_up_and_asked_again(
    rest: FaultDoor, tmp_path: Path, at: str
) -> None:
    """The library itself would wait for ever, at its first question as well as at a commit."""
    sink, context = by_rest(rest, tmp_path, timeout_s=1)
    if at == "commit":
        sink.write(batch([log_record(0)]))
    handle, silent = rest.backend.handle, list[Any]()

    def handled(asked: Any) -> Any:
        is_it = asked.method == "POST" if at == "commit" else asked.path.endswith(at)
        if is_it and not silent:
            silent.append(asked)
            return rest.hangs(asked, rest.backend)
        return handle(asked)

    rest.backend.handle = handled  # type: ignore[method-assign]
    writing = threading.Thread(target=sink.write, args=(batch([log_record(0), log_record(1)]),))
    writing.start()
    writing.join(120)
    stuck = writing.is_alive()
    rest.hung.set()
    writing.join(120)
    assert silent
    assert not stuck
    assert stored(rest) == [0, 1]
    assert dead_letters(context) == []


@pytest.mark.parametrize(
    "catalog",
    [
        {"type": "rest", "uri": "no url", "token": "hush"},
        {"type": "hushed", "uri": "x"},
        {"type": "sql", "uri": "nonsense://hush", "warehouse": "file:///w"},
        {"type": "sql", "uri": "sqlite://", "warehouse": "file:///w", "py-io-impl": "no.hush"},
    ],
    ids=lambda it: f"{it['type']} {it['uri']}",
)
def test_a_setting_that_makes_no_sense_pauses_the_sink_and_lays_nothing_aside(
    tmp_path: Path, catalog: dict[str, str]
) -> None:
    hasty = {
        "initial_backoff_s": 0.001,
        "max_backoff_s": 0.002,
        "suspect_after": 2,
        "poison_after_s": 0.01,
    }
    sink, context = local(tmp_path, catalog=catalog, retry={**hasty, "max_paused_backoff_s": 0.002})
    writing = threading.Thread(target=_until_stopped, args=(sink, batch([log_record(0)])))
    writing.start()
    problem = wait_until(lambda: context.meter.problem) or ""
    wait_until(lambda: context.meter.stage("x", received=1, lag=0).detail.get("requests", 0) > 9)
    context.stop.set()
    writing.join(60)
    assert "paused until that is corrected" in problem
    assert "hush" not in problem.replace("hushed", "")
    assert dead_letters(context) == []


def test_old_snapshots_expire_and_a_replay_finds_its_rows(tmp_path: Path) -> None:
    sink, its = local(tmp_path, maintenance={"keep_hours": 0})
    sink.maintenance().run(lambda: False)  # there is no table yet
    for first in range(0, 30, 10):
        sink.write(batch([log_record(it) for it in range(first, first + 10)], first=first))
    assert len(table_of(tmp_path).snapshots()) == 3
    sink.maintenance().run(lambda: False)
    assert len(table_of(tmp_path).snapshots()) == 1
    assert its.meter.stage("x", received=0, lag=0).detail["snapshots_expired"] == 2
    for first in range(0, 40, 10):
        sink.write(batch([log_record(it) for it in range(first, first + 10)], first=first))
    sink.close()
    assert offsets(tmp_path) == [*range(40)]
