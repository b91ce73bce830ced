"""What only the Delta sink does: constraints, directories, what a table of others allows."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pytest
from deltalake import DeltaTable
from pydantic import ValidationError

from penstock.router.sinks import SinkContext, make_sink
from penstock.router.sinks.delta import DeltaSink
from penstock.service import ConfigError
from tests.support.lake_cases import FAST, DeltaCase
from tests.support.sink_batches import batch, context, dead_letters, log_record, span_record
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live


@pytest.fixture
def case(tmp_path: Path) -> Iterator[DeltaCase]:
    made = DeltaCase(tmp_path)
    yield made
    made.close()


def local(directory: Path, **keys: Any) -> tuple[Any, SinkContext]:
    made = context(directory)
    settings = {"type": "delta", "table": str(directory / "lake"), **FAST, **keys}
    sink = make_sink(DeltaSink.model_validate(settings), made)
    sink.open()
    return sink, made


def offsets(directory: Path) -> list[int]:
    found = DeltaTable(directory / "lake").to_pyarrow_table(columns=["offset"])
    return sorted(found["offset"].to_pylist())


def test_a_local_table_is_partitioned_by_date_and_read_by_duckdb(tmp_path: Path) -> None:
    sink, _ = local(tmp_path, partition_by=["date", "kind"])
    rows = batch([log_record(0), span_record(1), log_record(2)])
    sink.write(rows)
    sink.write(rows)
    date = rows["time"][0].as_py().date()
    files = {str(it.relative_to(tmp_path / "lake").parent) for it in tmp_path.rglob("*.parquet")}
    assert files == {f"date={date}/kind=log", f"date={date}/kind=span"}
    lake = DeltaTable(tmp_path / "lake").to_pyarrow_dataset()  # noqa: F841 - DuckDB reads it
    found = duckdb.sql('select kind, date, "offset" from lake order by "offset"').fetchall()
    assert found == [("log", date, 0), ("span", date, 1), ("log", date, 2)]


def test_a_record_that_a_constraint_refuses_is_found_and_the_others_arrive(
    tmp_path: Path,
) -> None:
    sink, context = local(tmp_path)
    sink.write(batch([log_record(0)]))
    DeltaTable(tmp_path / "lake").alter.add_constraint({"known": "service <> 'nobody'"})
    rows = batch([log_record(number) for number in range(8)])
    services = ["checkout"] * 5 + ["nobody"] + ["checkout"] * 2
    sink.write(rows.set_column(rows.column_names.index("service"), "service", [services]))
    assert offsets(tmp_path) == [0, 1, 2, 3, 4, 6, 7]
    (dead_letter,) = dead_letters(context)
    assert (dead_letter["offset"], dead_letter["code"]) == (5, "delta_constraint")
    assert dead_letter["reason"].endswith("1 rows failed validation check")


def test_commits_say_how_far_each_partition_is(tmp_path: Path) -> None:
    sink, _ = local(tmp_path)
    sink.write(batch([log_record(0), log_record(1)], first=40))
    key = "penstock/job.sink/logs/5f2c19aa00000000/0"
    assert DeltaTable(tmp_path / "lake").transaction_version(key) == 42
    sink.write(batch([log_record(0)], first=3))  # a replay of what was never here
    assert DeltaTable(tmp_path / "lake").transaction_version(key) == 42
    assert offsets(tmp_path) == [3, 40, 41]


def test_names_with_quotes_are_looked_for_as_they_are(tmp_path: Path) -> None:
    sink, context = local(tmp_path)
    context.stream_ids["o'clock"] = "it's"
    rows = batch([log_record(0), log_record(1)], stream="o'clock")
    sink.write(rows)
    sink.write(rows)
    assert offsets(tmp_path) == [0, 1]


def test_files_that_were_compacted_and_removed_are_no_loss(tmp_path: Path) -> None:
    """Maintenance by others moves rows to other files, and marks stay."""
    sink, _ = local(tmp_path)
    for first in range(0, 12, 3):
        sink.write(batch([log_record(first + it) for it in range(3)], first=first))
    table = DeltaTable(tmp_path / "lake")
    table.optimize.compact()
    table.create_checkpoint()
    again, context = local(tmp_path)
    again.write(batch([log_record(it) for it in range(12)]))
    assert offsets(tmp_path) == list(range(12))
    assert context.meter.stage("x", received=12, lag=0).detail["already_there"] == 12


def test_a_secret_in_a_file_is_read_again_and_never_shown(case: DeltaCase, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    storage = {**case.storage(case.door.url), "aws_secret_access_key": {"file": str(secret)}}
    sink, context = case.sink(storage=storage)
    writing = threading.Thread(target=sink.write, args=(batch([log_record(0)]),))
    writing.start()
    problem = wait_until(lambda: context.meter.problem) or ""
    assert "paused until that is corrected" in problem
    secret.write_text("hush")
    writing.join(60)
    assert not writing.is_alive()
    assert case.rows().num_rows == 1


@pytest.mark.parametrize("table", ["az://lake/t?sig=hush", "s3://id:hush@lake/t", "", "x y://z"])
def test_a_table_with_a_secret_in_its_name_is_refused(tmp_path: Path, table: str) -> None:
    """Names are shown; `storage` is for secrets."""
    with pytest.raises(ValidationError, match="table"):
        local(tmp_path, table=table)


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file")
    with pytest.raises(ConfigError, match=r"sinks\.sink\.table: cannot write to"):
        local(tmp_path)


def test_a_table_that_has_forgotten_how_far_it_is_has_each_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its retention of `txn` is over by the time that the batch comes again."""
    sink, _ = local(tmp_path)
    with monkeypatch.context() as long_ago:
        own, moment_ms = deltalake.Transaction, 1
        # deltalake lets nobody say when: it takes the time of the machine.
        long_ago.setattr(deltalake, "Transaction", lambda key, end: own(key, end, moment_ms))
        sink.write(batch([log_record(it) for it in range(6)]))
    retention = {"delta.setTransactionRetentionDuration": "interval 1 days"}
    DeltaTable(tmp_path / "lake").alter.set_table_properties(retention)
    key = "penstock/job.sink/logs/5f2c19aa00000000/0"
    assert DeltaTable(tmp_path / "lake").transaction_version(key) is None
    again, context = local(tmp_path)
    again.write(batch([log_record(it) for it in range(4)]))
    again.write(batch([log_record(it) for it in range(8)]))
    assert offsets(tmp_path) == list(range(8))
    assert context.meter.stage("x", received=8, lag=0).detail["already_there"] == 4 + 6


def test_a_table_is_kept_tidy_and_a_replay_finds_its_rows(tmp_path: Path) -> None:
    sink, its = local(tmp_path, maintenance={"keep_hours": 0})
    for first in range(0, 50, 10):
        sink.write(batch([log_record(it) for it in range(first, first + 10)], first=first))
    assert len(DeltaTable(tmp_path / "lake").file_uris()) == 5
    maintenance = sink.maintenance()
    assert maintenance is not None
    maintenance.run(lambda: False)
    assert len(DeltaTable(tmp_path / "lake").file_uris()) == 1
    assert len([*(tmp_path / "lake").rglob("date=*/*.parquet")]) == 1, "old files are gone"
    again, _ = local(tmp_path)
    for first in range(0, 60, 10):
        again.write(batch([log_record(it) for it in range(first, first + 10)], first=first))
    assert offsets(tmp_path) == [*range(60)]
    detail = its.meter.stage("x", received=0, lag=0).detail
    assert (detail["compaction_merged_files"], detail["compaction_removed_files"]) == (5, 5)


def test_files_are_kept_for_a_part_of_an_hour(tmp_path: Path) -> None:
    """The library counts whole hours."""
    sink, its = local(tmp_path, maintenance={"keep_hours": 0.4})
    for first in range(0, 20, 10):
        sink.write(batch([log_record(it) for it in range(first, first + 10)], first=first))
    sink.maintenance().run(lambda: False)
    detail = its.meter.stage("x", received=0, lag=0).detail
    assert (detail["compaction_merged_files"], detail["compaction_removed_files"]) == (2, 0)
    assert len([*(tmp_path / "lake").rglob("date=*/*.parquet")]) == 3


def test_maintenance_waits_for_a_table_and_is_off_unless_asked_for(tmp_path: Path) -> None:
    sink, _ = local(tmp_path, maintenance={})
    sink.maintenance().run(lambda: False)
    assert not DeltaTable.is_deltatable(str(tmp_path / "lake"))
    assert local(tmp_path)[0].maintenance() is None
