"""Inspection says what is wrong with a log, and repair does only what is safe."""

from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from penstock.logd.format.batch import SCHEMA, build_batch, describe_body, encode_body
from penstock.logd.format.frame import HEADER_SIZE, crc32c, encode_header
from penstock.logd.offline.fsck import (
    Inspection,
    PartitionReport,
    Problem,
    RepairAction,
    apply,
    plan,
)
from penstock.logd.partition.producer_snapshot import ProducerSnapshot
from penstock.logd.storage import CommitLog, EpochFile, LogConfig
from penstock.logd.storage.checkpoint import FILE_NAME as MARK
from penstock.logd.storage.segment import segment_path
from tests.support.frames import make_frame
from tests.support.logd_store import ROWS, record, state_of, write_log

FRAMES = 8
SEALED = segment_path(Path(), 0)
LAST = segment_path(Path(), 5 * ROWS)


def inspect(directory: Path) -> PartitionReport:
    """Inspect, and see that nothing was changed."""
    before = state_of(directory)
    report = Inspection(directory).run()
    assert state_of(directory) == before
    return report


def rows(report: PartitionReport) -> str:
    return "".join(problem.row for problem in report.problems)


def the_problem(directory: Path) -> Problem:
    (problem,) = inspect(directory).problems
    return problem


def mend(directory: Path) -> list[RepairAction]:
    """Repair; the second time nothing must be left to do."""
    inspection = Inspection(directory)
    inspection.run()
    actions = plan(inspection)
    apply(actions)
    after = state_of(directory)
    again = Inspection(directory)
    again.run()
    assert plan(again) == []
    apply(plan(again))
    assert state_of(directory) == after
    return [action.deed for action in actions]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def size_of_frame(directory: Path) -> int:
    return (directory / SEALED).stat().st_size // 5


def test_a_clean_log_is_sound_and_counted(tmp_path: Path) -> None:
    log = write_log(tmp_path, FRAMES)
    report = inspect(tmp_path)
    assert (report.verdict, report.problems) == ("sound", [])
    assert (report.segments, report.frames, report.records) == (2, FRAMES, FRAMES * ROWS)
    assert (report.start_offset, report.end_offset) == (0, FRAMES * ROWS)
    assert report.bytes == log.size_bytes
    assert mend(tmp_path) == []


def test_a_killed_log_is_unclean_and_its_index_is_made_again(tmp_path: Path) -> None:
    write_log(tmp_path, FRAMES, close=False)
    report = inspect(tmp_path)
    assert (report.verdict, rows(report)) == ("unclean", "E")
    assert mend(tmp_path) == [RepairAction.INDEX, RepairAction.INDEX]
    assert inspect(tmp_path).verdict == "sound"
    log = CommitLog.open(tmp_path, LogConfig())
    assert (log.recovery.clean, log.end_offset) == (True, FRAMES * ROWS)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("segment", [SEALED, LAST], ids=["sealed", "last"])
@pytest.mark.parametrize("harm", ["missing", "flipped", "empty"])
def test_a_bad_index_is_made_again_as_it_was(
    tmp_path: Path, segment: Path, suffix: str, harm: str
) -> None:
    write_log(tmp_path, FRAMES)
    path = tmp_path / segment.with_suffix(suffix)
    good = path.read_bytes()
    if harm == "missing":
        path.unlink()
    elif harm == "flipped":
        flip(path, 20)
    else:
        path.write_bytes(b"")
    assert (inspect(tmp_path).verdict, the_problem(tmp_path).row) == ("unclean", "E")
    assert mend(tmp_path) == [RepairAction.INDEX]
    assert path.read_bytes() == good
    assert inspect(tmp_path).verdict == "sound"


@pytest.mark.parametrize("extra", [1, 40, HEADER_SIZE, HEADER_SIZE + 9, 500])
def test_a_torn_tail_is_set_aside_and_cut(tmp_path: Path, extra: int) -> None:
    write_log(tmp_path, FRAMES, close=False)
    path = tmp_path / LAST
    whole = path.read_bytes()
    header, body = make_frame(FRAMES * ROWS, b"torn" * 200)
    tail = (encode_header(header) + body)[:extra]
    path.write_bytes(whole + tail)
    report = inspect(tmp_path)
    assert (report.verdict, rows(report)) == ("unclean", "EF")
    torn = report.problems[1]
    assert (torn.position, torn.offset) == (len(whole), FRAMES * ROWS)
    assert f"of {extra} bytes" in torn.reason
    assert mend(tmp_path) == [RepairAction.CUT, RepairAction.INDEX, RepairAction.INDEX]
    assert path.read_bytes() == whole
    assert path.with_suffix(f".{len(whole)}.torn").read_bytes() == tail
    assert inspect(tmp_path).verdict == "sound"


@pytest.mark.parametrize("harm", ["missing", "flipped"])
def test_a_torn_tail_is_left_when_no_mark_proves_it_was_not_durable(
    tmp_path: Path, harm: str
) -> None:
    write_log(tmp_path, FRAMES, close=False)
    path = tmp_path / LAST
    path.write_bytes(path.read_bytes() + b"rubbish!")
    if harm == "missing":
        (tmp_path / MARK).unlink()
    else:
        flip(tmp_path / MARK, 9)
    before = state_of(tmp_path)
    assert inspect(tmp_path).verdict == "unclean"
    assert mend(tmp_path) == []
    assert state_of(tmp_path) == before


def test_writes_torn_with_sound_frames_behind_are_left_to_the_next_start(tmp_path: Path) -> None:
    write_log(tmp_path, FRAMES - 1, close=False)
    path = tmp_path / LAST
    good = path.read_bytes()
    hole, behind = make_frame(21, b"?" * 2000), make_frame(22, b"sound")
    data = b"".join(encode_header(header) + body for header, body in (hole, behind))
    path.write_bytes(good + data[:600] + bytes(1024) + data[1624:])
    before = state_of(tmp_path)
    report = inspect(tmp_path)
    assert rows(report) == "EG"
    assert mend(tmp_path) == []
    assert state_of(tmp_path) == before


@pytest.mark.parametrize("part", [10, HEADER_SIZE + 200], ids=["header", "body"])
@pytest.mark.parametrize("closed", [True, False])
def test_a_flipped_bit_is_found_where_it_is_and_left_there(
    tmp_path: Path, part: int, *, closed: bool
) -> None:
    write_log(tmp_path, FRAMES, close=closed)
    frame = size_of_frame(tmp_path)
    for segment, row, offset in ((SEALED, "I", 3), (LAST, "H", 18)):
        path = tmp_path / segment
        flip(path, frame + part)
        report = inspect(tmp_path)
        assert report.verdict == "damaged"
        (problem,) = [problem for problem in report.problems if problem.row == row]
        assert (problem.file, problem.position) == (str(path), frame)
        assert (problem.offset, problem.next_offset) == (offset, offset + ROWS)
        assert problem.meaning == f"offsets {offset} to {offset + 2} cannot be read"
        logs = {log: log.read_bytes() for log in tmp_path.glob("*.log")}
        mend(tmp_path)
        assert {log: log.read_bytes() for log in tmp_path.glob("*.log")} == logs
        assert inspect(tmp_path).verdict == "damaged"
        flip(path, frame + part)


def test_synced_bytes_that_are_gone_are_damage(tmp_path: Path) -> None:
    write_log(tmp_path, FRAMES, close=False)
    path = tmp_path / LAST
    path.write_bytes(path.read_bytes()[:-100])
    report = inspect(tmp_path)
    assert (report.verdict, rows(report)) == ("damaged", "EH")
    assert (report.problems[1].offset, report.end_offset) == (21, FRAMES * ROWS)
    mend(tmp_path)
    assert path.stat().st_size == 3 * size_of_frame(tmp_path) - 100


def test_rubbish_behind_a_sealed_segment_is_damage_that_hides_nothing(tmp_path: Path) -> None:
    write_log(tmp_path, FRAMES)
    path = tmp_path / SEALED
    path.write_bytes(path.read_bytes() + b"rubbish")
    report = inspect(tmp_path)
    assert (report.verdict, rows(report), report.frames) == ("damaged", "EI", FRAMES)
    assert report.problems[1].meaning == "nothing to readers: no record is missing"


def test_a_missing_middle_segment_is_damage(tmp_path: Path) -> None:
    write_log(tmp_path, 12)
    (tmp_path / LAST).unlink()
    report = inspect(tmp_path)
    assert (report.verdict, rows(report)) == ("damaged", "DDEJ")
    assert report.problems[-1].meaning == "offsets 15 to 29 cannot be read"
    mend(tmp_path)
    assert (tmp_path / LAST.with_suffix(".index")).exists(), "what is left of it is left"


@pytest.mark.parametrize("all_of_it", [True, False])
def test_a_missing_last_segment_is_told_by_the_mark(tmp_path: Path, *, all_of_it: bool) -> None:
    write_log(tmp_path, FRAMES)
    for path in tmp_path.glob(f"{LAST.stem}.*" if all_of_it else LAST.name):
        path.unlink()
    report = inspect(tmp_path)
    assert report.verdict == "damaged"
    problem = report.problems[-1]
    assert (problem.file, problem.offset) == (str(tmp_path / LAST), 15)
    assert "offsets 15 to 23 cannot be read" in problem.meaning


def test_a_missing_first_segment_is_noted(tmp_path: Path) -> None:
    write_log(tmp_path, FRAMES)
    for path in tmp_path.glob(f"{SEALED.stem}.*"):
        path.unlink()
    assert the_problem(tmp_path).reason == "the log begins at offset 15"
    assert inspect(tmp_path).verdict == "sound"


def test_overlapping_segments_are_damage_that_repair_does_not_touch(tmp_path: Path) -> None:
    write_log(tmp_path, FRAMES)
    frame = size_of_frame(tmp_path)
    segment_path(tmp_path, 6).write_bytes((tmp_path / SEALED).read_bytes()[2 * frame :])
    (tmp_path / "x.tmp").touch()
    report = inspect(tmp_path)
    assert (report.verdict, "K" in rows(report)) == ("damaged", True)
    assert mend(tmp_path) == []


def test_a_later_format_is_named(tmp_path: Path) -> None:
    write_log(tmp_path, FRAMES)
    epochs = tmp_path / "epochs"
    epochs.write_bytes(epochs.read_bytes().replace(b"PNSC1", b"PNSC9"))
    assert "version 9 is not known" in the_problem(tmp_path).reason
    assert mend(tmp_path) == []


def test_temporary_files_are_removed(tmp_path: Path) -> None:
    write_log(tmp_path, FRAMES)
    (tmp_path / "epochs.tmp").write_bytes(b"half")
    assert (the_problem(tmp_path).row, inspect(tmp_path).verdict) == ("C", "unclean")
    assert mend(tmp_path) == [RepairAction.REMOVE]
    assert inspect(tmp_path).verdict == "sound"


def test_damaged_checkpoints_are_named_by_what_they_cost(tmp_path: Path) -> None:
    write_log(tmp_path, FRAMES)
    flip(tmp_path / "producers", 20)
    assert inspect(tmp_path).verdict == "unclean"
    flip(tmp_path / "epochs", 20)
    report = inspect(tmp_path)
    assert report.verdict == "unclean", "frames have their epochs, and the log has all producers"
    assert [Path(problem.file).name for problem in report.problems] == ["epochs", "producers"]


@pytest.mark.parametrize("harm", ["damaged", "emptied", "missing", "without entries"])
def test_epochs_are_made_again_from_the_frames(tmp_path: Path, harm: str) -> None:
    write_log(tmp_path, 2)
    write_log(tmp_path, 2, first=4)
    path = tmp_path / "epochs"
    sound = EpochFile(path).entries
    match harm:
        case "damaged":
            flip(path, 20)
        case "emptied":
            path.write_bytes(b"")
        case "missing":
            path.unlink()
        case _:
            EpochFile(path).clear()
    assert inspect(tmp_path).verdict == "unclean"
    assert mend(tmp_path) == [RepairAction.EPOCHS]
    assert EpochFile(path).entries == sound
    assert (inspect(tmp_path).verdict, mend(tmp_path)) == ("sound", [])


def test_what_is_remembered_is_damage_when_it_is_lost_and_the_log_has_it_no_more(
    tmp_path: Path,
) -> None:
    log = write_log(tmp_path, FRAMES, close=False)
    path = tmp_path / "producers"
    older = path.read_bytes()
    path.unlink()
    assert inspect(tmp_path).verdict == "unclean", "the log has everything, and is not closed"
    path.write_bytes(older)
    log.delete_before(5 * ROWS)
    log.close()
    note = "the log begins at offset 15"
    assert [problem.reason for problem in inspect(tmp_path).problems] == [note]
    path.unlink()
    report = inspect(tmp_path)
    assert (report.verdict, Path(report.problems[1].file).name) == ("damaged", "producers")
    expected = "the file is missing; below offset 15 records were removed or rewritten"
    assert report.problems[1].reason == expected
    path.write_bytes(older)
    flip(path, 20)
    assert "CRC does not match; below offset 15" in inspect(tmp_path).problems[1].reason
    ProducerSnapshot(3, ([], []), ([], []), b"", whole=True).save(tmp_path)
    assert "of offset 3, not of this log; below offset 15" in inspect(tmp_path).problems[1].reason
    ProducerSnapshot(24, ([], []), ([], []), b"", whole=True, lost=15).save(tmp_path)
    report = inspect(tmp_path)
    assert report.verdict == "sound"
    assert "below offset 15 was lost once" in report.problems[1].reason


def test_what_is_remembered_must_not_be_older_than_what_was_rewritten(tmp_path: Path) -> None:
    log = CommitLog.open(tmp_path, LogConfig())
    EpochFile(tmp_path / "epochs").begin(1, 0)
    for compacted in (True, False):
        batch = build_batch([record(log.end_offset)])
        body = encode_body(batch)
        header = describe_body(body, batch).at(base_offset=log.end_offset, leader_epoch=1)
        log.append([(replace(header, compacted=compacted), body)])
    log.close()
    ProducerSnapshot(1, ([], []), ([], []), b"", whole=True).save(tmp_path)
    assert inspect(tmp_path).verdict == "sound"
    ProducerSnapshot(0, ([], []), ([], []), b"", whole=True).save(tmp_path)
    assert "of offset 0; below offset 1 records were" in the_problem(tmp_path).reason
    (tmp_path / "producers").unlink()
    assert "is missing; below offset 1 records were" in the_problem(tmp_path).reason
    assert inspect(tmp_path).verdict == "damaged"


def test_epochs_must_not_fall_and_must_be_known(tmp_path: Path) -> None:
    write_log(tmp_path, 2)
    write_log(tmp_path, 2, first=4)
    assert inspect(tmp_path).verdict == "sound"
    (tmp_path / "epochs").unlink()
    assert "epochs up to 5" in the_problem(tmp_path).reason
    EpochFile(tmp_path / "epochs").begin(3, 0)
    reasons = [problem.reason for problem in inspect(tmp_path).problems]
    assert reasons == ["leader epoch 1 where 3 was expected", "leader epoch 5 where 3 was expected"]


def test_a_frame_whose_body_is_not_a_batch_is_damage(tmp_path: Path) -> None:
    write_log(tmp_path, 2)
    log = CommitLog.open(tmp_path, LogConfig())
    log.append([make_frame(6, b"opaque")])
    log.sync()
    log.close()
    problem = the_problem(tmp_path)
    assert (problem.offset, problem.reason) == (6, "schema version 200 is not known")
    assert inspect(tmp_path).verdict == "damaged"


@pytest.mark.parametrize("harm", ["rows", "deltas", "bytes"])
def test_a_body_that_does_not_fit_its_header_is_damage(tmp_path: Path, harm: str) -> None:
    write_log(tmp_path, 1)
    log = CommitLog.open(tmp_path, LogConfig())
    (header, body), *_ = log.frames()
    header = header.at(base_offset=3, leader_epoch=1)
    if harm == "rows":
        header = replace(header, record_count=2, last_offset_delta=1)
    elif harm == "deltas":
        body = encode_body(
            build_batch([record(3)]).set_column(0, SCHEMA.field(0), pa.array([7], pa.int32()))
        )
        header = replace(header, body_length=len(body), body_crc=crc32c(body), record_count=1)
        header = replace(header, compacted=True)
        ProducerSnapshot(6, ([], []), ([], []), b"", whole=True).save(tmp_path)
    else:
        body = b"?" * len(body)
        header = replace(header, body_crc=crc32c(body))
    log.append([(header, body)])
    log.sync()
    log.close()
    expected = {"rows": "3 rows", "deltas": "do not rise to 2", "bytes": "not an Arrow batch"}
    assert expected[harm] in the_problem(tmp_path).reason
    assert (the_problem(tmp_path).offset, inspect(tmp_path).verdict) == (3, "damaged")
