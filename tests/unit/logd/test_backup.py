"""A backup's files: whole ones are taken, anything else is refused before a stream is made."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.base.errors import ExitCode
from penstock.logd.cli import cli
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.format.batch import Record, decode_body
from penstock.logd.format.rows import batch_records
from penstock.logd.offline.backup import (
    MANIFEST,
    PARTIAL,
    BackupFile,
    BackupPartition,
    FileWriter,
    Manifest,
    check_chain,
    cut,
    frames_of,
)
from penstock.logd.storage import Checkpoint
from tests.support.frames import make_batch_frame

START = 100


def rows(first: int, count: int) -> list[Record]:
    numbers = range(first, first + count)
    return [Record("a.b", b"%d" % n, n * 1000, headers=(("h", b"%d" % n),)) for n in numbers]


def write_backup(directory: Path) -> Manifest:
    """Three files of two frames with five records each."""
    files = []
    for start in (START, START + 10, START + 20):
        writer = FileWriter(directory, 0, start)
        for first in (start, start + 5):
            header, body, _ = make_batch_frame(first, rows(first, 5))
            writer.write(header, body)
        files.append(writer.close())
    manifest = Manifest(
        release="1.0",
        taken="2026-01-31T00:00:00+00:00",
        stream="logs",
        subject="a.>",
        incarnation="x",
        options={},
        partitions=[BackupPartition(START, START + 30, files)],
    )
    manifest.save(directory / MANIFEST)
    return manifest


def check(directory: Path) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["restore", str(directory), "--check"])
    return done.exit_code, done.output


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    manifest = write_backup(tmp_path)
    assert Manifest.load(tmp_path / MANIFEST) == manifest
    (part,) = manifest.partitions
    found = [
        item
        for file in part.files
        for header, body in frames_of(tmp_path, file)
        for item in batch_records(header, decode_body(body))
    ]
    assert found == list(enumerate(rows(START, 30), START))
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*.frames")} == {0o600}
    code, text = check(tmp_path)
    assert (code, text[:33]) == (0, "30 records of logs/0 from offset ")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def tear(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - 3])


def lose_a_frame(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def exchange(path: Path) -> None:
    path.write_bytes((path.parent / f"0-{START:020d}.frames").read_bytes())


def add(path: Path) -> None:
    path.write_bytes(path.read_bytes() * 2)


DAMAGES: list[Callable[[Path], None]] = [flip, tear, lose_a_frame, exchange, add, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__)
def test_a_backup_that_is_damaged_is_refused(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    write_backup(tmp_path)
    damage(tmp_path / f"0-{START + 10:020d}.frames")
    code, text = check(tmp_path)
    assert code == ExitCode.DATA, text
    assert f"0-{START + 10:020d}.frames" in text


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    write_backup(tmp_path)
    flip(tmp_path / MANIFEST)
    assert check(tmp_path)[0] == ExitCode.DATA


def test_a_backup_that_was_cut_short_is_no_backup(tmp_path: Path) -> None:
    write_backup(tmp_path)
    (tmp_path / MANIFEST).rename(tmp_path / PARTIAL)
    code, text = check(tmp_path)
    assert code == ExitCode.DATA
    assert "run penstock logd backup again" in text


def test_a_manifest_of_a_later_version_is_refused(tmp_path: Path) -> None:
    Checkpoint(tmp_path / MANIFEST).save({"format": "penstock-backup", "version": 2})
    with pytest.raises(RefusedError, match="version 2 is not known"):
        Manifest.load(tmp_path / MANIFEST)


@pytest.mark.parametrize("document", [{"a": 1}, {"format": "penstock-backup", "version": 1}])
def test_another_document_is_no_manifest(tmp_path: Path, document: dict[str, object]) -> None:
    Checkpoint(tmp_path / MANIFEST).save(document)
    with pytest.raises(CorruptError, match="manifest"):
        Manifest.load(tmp_path / MANIFEST)


def backup_file(name: str, start: int, end: int) -> BackupFile:
    return BackupFile(name, start, end, 1, 1, 0)


@pytest.mark.parametrize(
    "files",
    [
        [backup_file("a", 0, 5), backup_file("b", 6, 10)],
        [backup_file("a", 0, 5)],
        [backup_file("../a", 0, 10)],
    ],
    ids=["a gap", "too short", "elsewhere"],
)
def test_files_that_do_not_follow_each_other_are_refused(files: list[BackupFile]) -> None:
    part = BackupPartition(0, 10, files)
    with pytest.raises(CorruptError):
        check_chain(Manifest("1", "", "logs", "a", "x", {}, [part]))


def test_a_frame_is_cut_to_the_range_that_is_wanted() -> None:
    header, body, _ = make_batch_frame(10, rows(10, 10), producer_id=b"p" * 16, producer_sequence=3)
    assert cut((header, memoryview(body)), 0, 50)[0] is header
    small, left = cut((header, memoryview(body)), 12, 18)
    assert (small.base_offset, small.next_offset) == (12, 18)
    assert list(batch_records(small, decode_body(left))) == list(enumerate(rows(12, 6), 12))
