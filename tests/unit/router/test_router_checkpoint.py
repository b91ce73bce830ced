"""What a killed driver leaves in Spark's checkpoint, and what of it goes before the next start."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from penstock.base.clock import SystemClock
from penstock.router.checkpoint.journal import BatchJournal
from penstock.router.checkpoint.local import (
    CheckpointDamagedError,
    CheckpointVersionError,
    JobLock,
    StartingOffsets,
    check_spark_files,
    clear_unfinished,
    committed_offsets,
    note_done,
    planned_offsets,
)
from penstock.router.read.offsets import Offsets, StreamPartition
from penstock.service import ExitCode, UnavailableError

LEFT = "73450e9c-bee1-4542-8b77-90af5fabf397"


def test_files_that_spark_had_not_finished_go_and_no_others(tmp_path: Path) -> None:
    for directory in ("offsets", "commits"):
        (tmp_path / directory).mkdir()
        for name in ("0", ".0.crc", "12", f".1.{LEFT}.tmp", f"..1.{LEFT}.tmp.crc"):
            (tmp_path / directory / name).touch()
    (tmp_path / "metadata").touch()
    clear_unfinished(tmp_path)
    clear_unfinished(tmp_path / "is-not-there")
    kept = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert kept == [
        "commits/.0.crc", "commits/0", "commits/12", "metadata",
        "offsets/.0.crc", "offsets/0", "offsets/12",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "held", ["", "v1", "v1\n{}\n{bad", "v1\n{}\n[]", "v1\n{}\n" + "[" * 100_000]
)
def test_an_offset_log_that_is_damaged_is_reported(tmp_path: Path, held: str) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text(held)
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "3").touch()
    with pytest.raises(CheckpointDamagedError, match=r"offsets/3 cannot be read") as told:
        committed_offsets(tmp_path)
    assert "restore checkpoint_dir" in told.value.fix


@contextmanager
def no_file_more() -> Iterator[None]:
    """Within it, this process may open none."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
def test_what_a_disk_cannot_give_now_is_no_damage(tmp_path: Path, code: int) -> None:
    """The job ends with a code with which it is started again."""
    held = tmp_path / "offsets" / "3"
    held.parent.mkdir()
    if code == errno.EIO:
        held.symlink_to("/proc/self/mem")  # at 0, where nothing is: a real EIO
    else:
        held.write_text('v1\n{}\n{"logs": {"0": 7}}')
    said = f"offsets/3 cannot be read now.*{os.strerror(code)}"
    limits = no_file_more() if code == errno.EMFILE else nullcontext()
    with pytest.raises(UnavailableError, match=said) as told, limits:
        planned_offsets(tmp_path, 3)
    assert told.value.exit_code not in (ExitCode.CONFIG, ExitCode.USAGE)


def test_an_offset_log_of_another_version_is_not_read_as_one_of_ours(tmp_path: Path) -> None:
    """Its lines may mean something else, though they look alike."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text('v2\n{}\n{"logs": {"0": 7}}')
    with pytest.raises(
        CheckpointVersionError, match=r"offsets/3: .*'v2'; this router .*'v1'"
    ) as it:
        planned_offsets(tmp_path, 3)
    assert it.value.exit_code == ExitCode.CONFIG
    assert "the pyspark and the spark.conf that wrote it" in it.value.fix
    (tmp_path / "offsets" / "3").write_text('v1\n{}\n{"logs": {"0": 7}}')
    assert planned_offsets(tmp_path, 3).next == {StreamPartition("logs", 0): 7}


def test_the_files_of_spark_are_checked_before_a_job_reads_on(tmp_path: Path) -> None:
    """Commits of version 2 come with state stores of version 2, which spark.conf may ask for."""
    check_spark_files(tmp_path / "none yet")
    for name, held in (
        ("offsets/3", 'v1\n{}\n{"logs": {"0": 7}}'),
        ("commits/2", 'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{}}'),
        ("metadata", '{"id":"5f2c"}'),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(held)
    with pytest.raises(CheckpointVersionError, match=r"commits/2: a log of commits .*'v2'") as it:
        check_spark_files(tmp_path)
    assert "begin again" in it.value.fix
    note_done(tmp_path, 2)
    check_spark_files(tmp_path)


@pytest.mark.parametrize("held", ["", "{bad", "[]", "{}", '{"id": 5}', "null"])
def test_a_damaged_file_of_the_querys_id_is_reported(tmp_path: Path, held: str) -> None:
    (tmp_path / "metadata").write_text(held)
    with pytest.raises(CheckpointDamagedError, match="metadata cannot be read"):
        check_spark_files(tmp_path)


@pytest.mark.parametrize("held", [b"", b"{bad", b"[]", b"\xff", b'{"logs": {"x": 1}}'])
def test_starting_offsets_that_are_damaged_are_reported(tmp_path: Path, held: bytes) -> None:
    (tmp_path / "starting_offsets.json").write_bytes(held)
    with pytest.raises(CheckpointDamagedError, match=r"starting_offsets.json cannot be read"):
        StartingOffsets(tmp_path).load()


def test_who_holds_a_lock_need_not_have_written_text(tmp_path: Path) -> None:
    held = JobLock(tmp_path, wait_s=0, clock=SystemClock())
    (tmp_path / "lock").write_bytes(b"\xff\xfe")
    try:
        with pytest.raises(UnavailableError, match="is in use by"):
            JobLock(tmp_path, wait_s=0, clock=SystemClock())
    finally:
        held.release()


def test_lines_of_the_journal_that_are_no_positions_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "batches.ndjson").write_bytes(b'\xff\x00\n5\n{"logs": {"\xc2\xb2": 1}}\n')
    journal = BatchJournal(tmp_path)
    journal.note(Offsets({StreamPartition("logs", 0): 7}))
    assert [end.to_json() for end, _ in journal.batches()] == [{"logs": {"0": 7}}]
