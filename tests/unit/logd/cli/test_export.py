"""A range of a stream as a file: whole or not there."""

from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from penstock.logd.cli import cli
from penstock.logd.errors import RefusedError
from penstock.logd.format.batch import Record
from tests.support.fake_log import FakeLog


@pytest.fixture
def log() -> FakeLog:
    made = FakeLog(starts={"logs": 20})
    records = [
        Record("t.a", b"%d" % n, n * 10**9, None if n % 2 else b"k", (("H", b"a"), ("H", b"b")))
        for n in range(20, 120)
    ]
    made.add("logs", records, per_frame=7)
    made.add("two", records[:2], per_frame=1)
    made.add("two", records[2:4], per_frame=1, partition=1)
    return made


def run(log: FakeLog, directory: Path, *words: str) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        return CliRunner().invoke(cli, ["export", *words], obj=log.clients())


def rows(file: Path) -> pa.Table:
    match file.suffix:
        case ".parquet":
            return pq.read_table(file)
        case ".arrow":
            return pa.ipc.open_file(file).read_all()
        case _:
            lines = [orjson.loads(line) for line in file.read_bytes().splitlines()]
            return pa.table({name: [line[name] for line in lines] for name in ("offset", "value")})


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow", "x.ndjson"])
def test_a_file_holds_just_the_range(log: FakeLog, tmp_path: Path, name: str) -> None:
    done = run(log, tmp_path, "logs", "-o", name, "--from", "25", "--to", "1970-01-01T00:01:30Z")
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    assert done.stdout.startswith(f"65 records of logs/0 from offset 25 to 90: {name} (")
    found = rows(tmp_path / name)
    assert found.column("offset").to_pylist() == list(range(25, 90))
    assert [int(value) for value in found.column("value").to_pylist()] == list(range(25, 90))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    if name != "x.ndjson":
        assert found.column("headers")[0].as_py() == [("H", b"a"), ("H", b"b")]
        assert found.schema.metadata[b"penstock.start"] == b"25"


def test_row_groups_are_bounded(log: FakeLog, tmp_path: Path) -> None:
    log.add("many", [Record("t.a", b"", 1)] * 70_000, per_frame=1000)
    log.add("large", [Record("t.a", bytes(1 << 20), 1)] * 70, per_frame=1)
    for stream in ("many", "large"):
        assert run(log, tmp_path, stream, "-o", f"{stream}.pq").exit_code == 0
        assert pq.ParquetFile(tmp_path / f"{stream}.pq").metadata.num_row_groups == 2


def test_what_was_written_is_said_to_programs(log: FakeLog, tmp_path: Path) -> None:
    done = run(log, tmp_path, "two", "--partition", "1", "-o", "x.jsonl", "--json")
    document = orjson.loads(done.stdout)
    assert document.pop("bytes") == (tmp_path / "x.jsonl").stat().st_size
    assert document == {
        "stream": "two", "partition": 1, "start": 0, "end": 2, "records": 2,
        "file": "x.jsonl", "format": "ndjson",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
@pytest.mark.parametrize("named", [[], ["--partition", "1", "--partition", "0"]])
def test_several_partitions_stand_in_one_file(
    log: FakeLog, tmp_path: Path, name: str, named: list[str]
) -> None:
    done = run(log, tmp_path, "two", *named, "-o", name)
    assert done.stdout.startswith("4 records of two/0 from offset 0 to 2, two/1 from offset 0 to 2")
    found = rows(tmp_path / name)
    assert found.column("partition").to_pylist() == [0, 0, 1, 1]
    assert found.column("offset").to_pylist() == [0, 1, 0, 1]
    assert found.column("value").to_pylist() == [b"20", b"21", b"22", b"23"]
    extent = orjson.loads(found.schema.metadata[b"penstock.partitions"])
    assert extent[1] == {"partition": 1, "start": 0, "end": 2}
    done = run(log, tmp_path, "two", "-o", "x.jsonl", "--json")
    assert orjson.loads(done.stdout)["partitions"] == extent
    lines = (tmp_path / "x.jsonl").read_bytes().splitlines()
    assert [orjson.loads(line)["partition"] for line in lines] == [0, 0, 1, 1]


def test_an_empty_range_is_an_empty_file(log: FakeLog, tmp_path: Path) -> None:
    assert run(log, tmp_path, "logs", "-o", "x.parquet", "--from", "latest").exit_code == 0
    assert rows(tmp_path / "x.parquet").num_rows == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("logs -o x", 64, "give --format"),
        ("logs", 64, "--output"),
        ("two -o x.arrow --from 1", 64, "--from 1 is an offset, and 2 partitions are read"),
        ("two -o x.arrow --partition 2", 1, "UNKNOWN_PARTITION"),
        ("nothing -o x.arrow", 1, "UNKNOWN_STREAM"),
        ("logs -o x.arrow --from 3", 1, "3 of logs is not in 20 to 120"),
        ("logs -o x.arrow --from 50 --to 40", 64, "--to 40 is below --from 50"),
        ("logs -o no/such/x.arrow", 74, "fix: see to the disk"),
        ("logs -o there.arrow", 64, "give --force"),
        ("logs -o cut.arrow", 64, "cut.arrow.partial is there"),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_changes(
    log: FakeLog, tmp_path: Path, words: str, code: int, said: str
) -> None:
    for name in ("there.arrow", "cut.arrow.partial"):
        (tmp_path / name).write_text("kept")
    done = run(log, tmp_path, *words.split())
    assert (done.exit_code, done.stdout) == (code, ""), done.output
    assert said in done.stderr
    assert {path.read_text() for path in tmp_path.iterdir()} == {"kept"}
    assert len(list(tmp_path.iterdir())) == 2


def test_a_reading_that_breaks_leaves_what_was_there(log: FakeLog, tmp_path: Path) -> None:
    (tmp_path / "x.arrow").write_text("kept")
    log.broken = RefusedError("STREAM_RECREATED", "stream 'logs' was deleted and made again")
    done = run(log, tmp_path, "logs", "-o", "x.arrow", "--force")
    assert (done.exit_code, "STREAM_RECREATED" in done.stderr) == (1, True)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["kept"]


def test_force_takes_the_place_of_what_is_there(log: FakeLog, tmp_path: Path) -> None:
    for name in ("x.arrow", "x.arrow.partial"):
        (tmp_path / name).write_text("gone")
    assert run(log, tmp_path, "logs", "-o", "x.arrow", "--force").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["x.arrow"]
    assert rows(tmp_path / "x.arrow").num_rows == 100
