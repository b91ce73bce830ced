"""`check`, `repair` and `dump` on data directories that the real store made."""

import os
import shutil
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from penstock.logd.cli import cli
from penstock.logd.offline.dump import Dump
from penstock.logd.partition.purge import PURGED_NAME
from penstock.logd.storage import Checkpoint, CommitLog, DirectoryLock, LogConfig
from penstock.logd.storage.segment import segment_path
from tests.support.audited import audited
from tests.support.logd_store import Store, record, state_of, write_store

RECORDS = 30
FRAME = 976


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return write_store(tmp_path / "data")


def command(*arguments: object) -> tuple[int, bytes, str]:
    """Run a command; its exit code, standard output and standard error."""
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    return done.exit_code, done.stdout_bytes, done.stderr


def check(store: Store, *options: str) -> tuple[int, bytes, str]:
    """Check, and see that nothing was changed."""
    before = state_of(store.data_dir)
    result = command("check", store.data_dir, *options)
    assert state_of(store.data_dir) == before
    return result


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def test_check_of_a_sound_store_is_a_table(store: Store) -> None:
    code, out, _ = check(store)
    assert code == 0
    titles, *lines = (line.split() for line in out.decode().splitlines())
    assert titles[0] == "STREAM"
    assert lines[1] == ["logs", "0", "2", "10", "30", "9760", "0", "to", "30", "sound"]
    assert [line[0] for line in lines] == ["audit", "logs"]


@pytest.mark.parametrize("words", [["check"], ["repair", "--dry-run"], ["dump", "logs"]])
def test_looking_opens_nothing_for_writing(store: Store, words: list[str]) -> None:
    opened: list[str] = []

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).startswith(str(store.data_dir)):
            path, _, flags = arguments
            assert not flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT | os.O_TRUNC), path
            opened.append(str(path))

    with audited(note):
        assert command(words[0], store.data_dir, *words[1:])[0] == 0
    assert str(segment_path(store.log_dir("logs"), 0)) in opened


def test_check_names_damage_and_exits_65(store: Store) -> None:
    path = segment_path(store.log_dir("logs"), 0)
    flip(path, FRAME + 200)
    code, out, error = check(store)
    assert code == 65
    assert f"damage I: {path} at {FRAME}, offset 3: frame body CRC" in out.decode()
    assert "offsets 3 to 5 cannot be read" in out.decode()
    assert "fix: " in error
    code, out, _ = check(store, "--json")
    report = orjson.loads(out)
    assert (code, report["verdict"]) == (65, "damaged")
    assert {p["stream"]: p["verdict"] for p in report["partitions"]} == {
        "audit": "sound",
        "logs": "damaged",
    }
    (problem,) = report["partitions"][1]["problems"]
    assert (problem["row"], problem["offset"], problem["next_offset"]) == ("I", 3, 6)


def test_check_tells_what_was_purged(store: Store) -> None:
    directory = store.log_dir("logs")
    Checkpoint(directory / PURGED_NAME).save({"before": 4, "epoch": 1})
    code, out, _ = check(store, "--json")
    assert code == 0
    assert b"purged below offset 4, in epochs up to 1" in out
    assert b"offsets 0 to 3" in out
    (directory / PURGED_NAME).write_bytes(b"damage")
    code, out, _ = check(store, "--json")
    assert code == 65
    assert b"logd does not open this log; records are as they were" in out


def test_leftovers_of_a_crash_are_not_damage(tmp_path: Path) -> None:
    code, out, _ = check(write_store(tmp_path / "data", close=False))
    assert code == 0
    assert out.count(b"unclean") == 2
    assert b"leftover E: " in out


def test_check_of_one_partition_and_of_what_is_none(store: Store, tmp_path: Path) -> None:
    code, out, _ = command("check", store.log_dir("logs"))
    assert (code, out.split()[8:10]) == (0, [b"logs", b"0"])
    copy = tmp_path / "copy"
    shutil.copytree(store.log_dir("logs"), copy)
    assert command("check", copy)[0] == 0
    assert command("check", tmp_path)[0] == 1
    assert command("check", tmp_path / "nothing")[0] == 64


@pytest.mark.parametrize("harm", ["missing", "flipped", "other"])
def test_bad_metadata_is_damage_and_streams_are_checked_all_the_same(
    store: Store, harm: str
) -> None:
    path = store.data_dir / "metadata"
    if harm == "missing":
        path.unlink()
    elif harm == "flipped":
        flip(path, 30)
    else:
        Checkpoint(path).save({"streams": 1})
    code, out, _ = check(store)
    assert code == 65
    assert f"damage: {path}: " in out.decode()
    assert out.count(b" sound\n") == 2


def test_directories_and_metadata_must_agree(store: Store) -> None:
    shutil.move(store.log_dir("logs").parent, store.data_dir / "streams" / "logs-11")
    shutil.move(store.log_dir("audit").parent, store.data_dir / "trash" / "audit-00ff")
    code, out, _ = check(store)
    assert code == 65
    text = out.decode()
    assert "stream 'logs' has lost its data directory" in text
    assert "logs-11: the directory belongs to no stream" in text
    assert "trash/audit-00ff: data of a deleted stream" in text


@pytest.mark.parametrize("words", [["check"], ["repair"], ["repair", "--dry-run"], ["dump"]])
def test_a_running_logd_keeps_the_commands_out(store: Store, words: list[str]) -> None:
    with DirectoryLock(store.data_dir):
        for path in (store.data_dir, store.log_dir("logs")):
            stream = ["logs"] if words == ["dump"] and path == store.data_dir else []
            code, _, error = command(words[0], path, *words[1:], *stream)
            assert code == 69
            assert "is in use by process" in error
        code, out, _ = check(store, "--live")
        assert code == 0
        assert b"is in use by process" in out
        assert command("dump", store.data_dir, "logs", "--live")[0] == 0
    assert command(words[0], store.log_dir("logs"), *words[1:])[0] == 0


def test_what_a_running_logd_removes_meanwhile_is_no_damage(store: Store) -> None:
    log, looks, enough = store.log_dir("logs"), list[str](), 3

    def gone(event: str, arguments: tuple[Any, ...]) -> None:
        """A file that was there when the directory was listed."""
        path, mode, *_ = (*arguments, None, None)
        if (event, str(path), mode) == ("open", str(segment_path(log, 0)), None):  # by os.open
            looks.append(event)
            if len(looks) < enough:
                raise FileNotFoundError

    with audited(gone):
        with DirectoryLock(store.data_dir):
            code, out, _ = check(store, "--live")
            assert (code, out.count(b" sound\n"), len(looks)) == (0, 2, 3)
            looks.clear()
            enough = 9
            code, out, _ = check(store, "--live")
            assert (code, b"not everything was read; check again" in out) == (0, True)
        looks.clear()
        code, out, _ = check(store)
        assert (code, len(looks)) == (65, 1), "without a logd nothing goes away by itself"


def test_what_compaction_merges_under_a_look_is_no_damage(tmp_path: Path) -> None:
    store = write_store(tmp_path / "three segments", frames=15)
    directory, looks = store.log_dir("logs"), list[str]()

    def merge_at_the_first_look(event: str, arguments: tuple[Any, ...]) -> None:
        """When the directory has been listed, and no file of it has been opened yet."""
        if event == "open" and str(arguments[0]) == str(segment_path(directory, 0)):
            looks.append(event)
            if len(looks) == 1:
                merge()

    def merge() -> None:
        log = CommitLog.open(directory, LogConfig())
        base, *_, end = [facts.base_offset for facts in log.segments()]
        rewriting = log.begin_rewriting(base, end)
        for frame in log.frames(base, upto=end):
            rewriting.add(*frame)
        rewriting.finish()
        assert log.swap_in(rewriting)
        log.close()
        looks[1:] = []

    with DirectoryLock(store.data_dir), audited(merge_at_the_first_look):
        code, out, _ = command("check", store.data_dir, "--live")
    assert (code, out.count(b" sound\n"), len(looks)) == (0, 2, 2), out


def test_repair_says_what_it_does_and_then_has_nothing_to_do(tmp_path: Path) -> None:
    store = write_store(tmp_path / "data", close=False)
    log = segment_path(store.log_dir("logs"), 15)
    size = log.stat().st_size
    with log.open("ab") as file:
        file.write(b"PNSFtorn")
    (store.data_dir / "metadata.tmp").touch()
    before = state_of(store.data_dir)
    code, out, _ = command("repair", store.data_dir, "--dry-run")
    assert (code, state_of(store.data_dir)) == (0, before)
    planned = [line for line in out.decode().splitlines() if line.startswith("would do: ")]
    code, out, _ = command("repair", store.data_dir)
    done = out.decode().splitlines()[: len(planned)]
    assert (code, [f"would do: {line}" for line in done]) == (0, planned)
    assert any(f"{log}: cut at {size}" in line for line in done)
    after = state_of(store.data_dir)
    changed = {name for name in before if after.get(name) != before[name]}
    assert str(log) in changed
    assert str(store.data_dir / "metadata") not in changed
    assert command("repair", store.data_dir)[1].startswith(b"nothing to repair")
    assert state_of(store.data_dir) == after
    assert check(store)[0] == 0


def test_repair_leaves_damage_and_exits_65(store: Store) -> None:
    flip(segment_path(store.log_dir("logs"), 0), 10)
    before = state_of(store.data_dir)
    code, out, _ = command("repair", store.data_dir)
    assert (code, out.startswith(b"nothing to repair")) == (65, True)
    assert state_of(store.data_dir) == before


def expected_columns(first: int, end: int) -> dict[str, list[object]]:
    records = [record(offset) for offset in range(first, end)]
    return {
        "offset": list(range(first, end)),
        "subject": [r.subject for r in records],
        "key": [r.key for r in records],
        "headers": [list(r.headers) for r in records],
        "value": [r.value for r in records],
        "timestamp": [r.timestamp_ns for r in records],
    }


def columns(table: pa.Table) -> dict[str, list[object]]:
    times = table.column("timestamp").cast(pa.int64())
    table = table.set_column(table.schema.get_field_index("timestamp"), "timestamp", times)
    return {name: table.column(name).to_pylist() for name in expected_columns(0, 0)}


def read(form: str, path: Path) -> dict[str, list[object]]:
    if form == "parquet":
        return columns(pq.read_table(path))
    return columns(pa.ipc.open_stream(path.read_bytes()).read_all())


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_dump_gives_back_what_was_written(store: Store, tmp_path: Path, form: str) -> None:
    target = tmp_path / "out"
    range_ = ["--from", 4, "--to", 20]
    before = state_of(store.data_dir)
    words = ["dump", store.data_dir, "logs", "--format", form, "--output", target]
    assert command(*words, *range_) == (0, b"", "")
    assert read(form, target) == expected_columns(4, 20)
    assert command(*words)[0] == 0
    assert read(form, target) == expected_columns(0, RECORDS)
    assert state_of(store.data_dir) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "out"]


def test_dump_to_standard_output(store: Store) -> None:
    code, out, _ = command("dump", store.data_dir, "logs", "--format", "arrow", "--to", 3)
    assert code == 0
    assert columns(pa.ipc.open_stream(out).read_all()) == expected_columns(0, 3)
    lines = command("dump", store.data_dir, "logs", "--format", "ndjson", "--from", 28)[1]
    assert [orjson.loads(line)["offset"] for line in lines.splitlines()] == [28, 29]
    assert command("dump", store.data_dir, "logs", "--format", "parquet")[0] == 64


def test_dump_as_text_is_a_line_per_frame(store: Store) -> None:
    code, out, _ = command("dump", store.data_dir, "logs")
    lines = out.decode().splitlines()
    assert (code, len(lines)) == (0, 10)
    assert lines[1].startswith("3-5  3 records  976 bytes  epoch 1  1970-01-01T00:00:00.000001Z")
    out = command("dump", store.log_dir("logs"), "--records", "--from", 29)[1]
    assert out.decode().splitlines()[1] == ("    29  1970-01-01T00:00:00.000001Z  t.2  value 029")


@pytest.mark.parametrize("form", ["text", "ndjson", "arrow", "parquet"])
def test_dump_passes_over_damage_and_says_so(store: Store, tmp_path: Path, form: str) -> None:
    for first in (0, 15):
        flip(segment_path(store.log_dir("logs"), first), FRAME + 300)
    target = tmp_path / "out"
    words = ["dump", store.data_dir, "logs", "--format", form, "--output", target]
    code, _, error = command(*words)
    assert code == 65
    assert error.count("damaged: ") == 2
    assert f"{segment_path(store.log_dir('logs'), 0)} at {FRAME}: " in error
    if form == "ndjson":
        offsets = [orjson.loads(line)["offset"] for line in target.read_bytes().splitlines()]
        lost = {3, 4, 5, 18, 19, 20}
        assert offsets == [offset for offset in range(RECORDS) if offset not in lost]
    if form == "parquet":
        assert pq.read_metadata(target).num_rows == RECORDS - 6
    assert command(*words, "--from", 6, "--to", 18)[0] == 0


def test_dump_refuses_what_is_not_there(store: Store) -> None:
    code, _, error = command("dump", store.data_dir, "traces")
    assert code == 1
    assert "it has: audit, logs" in error
    assert command("dump", store.data_dir)[0] == 64
    code, _, error = command("dump", store.data_dir, "logs", "--from", "31")
    assert code == 1
    assert "OUT_OF_RANGE" in error


def test_dump_without_frames_ends_at_once(store: Store) -> None:
    dump = Dump(store.log_dir("logs"), on_damage=pytest.fail)
    assert list(dump.frames(dump.end_offset, dump.end_offset)) == []
