"""The Parquet sink: places, names, replays, leftovers."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from penstock.router.columns.projection import Projection, Projector
from penstock.router.columns.schema import MARKS, view
from penstock.router.columns.spec_versions import known_versions
from penstock.router.lake.layout import FORMER_PARTITIONED_BY
from penstock.router.sinks import SinkContext
from penstock.router.sinks.parquet.sink import ParquetLake, ParquetSink
from penstock.service import ConfigError
from tests.unit.router.sink_rows import MORNING, context, row, table
from tests.unit.router.test_router_conversion import LOG, SPAN, log_rows

BY_SERVICE = FORMER_PARTITIONED_BY
NO_ROWS = table([row(0)]).slice(0, 0)


def open_lake(directory: Path, within: SinkContext | None = None) -> ParquetLake:
    config = ParquetSink(type="parquet", path=directory / "lake", partition_by=BY_SERVICE)
    lake = ParquetLake(config, within or context(directory))
    lake.open()
    return lake


def files(directory: Path) -> list[str]:
    return sorted(
        str(path.relative_to(directory / "lake"))
        for path in (directory / "lake").rglob("*")
        if path.is_file()
    )


def read(directory: Path) -> pa.Table:
    dataset = ds.dataset(directory / "lake", format="parquet", partitioning="hive")
    return dataset.to_table().sort_by([("stream", "ascending"), ("offset", "ascending")])


def test_a_file_is_named_by_the_records_it_holds(tmp_path: Path) -> None:
    lake = open_lake(tmp_path)
    lake.write(table([row(7), row(5, service="pay"), row(6), row(9, kind="raw", service=None)]))
    assert files(tmp_path) == [
        f"kind={kind}/service={service}/date=2026-11-21/"
        f"logs.5f2c19aa-0-{first:020d}-{last:020d}.parquet"
        for kind, service, first, last in (
            ("log", "checkout", 6, 7),
            ("log", "pay", 5, 5),
            ("raw", "__HIVE_DEFAULT_PARTITION__", 9, 9),
        )
    ]
    rows = read(tmp_path)
    assert rows["offset"].to_pylist() == [5, 6, 7, 9]
    assert rows["service"].to_pylist() == ["pay", "checkout", "checkout", None]
    assert rows["value"].to_pylist()[1] == b'{"kind":"log","number":6}'
    assert rows["attributes"].to_pylist()[0] == [("number", "5")]


def test_a_batch_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    rows = table([row(offset, service=f"s{offset % 3}") for offset in range(20)])
    open_lake(tmp_path).write(rows)
    before = files(tmp_path)
    open_lake(tmp_path).write(rows)
    assert files(tmp_path) == before
    assert read(tmp_path)["offset"].to_pylist() == list(range(20))


def test_a_batch_that_comes_again_with_other_rows_leaves_none_twice(tmp_path: Path) -> None:
    open_lake(tmp_path).write(
        table([row(offset, service=f"s{offset % 2}") for offset in range(10)])
    )
    narrower = [row(offset, service=f"s{offset % 2}") for offset in range(3, 9, 2)]
    open_lake(tmp_path).write(table(narrower))
    assert read(tmp_path)["offset"].to_pylist() == [3, 5, 7]
    open_lake(tmp_path).write(table([row(10), row(12)]))
    open_lake(tmp_path).write(table([row(13)]))
    assert read(tmp_path)["offset"].to_pylist() == [3, 5, 7, 10, 12, 13]


def test_a_batch_that_comes_again_without_any_row_leaves_none(tmp_path: Path) -> None:
    """What the files do not tell, the batch's beginning does."""
    lake = open_lake(tmp_path)
    lake.write(table([row(0)]))
    lake.write(table([row(5), row(7, partition=1)]))
    its = context(tmp_path)
    again = open_lake(tmp_path, its)
    again.write(NO_ROWS)  # nobody knows where it begins
    assert read(tmp_path)["offset"].to_pylist() == [0, 5, 7]
    its.starts.update({"logs.5f2c19aa-0": 6, "logs.5f2c19aa-1": 8})
    again.write(NO_ROWS)  # it is the batch after it
    assert read(tmp_path)["offset"].to_pylist() == [0, 5, 7]
    its.starts.update({"logs.5f2c19aa-0": 1, "logs.5f2c19aa-1": 0})
    again.write(NO_ROWS)
    assert read(tmp_path)["offset"].to_pylist() == [0]
    again.write(NO_ROWS)
    assert read(tmp_path)["offset"].to_pylist() == [0]


def test_a_batch_that_comes_again_with_rows_behind_the_earlier_ones_leaves_none_of_those(
    tmp_path: Path,
) -> None:
    open_lake(tmp_path).write(table([row(0), row(1)]))
    its = context(tmp_path)
    its.starts["logs.5f2c19aa-0"] = 0
    again = open_lake(tmp_path, its)
    again.write(table([row(4)]))
    assert read(tmp_path)["offset"].to_pylist() == [4]


def test_two_sinks_cannot_have_one_directory(tmp_path: Path) -> None:
    open_lake(tmp_path)
    config = ParquetSink(type="parquet", path=tmp_path / "lake")
    with pytest.raises(ConfigError, match=r"belongs to the sink 'job\.lake'"):
        ParquetLake(config, replace(context(tmp_path), sink="errors")).open()


def test_streams_partitions_and_days_have_files_of_their_own(tmp_path: Path) -> None:
    tomorrow = MORNING + timedelta(days=1)
    lake = open_lake(tmp_path)
    lake.write(table([row(1), row(1, stream="traces"), row(1, partition=1), row(2, time=tomorrow)]))
    names = files(tmp_path)
    assert len(names) == 4
    assert sum("date=2026-11-22" in name for name in names) == 1
    assert sum("/traces.0-0-" in name for name in names) == 1


def test_each_file_has_the_rows_of_its_place_however_many_there_are(tmp_path: Path) -> None:
    services = [f"service-{number % 150:03d}" for number in range(600)]
    open_lake(tmp_path).write(
        table([row(number, service=service) for number, service in enumerate(services)])
    )
    names = files(tmp_path)
    assert len(names) == 150
    for name in names:
        service = name.partition("service=")[2].partition("/")[0]
        offsets = pq.read_table(tmp_path / "lake" / name, partitioning=None)["offset"].to_pylist()
        assert [services[offset] for offset in offsets] == [service] * 4


@pytest.mark.parametrize(
    "service",
    [
        "../../etc",
        "a/b",
        "a=b",
        "x" * 5000,
        "naïve ☃",
        "%2F",
        ".",
        "☃" * 100,
        "1234" + "☃" * 100,
        "12",
        "\n",
    ],
)
def test_any_service_name_makes_a_readable_place(tmp_path: Path, service: str) -> None:
    open_lake(tmp_path).write(table([row(0, service=service)]))
    (name,) = files(tmp_path)
    assert name.count("/") == 3
    (stored,) = read(tmp_path)["service"].to_pylist()
    assert service.startswith(str(stored))
    assert str(stored) == service or len(service) >= 100


def test_leftovers_of_a_killed_job_are_removed_and_never_seen(tmp_path: Path) -> None:
    open_lake(tmp_path).write(table([row(0)]))
    leftover = tmp_path / "lake" / "_writing" / "job.lake" / "000000.unfinished"
    leftover.write_bytes(b"half a file")
    assert read(tmp_path).num_rows == 1
    open_lake(tmp_path)
    assert not leftover.exists()


def test_a_path_that_cannot_be_written_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file")
    with pytest.raises(ConfigError, match=r"sinks\.lake\.path"):
        open_lake(tmp_path)


def letters_lake(directory: Path) -> ParquetLake:
    config = ParquetSink(type="parquet", path=directory / "lake")
    state_dir = directory / "state" / "replay-letters"
    state_dir.mkdir(parents=True, exist_ok=True)
    lake = ParquetLake(
        config, replace(context(directory), of_dead_letters=True, state_dir=state_dir)
    )
    lake.open()
    lake.start_over()
    return lake


def test_letters_replace_no_batch_that_begins_and_ends_as_they_do(tmp_path: Path) -> None:
    """As when another sink refused 5 and 9, and they are replayed to this one."""
    open_lake(tmp_path).write(table([row(offset) for offset in range(5, 10)]))
    (batch,) = files(tmp_path)
    for _ in range(2):  # the second time is as after a crash
        letters_lake(tmp_path).write(table([row(5), row(9)]))
        assert sorted(read(tmp_path)["offset"].to_pylist()) == [5, 5, 6, 7, 8, 9, 9]
    letters_lake(tmp_path).write(table([row(5), row(7), row(9)]))
    assert len(files(tmp_path)) == 3
    open_lake(tmp_path).write(table([row(offset) for offset in range(5, 10)]))
    assert len(files(tmp_path)) == 3
    assert batch in files(tmp_path), "batches are named as ever"


def test_letters_replace_a_file_of_just_these_records(tmp_path: Path) -> None:
    """A batch's own, or what a release without digests made of them."""
    open_lake(tmp_path).write(table([row(5), row(9)]))
    before = files(tmp_path)
    letters_lake(tmp_path).write(table([row(5), row(9)]))
    assert files(tmp_path) == before
    assert read(tmp_path)["offset"].to_pylist() == [5, 9]


def test_a_damaged_file_is_not_taken_for_that_of_the_letters(tmp_path: Path) -> None:
    open_lake(tmp_path).write(table([row(5)]))
    (name,) = files(tmp_path)
    (tmp_path / "lake" / name).write_bytes(b"PAR1")
    letters_lake(tmp_path).write(table([row(5)]))
    assert len(files(tmp_path)) == 2


def test_a_file_with_damaged_pages_is_not_taken_for_that_of_the_letters(tmp_path: Path) -> None:
    open_lake(tmp_path).write(table([row(5)]))
    (name,) = files(tmp_path)
    whole = (tmp_path / "lake" / name).read_bytes()
    end = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")  # where the footer begins
    (tmp_path / "lake" / name).write_bytes(b"PAR1" + b"\xff" * (end - 4) + whole[end:])
    letters_lake(tmp_path).write(table([row(5)]))
    assert len(files(tmp_path)) == 2


def test_another_tools_file_is_not_taken_for_that_of_the_letters(tmp_path: Path) -> None:
    open_lake(tmp_path).write(table([row(5)]))
    (name,) = files(tmp_path)
    pq.write_table(pa.table({"x": [1]}), tmp_path / "lake" / name)
    letters_lake(tmp_path).write(table([row(5)]))
    assert len(files(tmp_path)) == 2


def test_an_attribute_that_is_a_number_here_and_text_there_keeps_its_type(tmp_path: Path) -> None:
    """The map has texts; the record's JSON has the types, and readers query it by them."""
    columns = tuple(it for it in view("records").columns if it.name not in MARKS)
    values = [7, "7", "seven", 7.5, True, None, [1, "a"], {"b": 2}]
    texts = [json.dumps(LOG | {"attributes": {"k": value}}).encode() for value in values]
    projector = Projector(Projection(view("records"), columns, None, known_versions()))
    rows = projector.shape(SPAN, log_rows([*texts]))
    lake = open_lake(tmp_path)
    lake.write(pa.Table.from_batches([rows]))
    path = tmp_path / "lake"
    found = duckdb.sql(
        "select attributes['k'], json_extract(decode(value), '$.attributes.k') as k, json_type(k)"
        f" from read_parquet('{path}/**/*.parquet') order by \"offset\""
    ).fetchall()
    assert [json.loads(text) for _, text, _ in found] == values
    assert [kind for *_, kind in found] == [
        "UBIGINT", "VARCHAR", "VARCHAR", "DOUBLE", "BOOLEAN", "NULL", "ARRAY", "OBJECT",
    ]  # fmt: skip
    assert [text for text, *_ in found] == [
        "7", "7", "seven", "7.5", "true", None, '[1,"a"]', '{"b":2}',
    ]  # fmt: skip
