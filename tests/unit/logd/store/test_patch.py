"""Damaged ranges are filled with frames of another replica, and nothing else changes."""

import errno
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.logd.errors import CorruptFrameError, RefusedError
from penstock.logd.format.batch import Record, decode_body
from penstock.logd.format.frame import HEADER_SIZE, FrameHeader, parse_frames
from penstock.logd.format.rows import batch_records
from penstock.logd.storage import CommitLog, LogConfig, SegmentMerger
from penstock.logd.storage.segment import segment_path
from tests.sim.disk import MemoryDisk
from tests.sim.power import Power, PowerLossError
from tests.support.frames import make_batch_frame, make_frame, make_frames
from tests.unit.logd.store.test_recovery import rows

Frame = tuple[FrameHeader, bytes]
ROOT = Path("/log")
CONFIG = LogConfig(max_segment_bytes=1 << 20, index_interval_bytes=1500)
SPANS = (3, 1, 4, 2)
"""Records of the frames of each segment."""
EACH = sum(SPANS)
SEGMENTS = 3
END = EACH * SEGMENTS


def record(offset: int) -> Record:
    return Record("t.a", b"value %d" % offset, 1_000 + offset, b"k%d" % (offset % 3))


def frames_of(spans: Sequence[int], base: int = 0) -> list[Frame]:
    frames = []
    for count in spans:
        records = [record(base + n) for n in range(count)]
        frames.append(make_batch_frame(base, records, producer_id=b"p" * 16)[:2])
        base += count
    return frames


SOUND = frames_of(SPANS * SEGMENTS)


def write_log(disk: MemoryDisk) -> CommitLog:
    """Two sealed segments and an active one, of four frames each."""
    log = CommitLog.open(ROOT, CONFIG, disk=disk)
    for number, frame in enumerate(SOUND):
        log.append([frame])
        log.sync()
        if number % 4 == 3 and number < len(SOUND) - 1:
            log.roll()
    return log


def harm(disk: MemoryDisk, number: int, *, header: bool = False) -> tuple[int, int]:
    """Damage a frame on the disk; the offsets that it holds."""
    segment = number // 4
    position = sum(h.frame_length for h, _ in SOUND[4 * segment : number])
    inode = disk.inode(segment_path(ROOT, segment * EACH))
    at = position + (20 if header else HEADER_SIZE + 40)
    inode.seen[at] ^= 0x40
    inode.durable[at : at + 1] = inode.seen[at : at + 1]
    frame_header, _ = SOUND[number]
    return frame_header.base_offset, frame_header.next_offset


def read(log: CommitLog) -> tuple[list[Frame], list[tuple[int, int]]]:
    """What can be read, and which ranges cannot."""
    frames, holes, offset = [], [], log.start_offset
    while offset < log.end_offset:
        try:
            for frame in log.frames(offset):
                assert frame[0].base_offset == offset, "a gap that nobody reported"
                offset = frame[0].next_offset
                frames.append(frame)
        except CorruptFrameError as error:
            holes.append((error.offset, error.next_offset))
            offset = error.next_offset
    return frames, holes


def ranges(log: CommitLog) -> list[Frame]:
    """What is sent as it lies in the files: damage that is known is not."""
    frames, offset = [], log.start_offset
    while offset < log.end_offset:
        try:
            for part in log.read(offset, bytes_max=1 << 20, upto=log.end_offset):
                frames += parse_frames(part.file.read(part.position, part.length))
                offset = part.next_offset
        except CorruptFrameError as error:
            offset = error.next_offset
    return frames


def contents(disk: MemoryDisk) -> bytes:
    names = [name for name in disk.list_directory(ROOT) if name.endswith(".log")]
    return b"".join(disk.open(ROOT / name).read(0, 1 << 20) for name in names)


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("reopened", [True, False])
@pytest.mark.parametrize("number", range(12))
def test_a_damaged_frame_is_put_back(*, number: int, reopened: bool, header: bool) -> None:
    disk = MemoryDisk()
    log = write_log(disk)
    hole = harm(disk, number, header=header)
    if reopened:
        log.close()
        for name in disk.list_directory(ROOT):
            if name.endswith("index"):
                disk.unlink(ROOT / name)
        log = CommitLog.open(ROOT, CONFIG, disk=disk)
    assert read(log) == ([frame for frame in SOUND if frame is not SOUND[number]], [hole])
    assert log.damaged() == [hole]
    assert log.patch(*hole, [SOUND[number]])
    assert log.damaged() == []
    assert read(log) == (SOUND, [])
    log.append(frames_of([2], END))
    log.sync()
    log.close()
    again = CommitLog.open(ROOT, CONFIG, disk=disk)
    assert (rows(again), again.damaged()) == ("", [])
    assert read(again) == ([*SOUND, *frames_of([2], END)], [])


def test_what_reaches_beyond_the_damage_is_cut_down_to_it() -> None:
    disk = MemoryDisk()
    log = write_log(disk)
    (first, upto) = harm(disk, 2)
    read(log)
    (whole,) = frames_of([EACH - 1])
    (after,) = frames_of([5], EACH - 1)
    assert log.patch(first, upto, [whole, after])
    frames, holes = read(log)
    assert holes == []
    assert [*frames[:2], *frames[3:]] == [*SOUND[:2], *SOUND[3:]]
    header, body = frames[2]
    assert (header.base_offset, header.next_offset, header.record_count) == (4, 8, 4)
    assert (header.compacted, header.producer_id) == (True, bytes(16))
    assert (header.first_timestamp_ns, header.max_timestamp_ns) == (1_004, 1_007)
    assert list(batch_records(header, decode_body(body))) == [(n, record(n)) for n in range(4, 8)]


def test_damage_elsewhere_in_the_segment_stays_until_its_own_patch() -> None:
    for order in ([0, 2, 3], [3, 0, 2], [2, 3, 0]):
        disk = MemoryDisk()
        log = write_log(disk)
        holes = {number: harm(disk, number) for number in order}
        read(log)
        begin = sum(h.frame_length for h, _ in SOUND[: order[-1]])
        harmed = contents(disk)[begin:][: SOUND[order[-1]][0].frame_length]
        for number in order:
            assert harmed in contents(disk), "it may be of use to people"
            assert log.damaged() == sorted(holes.values())
            assert read(log)[1] == sorted(holes.values())
            assert log.patch(*holes.pop(number), [SOUND[number]])
            assert ranges(log) == read(log)[0]
            log.close()
            log = CommitLog.open(ROOT, CONFIG, disk=disk)
        assert read(log) == (SOUND, [])


def test_a_part_of_damage_is_filled_and_the_rest_is_told() -> None:
    for part, whole in ((1, "before"), (2, "after")):
        disk = MemoryDisk()
        log = write_log(disk)
        holes = [harm(disk, number, header=True) for number in (1, 2)]
        assert read(log)[1] == [(3, 8)]
        assert log.patch(*holes[part - 1], [SOUND[part]]), whole
        left = [hole for hole in holes if hole != holes[part - 1]]
        assert log.damaged() == left
        assert ranges(log) == read(log)[0]
        assert read(log) == ([f for n, f in enumerate(SOUND) if n != 3 - part], left)
        log.close()
        log = CommitLog.open(ROOT, CONFIG, disk=disk)
        assert log.damaged() == left
        assert read(log)[1] == left
        assert log.patch(*left[0], [SOUND[3 - part]])
        assert read(log) == (SOUND, [])


def test_a_lost_segment_is_filled_into_the_one_before() -> None:
    disk = MemoryDisk()
    write_log(disk).close()
    disk.unlink(segment_path(ROOT, EACH))
    log = CommitLog.open(ROOT, CONFIG, disk=disk)
    assert log.damaged() == [(EACH, 2 * EACH)]
    assert log.patch(EACH, 2 * EACH, SOUND[4:8])
    assert read(log) == (SOUND, [])
    assert rows(CommitLog.open(ROOT, CONFIG, disk=disk)) == ""


def test_a_range_that_is_sound_by_now_is_left_alone() -> None:
    disk = MemoryDisk()
    log = write_log(disk)
    assert harm(disk, 1) == (3, 4)
    assert read(log)[1] == log.damaged() == [(3, 4)]
    harm(disk, 1)  # the same bit again: it is as it was
    disk.fail = lambda operation, _: operation == "rename"  # nothing is to be replaced
    assert log.patch(3, 4, frames_of([6]))
    assert log.damaged() == []
    assert read(log) == (SOUND, [])
    assert not [name for name in disk.list_directory(ROOT) if "swap" in name]


def test_a_frame_that_cannot_be_cut_down_changes_nothing() -> None:
    disk = MemoryDisk()
    log = write_log(disk)
    hole = harm(disk, 2)
    read(log)
    with pytest.raises(RefusedError, match="schema version 200 cannot be cut down"):
        log.patch(*hole, [make_frame(0, b"opaque", records=EACH)])
    assert log.damaged() == [hole]
    assert log.patch(*hole, make_frames(4, [b"opaque"] * 4)), "as they came, they may be anything"
    assert read(log)[1] == []


def test_a_full_disk_leaves_the_damage_and_the_log_goes_on() -> None:
    disk = MemoryDisk()
    log = write_log(disk)
    hole = harm(disk, 2)
    read(log)
    disk.free_bytes = 100
    with pytest.raises(OSError, match="No space left") as error:
        log.patch(*hole, [SOUND[2]])
    assert error.value.errno == errno.ENOSPC
    disk.free_bytes = 1 << 60
    assert (log.failure, log.damaged()) == ("", [hole])
    log.append(frames_of([2], END))
    assert log.patch(*hole, [SOUND[2]])


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_damage_is_filled_from_a_log_that_compaction_has_rewritten(data: st.DataObject) -> None:
    """Sound frames stay, and each record is ours or, where it was lost, the other replica's."""
    disk = MemoryDisk()
    log = write_log(disk)
    dropped = data.draw(st.sets(st.integers(0, END - 1)))
    merger = SegmentMerger(lambda header, _: [n not in dropped for n in offsets_of(header)])
    spans = data.draw(st.lists(st.integers(1, 7), min_size=END, max_size=END))
    other: list[Frame] = []
    for count in spans:
        base = other[-1][0].next_offset if other else 0
        if base < END:
            other += frames_of([min(count, END - base)], base)
    if data.draw(st.booleans()):
        other = [new for frame in other for new in merger.take(*frame)] + [*merger.finish()]
    else:
        dropped = set()
    for number in data.draw(st.sets(st.integers(0, 11), min_size=1)):
        harm(disk, number, header=data.draw(st.booleans()))
    left, holes = read(log)
    assert log.damaged() == holes
    for first, upto in holes:
        covering = [f for f in other if f[0].base_offset < upto and first < f[0].next_offset]
        assert log.patch(first, upto, covering)
    frames, still = read(log)
    assert still == []
    assert [frame for frame in frames if frame in left] == left
    found = {n for h, b in frames for n, _ in checked_records(h, b)}
    lost = {n for first, upto in holes for n in range(first, upto)}
    assert found == set(range(END)) - (lost & dropped)


def offsets_of(header: FrameHeader) -> range:
    return range(header.base_offset, header.next_offset)


def checked_records(header: FrameHeader, body: bytes) -> list[tuple[int, Record]]:
    found = list(batch_records(header, decode_body(body)))
    assert all(got == record(offset) for offset, got in found)
    return found


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("number", [1, 10])
def test_n_a_power_loss_at_every_step_leaves_the_damage_or_what_came(
    number: int, *, header: bool
) -> None:
    random, operations, went, seen = Random(number), 0, True, set[str]()
    while went:
        operations += 1
        for _ in range(6):
            disk = MemoryDisk()
            log = write_log(disk)
            hole = harm(disk, number, header=header)
            read(log)
            power = Power(disk)
            power.goes_after(operations)
            disk.fail = power.fails
            went = False
            try:
                assert log.patch(*hole, [SOUND[number]])
            except PowerLossError:
                went = True
            disk.crash(random)
            again = CommitLog.open(ROOT, CONFIG, disk=disk)
            frames, holes = read(again)
            if holes:
                assert went, "it had returned"
                assert (frames, holes) == ([f for f in SOUND if f is not SOUND[number]], [hole])
            else:
                assert frames == SOUND
            seen.add("damaged" if holes else "mended")
            assert again.patch(*hole, [SOUND[number]])
            assert read(again) == (SOUND, [])
    assert seen == {"damaged", "mended"}
    assert operations > 8


def test_a_log_is_truncated_above_its_damage_and_in_it() -> None:
    for upto, end, left in ((9, 8, [(4, 8)]), (6, 4, []), (3, 3, [])):
        disk = MemoryDisk()
        log = write_log(disk)
        assert harm(disk, 2, header=True) == (4, 8)
        read(log)
        log.truncate_to(upto)
        assert (log.end_offset, log.damaged()) == (end, left)
        log.append(frames_of([2], end))
        log.sync()
        again = CommitLog.open(ROOT, CONFIG, disk=disk)
        assert (again.end_offset, again.damaged(), read(again)[1]) == (end + 2, left, left)


def test_damage_that_is_met_on_the_way_is_known_from_then_on() -> None:
    disk = MemoryDisk()
    log = write_log(disk)
    first, other = harm(disk, 0), harm(disk, 3)
    with pytest.raises(CorruptFrameError):
        next(log.frames())
    assert log.damaged() == [first]
    assert log.patch(*first, SOUND[:1])
    assert log.damaged() == [other]
