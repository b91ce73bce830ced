import errno
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.logd.errors import LogFailedError, RefusedError
from penstock.logd.format.batch import Record, build_batch, describe_body, encode_body
from penstock.logd.format.frame import HEADER_SIZE, FrameHeader, decode_header
from penstock.logd.storage import CommitLog, LogConfig
from penstock.logd.storage.segment import OPEN_FILES_MAX
from tests.sim.disk import MemoryDisk
from tests.support.frames import make_frame, make_frames

BODY = b"x" * 104
FRAME = HEADER_SIZE + len(BODY)
CONFIG = LogConfig(max_segment_bytes=5 * FRAME, index_interval_bytes=2 * FRAME)


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    return CommitLog.open(tmp_path / "log", CONFIG)


def add(log: CommitLog, count: int, *, each: int = 1) -> None:
    for _ in range(count):
        log.append(make_frames(log.end_offset, [BODY] * each))
    log.sync()


def offsets(log: CommitLog, offset: int = 0, upto: int | None = None) -> list[int]:
    return [header.base_offset for header, _ in log.frames(offset, upto=upto)]


def bases(log: CommitLog, offset: int, bytes_max: int, upto: int) -> list[int]:
    """Base offsets of the frames in the bytes that `read` gives, read from the descriptors."""
    found = []
    for part in log.read(offset, bytes_max=bytes_max, upto=upto):
        data = os.pread(part.file.fileno(), part.length, part.position)
        assert decode_header(data).base_offset == part.base_offset
        position = 0
        header = None
        while position < len(data):
            header = decode_header(data[position:])
            found.append(header.base_offset)
            position += header.frame_length
        assert position == part.length
        assert header is not None
        assert header.next_offset == part.next_offset
    return found


def test_append_is_readable_before_it_is_synced(log: CommitLog) -> None:
    log.append(make_frames(0, [BODY, BODY]))
    assert (log.end_offset, log.synced_offset) == (2, 0)
    assert offsets(log) == [0, 1]
    assert log.sync() == 2
    assert log.synced_offset == 2


def test_append_asserts_dense_offsets(log: CommitLog) -> None:
    with pytest.raises(AssertionError):
        log.append([make_frame(1, BODY)])


def test_append_of_nothing_changes_nothing(log: CommitLog) -> None:
    log.append([])
    assert (log.end_offset, log.size_bytes) == (0, 0)


def test_segments_roll_by_bytes(log: CommitLog) -> None:
    add(log, 12)
    assert log.segment_count == 3
    assert log.size_bytes == 12 * FRAME
    assert offsets(log) == list(range(12))


def test_segments_roll_by_age(tmp_path: Path) -> None:
    now = 0
    config = LogConfig(segment_age_s_max=10)
    log = CommitLog.open(tmp_path, config, now_ns=lambda: now)
    add(log, 1)
    now = 9_999_999_999
    add(log, 1)
    assert log.segment_count == 1
    now = 10_000_000_000
    add(log, 1)
    assert log.segment_count == 2


def test_one_append_is_never_split(log: CommitLog) -> None:
    add(log, 1, each=9)
    assert log.segment_count == 1
    add(log, 1)
    assert log.segment_count == 2


def test_roll_of_an_empty_segment_does_nothing(log: CommitLog) -> None:
    log.roll()
    assert log.segment_count == 1
    add(log, 1)
    log.roll()
    log.roll()
    assert (log.segment_count, log.end_offset, log.synced_offset) == (2, 1, 1)


@pytest.mark.parametrize("each", [1, 3])
def test_read_gives_whole_frames_within_bounds(log: CommitLog, each: int) -> None:
    add(log, 6, each=each)
    end = log.end_offset
    for offset in range(end):
        for upto in range(offset + 1, end + 1):
            for frames_max in (1, 2, 4, 7, 99):
                wanted = list(range(offset, min(upto, offset + frames_max)))
                assert bases(log, offset, frames_max * FRAME + 8, upto) == wanted


def test_read_gives_one_frame_whatever_its_size(log: CommitLog) -> None:
    add(log, 3)
    assert bases(log, 1, 1, 3) == [1]


def test_read_leaves_out_frames_that_pass_upto(log: CommitLog) -> None:
    log.append([make_frame(0, BODY, records=4), make_frame(4, BODY, records=4)])
    assert bases(log, 0, 9999, 7) == [0]
    assert bases(log, 5, 9999, 7) == []
    assert bases(log, 2, 9999, 8) == [0, 4]


def test_read_at_the_end_gives_nothing(log: CommitLog) -> None:
    add(log, 2)
    assert log.read(2, bytes_max=100, upto=2) == []
    assert log.read(2, bytes_max=100, upto=99) == []


@pytest.mark.parametrize("offset", [-1, 4, 13])
def test_offsets_outside_the_log_are_refused_with_the_valid_range(
    log: CommitLog, offset: int
) -> None:
    add(log, 12)
    log.delete_before(5)
    for call in (
        lambda: log.read(offset, bytes_max=1, upto=99),
        lambda: list(log.frames(offset)),
        lambda: list(log.headers(offset)),
        lambda: log.truncate_to(offset),
    ):
        with pytest.raises(RefusedError) as caught:
            call()
        assert caught.value.code == "OUT_OF_RANGE"
        assert caught.value.detail == {"earliest": 5, "latest": 12}


def test_frames_begin_with_the_frame_that_holds_the_offset(log: CommitLog) -> None:
    log.append([make_frame(0, BODY, records=10), make_frame(10, BODY, records=10)])
    assert offsets(log, 9) == [0, 10]
    assert offsets(log, 10) == [10]
    assert offsets(log, 0, 10) == [0]
    assert [header.base_offset for header in log.headers(15)] == [10]


def test_truncate_removes_whole_frames_and_segments(log: CommitLog, tmp_path: Path) -> None:
    add(log, 13)
    log.truncate_to(7)
    assert (log.end_offset, log.synced_offset, log.segment_count) == (7, 7, 2)
    add(log, 1)
    assert offsets(log) == list(range(8))
    log.truncate_to(5)
    assert (log.end_offset, log.segment_count) == (5, 1)
    log.truncate_to(0)
    assert (log.end_offset, offsets(log)) == (0, [])
    add(log, 1)
    log.close()
    assert offsets(CommitLog.open(tmp_path / "log", CONFIG)) == [0]


def test_truncate_inside_a_frame_removes_the_frame(log: CommitLog) -> None:
    log.append([make_frame(0, BODY, records=4), make_frame(4, BODY, records=4)])
    log.truncate_to(6)
    assert (log.end_offset, log.synced_offset) == (4, 4)


def test_delete_removes_only_whole_sealed_segments(log: CommitLog, tmp_path: Path) -> None:
    add(log, 13)
    assert log.delete_before(4) == 0
    assert log.delete_before(5) == 5
    assert log.delete_before(99) == 10
    assert offsets(log, 10) == [10, 11, 12]
    names = {path.name for path in (tmp_path / "log").iterdir()}
    assert names == {f"{10:020d}.log", "synced"}


def test_ranges_outlive_deletion_and_close(log: CommitLog) -> None:
    add(log, 6)
    (part,) = log.read(0, bytes_max=3 * FRAME, upto=6)
    log.delete_before(5)
    log.close()
    data = os.pread(part.file.fileno(), part.length, part.position)
    assert decode_header(data).base_offset == 0


def test_sealed_files_are_not_kept_open_for_ever(tmp_path: Path) -> None:
    log = CommitLog.open(tmp_path, LogConfig(max_segment_bytes=FRAME))
    add(log, 60)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert offsets(log) == list(range(60))
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 10
    log.close()


def test_timestamps_find_the_first_record_not_earlier(log: CommitLog) -> None:
    for base, (first, greatest) in enumerate([(10, 10), (30, 30), (20, 20), (30, 30), (50, 50)]):
        log.append([make_frame(base, BODY, timestamp_ns=first, max_timestamp_ns=greatest)])
    wanted = {0: 0, 10: 0, 11: 1, 20: 1, 30: 1, 31: 4, 50: 4, 51: 5}
    assert {time: log.offset_for_timestamp(time) for time in wanted} == wanted


def test_timestamps_are_found_across_segments(log: CommitLog) -> None:
    add(log, 23)
    assert [log.offset_for_timestamp(time) for time in range(25)] == [*range(23), 23, 23]


def test_timestamps_find_the_row_in_an_arrow_batch(log: CommitLog) -> None:
    times = [5, 9, 7, 12, 40]
    body = encode_body(build_batch([Record("a", b"v", time) for time in times]))
    batch = build_batch([Record("a", b"v", time) for time in times])
    log.append(
        [make_frame(0, BODY), (describe_body(body, batch).at(base_offset=1, leader_epoch=1), body)]
    )
    wanted = {5: 1, 6: 2, 9: 2, 10: 4, 13: 5, 40: 5, 41: 6}
    assert {time: log.offset_for_timestamp(time) for time in wanted} == wanted


class FailingDisk(MemoryDisk):
    """A disk whose next operation of a kind fails."""

    def break_next(self, operation: str) -> None:
        armed = [operation]

        def fail(name: str, _path: Path) -> bool:
            if armed and armed[0] == name:
                armed.clear()
                return True
            return False

        self.fail = fail


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_failed_log_refuses_writes_and_serves_what_was_synced(operation: str) -> None:
    disk = FailingDisk()
    log = CommitLog.open(Path("/log"), CONFIG, disk=disk)
    add(log, 3)
    disk.break_next(operation)
    with pytest.raises(LogFailedError, match="error"):
        add(log, 1)
    for _ in range(2):
        with pytest.raises(
            LogFailedError, match=f"{'append' if operation == 'write' else 'sync'} failed"
        ):
            add(log, 1)
        with pytest.raises(LogFailedError):
            log.sync()
    assert offsets(log) == [0, 1, 2]
    assert [part.next_offset for part in log.read(0, bytes_max=9999, upto=99)] == [3]
    log.close()
    again = CommitLog.open(Path("/log"), CONFIG, disk=disk)
    assert (again.end_offset, offsets(again)) == (3, [0, 1, 2])
    add(again, 1)


def test_full_disk_leaves_no_phantom_offset() -> None:
    for free in range(0, 3 * FRAME, 13):
        disk = MemoryDisk()
        log = CommitLog.open(Path("/log"), CONFIG, disk=disk)
        add(log, 1)
        disk.free_bytes = free
        with pytest.raises(LogFailedError, match=os.strerror(errno.ENOSPC)):
            log.append(make_frames(1, [BODY, BODY, BODY]))
        assert log.end_offset == 1
        disk.free_bytes = 1 << 40
        again = CommitLog.open(Path("/log"), CONFIG, disk=disk)
        assert again.end_offset == 1


@pytest.mark.parametrize("operation", ["create", "rename", "sync_directory"])
def test_failed_roll_fails_the_log_and_loses_nothing_synced(operation: str) -> None:
    disk = FailingDisk()
    log = CommitLog.open(Path("/log"), CONFIG, disk=disk)
    add(log, 5)
    disk.break_next(operation)
    with pytest.raises(LogFailedError, match="roll failed"):
        add(log, 1)
    again = CommitLog.open(Path("/log"), CONFIG, disk=disk)
    assert offsets(again) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("refused", [".log", ".tmp"])
def test_without_room_for_a_new_segment_the_log_goes_on_in_the_one_it_has(refused: str) -> None:
    disk = MemoryDisk()
    log = CommitLog.open(Path("/log"), CONFIG, disk=disk)
    add(log, 5)

    def refuse(operation: str, path: Path) -> bool:
        if operation == "create" and path.suffix == refused:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return False

    disk.fail = refuse
    assert not log.roll()
    add(log, 2)
    disk.fail = lambda _operation, _path: False
    assert (log.failure, log.segment_count, offsets(log)) == ("", 1, [0, 1, 2, 3, 4, 5, 6])
    again = CommitLog.open(Path("/log"), CONFIG, disk=disk)
    assert (again.segment_count, offsets(again)) == (1, [0, 1, 2, 3, 4, 5, 6])
    add(again, 1)
    assert (again.segment_count, offsets(again)) == (2, [0, 1, 2, 3, 4, 5, 6, 7])


def test_closed_log_refuses_writes(log: CommitLog) -> None:
    log.close()
    log.close()
    with pytest.raises(LogFailedError, match="closed"):
        log.append(make_frames(0, [BODY]))


def test_failed_log_closes(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = CommitLog.open(Path("/log"), CONFIG, disk=disk)
    log.append(make_frames(0, [BODY]))
    disk.break_next("sync")
    with pytest.raises(LogFailedError):
        log.close()
    log.close()


def read_in_order(log: CommitLog, count: int, bytes_max: int) -> None:
    """Read up to `count`, as the log grows and is deleted, checking that no frame is torn."""
    offset = 0
    while offset < count:
        try:
            parts = log.read(offset, bytes_max=bytes_max, upto=log.end_offset)
        except RefusedError as error:
            offset = int(error.detail["earliest"])
            continue
        for part in parts:
            data = os.pread(part.file.fileno(), part.length, part.position)
            for position in range(0, part.length, FRAME):
                header = decode_header(data[position:])
                assert header.base_offset == offset
                offset = header.next_offset
        if not parts:
            os.sched_yield()


def test_readers_in_other_threads_see_whole_frames_in_order(tmp_path: Path) -> None:
    config = LogConfig(max_segment_bytes=50 * FRAME, index_interval_bytes=5 * FRAME)
    log = CommitLog.open(tmp_path, config)
    count = 600
    with ThreadPoolExecutor() as threads:
        readers = [threads.submit(read_in_order, log, count, size) for size in (500, 100_000)]
        while log.end_offset < count:
            log.append(make_frames(log.end_offset, [BODY] * 5))
            if log.end_offset % 200 == 0:
                # The deleting thread syncs: a file that goes while it is synced fails the log.
                log.sync()
                log.delete_before(log.end_offset - 100)
        for reader in readers:
            reader.result(timeout=30)
    assert log.sync() == count


def test_a_file_that_one_reader_lets_go_is_opened_again_for_another(tmp_path: Path) -> None:
    config = LogConfig(max_segment_bytes=FRAME, index_interval_bytes=5 * FRAME)
    log = CommitLog.open(tmp_path, config)
    count = OPEN_FILES_MAX + 4
    for _ in range(count):
        log.append(make_frames(log.end_offset, [BODY]))

    def read_again_and_again() -> None:
        for _ in range(500):
            assert [header.base_offset for header, _ in log.frames(0)] == list(range(count))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor() as threads:
            for reader in [threads.submit(read_again_and_again) for _ in range(4)]:
                reader.result(timeout=60)
    finally:
        sys.setswitchinterval(interval)


def test_headers_do_not_read_bodies(log: CommitLog, tmp_path: Path) -> None:
    add(log, 2)
    path = tmp_path / "log" / f"{0:020d}.log"
    with path.open("r+b") as file:
        file.seek(HEADER_SIZE)
        file.write(b"?")
    headers: list[FrameHeader] = list(log.headers())
    assert [header.base_offset for header in headers] == [0, 1]


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("max_segment_bytes", (-1, 0, 87, (1 << 40) + 1)),
        ("index_interval_bytes", (-1, 0, (1 << 30) + 1)),
        ("segment_age_s_max", (-1.0, 0.0, float("nan"))),
    ],
)
def test_a_configuration_out_of_range_is_refused(field: str, values: tuple[float, ...]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"{field} is .* must be"):
            LogConfig(**{field: value})  # type: ignore[arg-type]
    least = LogConfig(max_segment_bytes=88, index_interval_bytes=1, segment_age_s_max=0.1)
    assert least.max_segment_bytes == 88
