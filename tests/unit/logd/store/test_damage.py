"""Whatever happens to the bytes: what is served is what was written."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.logd.errors import CorruptError, CorruptFrameError, RefusedError
from penstock.logd.storage import CommitLog, LogConfig
from tests.sim.disk import MemoryDisk
from tests.support.frames import make_frames

ROOT = Path("/log")
CONFIG = LogConfig(max_segment_bytes=700, index_interval_bytes=250)
BODIES = [bytes([65 + number]) * (8 * (1 + number % 9)) for number in range(14)]
Served = dict[int, bytes]


def write_log(*, close: bool) -> MemoryDisk:
    disk = MemoryDisk()
    log = CommitLog.open(ROOT, CONFIG, disk=disk)
    for body in BODIES:
        log.append(make_frames(log.end_offset, [body]))
        log.sync()
    if close:
        log.close()
    return disk


def copy_of(disk: MemoryDisk) -> MemoryDisk:
    copy = MemoryDisk()
    copy.make_directory(ROOT)
    for path in files(disk):
        copy.create(path).write(0, [disk.open(path).read(0, 1 << 30)])
    return copy


def files(disk: MemoryDisk) -> list[Path]:
    return [ROOT / name for name in disk.list_directory(ROOT)]


def served_by_frames(log: CommitLog) -> Served:
    """Everything that can be read, going on behind damage."""
    served: Served = {}
    offset = log.start_offset
    while offset < log.end_offset:
        try:
            for header, body in log.frames(offset):
                assert header.base_offset == offset, "damage is never skipped silently"
                offset = header.next_offset
                served[header.base_offset] = body
            break
        except CorruptFrameError as error:
            offset = behind(error, offset)
    return served


def behind(error: CorruptFrameError, offset: int) -> int:
    """Where a reader goes on after damage; always forward."""
    assert error.next_offset > offset
    assert Path(error.file).parent == ROOT
    return error.next_offset


def ranges(log: CommitLog) -> Iterator[tuple[int, bytes]]:
    """Every checked range that `read` gives, going on behind damage."""
    offset = log.start_offset
    while offset < log.end_offset:
        try:
            parts = log.read(offset, bytes_max=400, upto=log.end_offset)
        except CorruptFrameError as error:
            offset = behind(error, offset)
            continue
        assert parts
        for part in parts:
            assert part.base_offset == offset, "damage is never skipped silently"
            yield part.base_offset, part.file.read(part.position, part.length)
            offset = part.next_offset


def expected_range(disk: MemoryDisk) -> dict[int, bytes]:
    """The bytes of each frame, header included."""
    log = CommitLog.open(ROOT, CONFIG, disk=disk)
    found = {}
    for offset in range(log.end_offset):
        (part,) = log.read(offset, bytes_max=1, upto=log.end_offset)
        found[offset] = part.file.read(part.position, part.length)
    return found


def check_served(disk: MemoryDisk, frames: dict[int, bytes]) -> Served | None:
    """Open and read a harmed log; returns what it serves, None if it refuses to open."""
    try:
        log = CommitLog.open(ROOT, CONFIG, disk=disk)
    except (CorruptError, RefusedError):
        return None
    served = served_by_frames(log)
    assert served.items() <= dict(enumerate(BODIES)).items()
    for base, data in ranges(log):
        offset, position = base, 0
        while position < len(data):
            assert data.startswith(frames[offset], position)
            position += len(frames[offset])
            offset += 1
    log.append(make_frames(log.end_offset, [b"new"]))
    log.sync()
    return served


@pytest.mark.parametrize("close", [True, False])
def test_any_flipped_byte_costs_at_most_its_frame(*, close: bool) -> None:
    good = write_log(close=close)
    frames = expected_range(copy_of(good))
    random = Random(7)
    for path in files(good):
        for position in range(good.open(path).size()):
            disk = copy_of(good)
            file = disk.open(path)
            byte = file.read(position, 1)[0]
            file.write(position, [bytes([byte ^ 1 << random.randrange(8)])])
            served = check_served(disk, frames)
            assert served is not None, (path, position)
            lost = set(range(len(BODIES))) - set(served)
            assert len(lost) == (1 if path.suffix == ".log" else 0), (path, position, lost)


@pytest.mark.parametrize("close", [True, False])
def test_any_file_cut_short_serves_nothing_wrong(*, close: bool) -> None:
    good = write_log(close=close)
    frames = expected_range(copy_of(good))
    for path in files(good):
        for size in range(0, good.open(path).size(), 5):
            disk = copy_of(good)
            disk.open(path).truncate(size)
            served = check_served(disk, frames)
            assert served is not None
            if path.suffix != ".log":
                assert len(served) == len(BODIES)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_overwritten_bytes_serve_nothing_wrong(data: st.DataObject) -> None:
    disk = write_log(close=data.draw(st.booleans()))
    frames = expected_range(copy_of(disk))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(files(disk)))
        size = disk.open(path).size()
        position = data.draw(st.integers(0, size))
        source = data.draw(st.sampled_from(files(disk)))
        splice = disk.open(source).read(data.draw(st.integers(0, 600)) // 8 * 8, 300)
        piece = data.draw(st.one_of(st.binary(max_size=300), st.just(splice)))
        disk.open(path).write(position, [piece])
    check_served(disk, frames)


def test_any_missing_file_serves_nothing_wrong() -> None:
    good = write_log(close=True)
    frames = expected_range(copy_of(good))
    for path in files(good):
        disk = copy_of(good)
        disk.unlink(path)
        served = check_served(disk, frames)
        assert served is not None
        assert path.suffix == ".log" or len(served) == len(BODIES)


def test_a_reader_gets_past_a_frame_that_was_copied_over_the_end_of_a_block() -> None:
    disk = write_log(close=False)
    frames = expected_range(copy_of(disk))
    (path,) = (path for path in files(disk) if path.name == "00000000000000000000.log")
    log = disk.open(path)
    log.write(32, [log.read(96, 300)])
    served = check_served(disk, frames)
    assert served is not None
    assert len(served) < len(BODIES)


def test_sound_frame_inside_damage_that_reaches_over_a_block_is_not_served() -> None:
    disk = write_log(close=False)
    frames = expected_range(copy_of(disk))
    first = disk.open(files(disk)[1])
    first.write(160, [first.read(0, 300)])
    served = check_served(disk, frames)
    assert served is not None
    assert len(served) < len(BODIES)


def test_records_missing_before_a_sound_frame_do_not_hide_it() -> None:
    disk = write_log(close=True)
    frames = expected_range(copy_of(disk))
    last = disk.open(ROOT / "00000000000000000011.log")
    last.write(0, [last.read(112, 300)])
    served = check_served(disk, frames)
    assert served is not None
    assert 12 in served
