"""What was remembered and is lost is told, unless the log still has it."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.logd.format.batch import Record, build_batch, describe_body, encode_body
from penstock.logd.intake.dedup import Dedup, ProducerState
from penstock.logd.intake.intake import Intake
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.producer_snapshot import FILE_NAME, ProducerSnapshot
from penstock.logd.partition.rebuild import rebuild_intake
from penstock.logd.storage import CommitLog, LogConfig

SECOND = 1_000_000_000
NOW_NS = 1_000_000 * SECOND
CONFIG = StreamConfig(name="logs", subject="t.>", dedup_window_s=120)
PRODUCER = b"p" * 16


def append(log: CommitLog, *, compacted: bool = False) -> None:
    """A frame of one record, of a producer unless it was rewritten."""
    rows = build_batch([Record("t.a", b"x", 1)])
    body = encode_body(rows)
    sequence = 0 if compacted else log.end_offset + 1
    header = describe_body(
        body, rows, producer_id=bytes(16) if compacted else PRODUCER, producer_sequence=sequence
    ).at(base_offset=log.end_offset, leader_epoch=1)
    log.append([(replace(header, compacted=compacted), body)])
    log.roll()


def rebuilt(log: CommitLog) -> Dedup:
    intake = Intake(CONFIG, next_offset=log.end_offset, epoch=1, streams_for=lambda _: ())
    rebuild_intake(intake, log, NOW_NS)
    return intake.dedup


@pytest.mark.parametrize("damage", [b"", b"PNSR" + bytes(40), None])
def test_a_lost_memory_is_none_as_long_as_the_log_has_everything(
    tmp_path: Path, damage: bytes | None
) -> None:
    log = CommitLog.open(tmp_path, LogConfig())
    append(log)
    append(log)
    rebuilt(log)
    _damage(tmp_path / FILE_NAME, damage)
    again = rebuilt(log)
    last = again.producers.last(PRODUCER)
    assert (last and last.sequence, again.lost, again.lost_until_ns) == (2, 0, 0)


@pytest.mark.parametrize("damage", [b"", b"PNSR" + bytes(40), None])
def test_a_lost_memory_of_rewritten_frames_is_told_once_and_kept_in_mind(
    tmp_path: Path, damage: bytes | None
) -> None:
    log = CommitLog.open(tmp_path, LogConfig())
    append(log, compacted=True)
    append(log)
    ProducerSnapshot(1, ([], []), ([], []), b"", whole=True).save(tmp_path)
    assert rebuilt(log).lost == 0, "the file has it"
    _damage(tmp_path / FILE_NAME, damage)
    again = rebuilt(log)
    assert (again.lost, again.lost_until_ns) == (1, NOW_NS + 120 * SECOND)
    later = rebuilt(log)
    assert (later.lost, later.lost_until_ns) == (1, 0)


def test_a_memory_of_before_the_rewriting_is_told(tmp_path: Path) -> None:
    log = CommitLog.open(tmp_path, LogConfig())
    append(log)
    append(log, compacted=True)
    ProducerSnapshot(1, ([PRODUCER], [_state()]), ([], []), b"", whole=True).save(tmp_path)
    again = rebuilt(log)
    assert (again.lost, again.producers.last(PRODUCER)) == (2, _state())


def test_a_lost_memory_of_deleted_records_is_told(tmp_path: Path) -> None:
    log = CommitLog.open(tmp_path, LogConfig())
    append(log)
    append(log)
    log.delete_before(1)
    assert rebuilt(log).lost == 1


def _state() -> ProducerState:
    return ProducerState(1, 0, NOW_NS)


def _damage(path: Path, data: bytes | None) -> None:
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)


def test_a_snapshot_of_records_that_are_gone_is_removed(tmp_path: Path) -> None:
    """Else it would be believed when others are in their place."""
    log = CommitLog.open(tmp_path, LogConfig())
    append(log)
    ProducerSnapshot(3, ([PRODUCER], [_state()]), ([], []), b"", whole=True).save(tmp_path)
    intake = Intake(CONFIG, next_offset=log.end_offset, epoch=1, streams_for=lambda _: ())
    rebuild_intake(intake, log, NOW_NS, save=False)
    assert not (tmp_path / FILE_NAME).exists()


def test_ids_of_a_purged_log_whose_snapshot_has_none_are_told_to_be_lost(tmp_path: Path) -> None:
    """As earlier versions left it."""
    log = CommitLog.open(tmp_path, LogConfig())
    append(log)
    append(log)
    ProducerSnapshot(2, ([PRODUCER], [_state()]), ([], []), b"", whole=False).save(tmp_path)
    log.delete_before(1)
    assert rebuilt(log).lost == 1
    assert rebuilt(log).whole, "from now on they are written down"


def test_a_checksum_is_the_same_after_a_start_whatever_was_written_down_when(
    tmp_path: Path,
) -> None:
    log = CommitLog.open(tmp_path, LogConfig())
    intake = Intake(CONFIG, next_offset=0, epoch=1, streams_for=lambda _: ())
    for offset in range(6):
        append(log)
        intake.dedup.record_batch(PRODUCER, offset + 1, offset, NOW_NS)
        intake.next_offset = offset + 1
    intake.dedup.committed(2)
    memory = ProducerSnapshot.of(intake, 2)
    assert memory.offset == 2
    (tmp_path / FILE_NAME).unlink(missing_ok=True)
    for saved in (False, True):
        if saved:
            memory.save(tmp_path)
        again = Intake(CONFIG, next_offset=6, epoch=1, streams_for=lambda _: ())
        rebuild_intake(again, log, NOW_NS, save=False, committed=3)
        ends = range(2, 7)
        sums = [again.dedup.checksum.at(end) for end in ends]
        assert sums == [intake.dedup.checksum.at(end) for end in ends]
        states = again.dedup.producers.snapshot(4)[1]
        assert [state.sequence for state in states] == [4]
