"""One test or more for each row of the recovery table; their names begin with its letter."""

import weakref
from pathlib import Path

import pytest
from typing_extensions import override

from penstock.logd.errors import CorruptError, CorruptFrameError, RefusedError
from penstock.logd.format.frame import HEADER_SIZE, crc32c, encode_header
from penstock.logd.storage import CommitLog, LogConfig
from penstock.logd.storage.checkpoint import FILE_NAME as MARK
from penstock.logd.storage.disk import File, RealDisk
from penstock.logd.storage.index import OFFSET_MAGIC
from penstock.logd.storage.segment import OPEN_FILES_MAX, segment_path
from tests.support.frames import make_frame, make_frames

CONFIG = LogConfig(max_segment_bytes=1000, index_interval_bytes=300)
BODIES = [bytes([65 + number]) * 104 for number in range(20)]
FRAME = HEADER_SIZE + 104
PER_SEGMENT = 1000 // FRAME


def fill(directory: Path, count: int = 4, *, close: bool = False) -> CommitLog:
    """A log of `count` frames, each synced; not closed, as after a kill, unless asked."""
    log = CommitLog.open(directory, CONFIG)
    for body in BODIES[:count]:
        log.append(make_frames(log.end_offset, [body]))
        log.sync()
    if close:
        log.close()
    return log


def reopen(directory: Path) -> CommitLog:
    return CommitLog.open(directory, CONFIG)


def rows(log: CommitLog) -> str:
    return "".join(finding.row for finding in log.recovery.findings)


def bodies(log: CommitLog, offset: int = 0) -> list[bytes]:
    return [body for _, body in log.frames(offset)]


def patch(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip(path: Path, position: int) -> None:
    patch(path, position, bytes([path.read_bytes()[position] ^ 0x10]))


def test_a_missing_directory_is_made(tmp_path: Path) -> None:
    log = CommitLog.open(tmp_path / "a" / "b", CONFIG)
    assert (log.start_offset, log.end_offset, rows(log)) == (0, 0, "")
    assert (tmp_path / "a" / "b" / f"{0:020d}.log").exists()


def test_b_clean_close_is_trusted_without_a_scan(tmp_path: Path) -> None:
    fill(tmp_path, 12, close=True)
    log = reopen(tmp_path)
    assert log.recovery.clean
    assert log.recovery.bytes_scanned == 0
    assert bodies(log) == BODIES[:12]
    assert log.synced_offset == 12


def test_b_sealed_segments_are_trusted_after_a_kill(tmp_path: Path) -> None:
    fill(tmp_path, 9)
    log = reopen(tmp_path)
    assert rows(log) == "E"
    assert log.recovery.bytes_scanned == (9 % PER_SEGMENT) * FRAME


class CountingDisk(RealDisk):
    """Counts the files that are opened, and the directories that are synced."""

    def __init__(self) -> None:
        self.files: list[weakref.ref[File]] = []
        self.synced_directories = 0

    @property
    def open_files(self) -> int:
        """Files that somebody still holds open."""
        return sum(file() is not None for file in self.files)

    @override
    def open(self, path: Path) -> File:
        file = super().open(path)
        self.files.append(weakref.ref(file))
        return file

    @override
    def sync_directory(self, path: Path) -> None:
        self.synced_directories += 1
        super().sync_directory(path)


def test_s_a_log_that_was_closed_is_opened_without_a_sync_and_keeps_no_file_open(
    tmp_path: Path,
) -> None:
    fill(tmp_path, 12, close=True)
    disk, files = CountingDisk(), {path: path.stat() for path in tmp_path.iterdir()}
    log = CommitLog.open(tmp_path, CONFIG, disk=disk)
    assert (disk.open_files, disk.synced_directories) == (0, 0)
    log.close()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == {
        path: facts.st_mtime_ns for path, facts in files.items()
    }
    log = CommitLog.open(tmp_path, CONFIG, disk=disk)
    log.append(make_frames(12, [BODIES[12]]))
    assert log.sync() == 13
    assert bodies(log) == BODIES[:13]


def test_s_the_files_of_so_many_sealed_segments_stay_open_the_last_that_were_read(
    tmp_path: Path,
) -> None:
    wide = LogConfig(max_segment_bytes=FRAME)
    log = CommitLog.open(tmp_path, wide)
    for offset, body in enumerate(BODIES):
        log.append(make_frames(offset, [body]))
        log.sync()
    log.close()
    disk = CountingDisk()
    log = CommitLog.open(tmp_path, wide, disk=disk)
    assert (log.segment_count, bodies(log)) == (len(BODIES), BODIES)
    assert disk.open_files == OPEN_FILES_MAX
    opened = len(disk.files)
    assert bodies(log, len(BODIES) - OPEN_FILES_MAX) == BODIES[-OPEN_FILES_MAX:]
    assert len(disk.files) == opened + 1, "only the active segment's"


@pytest.mark.parametrize("harm", ["mark", "index", "longer", "shorter"])
def test_s_what_does_not_agree_with_the_mark_is_synced(tmp_path: Path, harm: str) -> None:
    fill(tmp_path, 9, close=True)
    last = segment_path(tmp_path, 9 - 9 % PER_SEGMENT)
    match harm:
        case "mark":
            flip(tmp_path / MARK, 10)
        case "index":
            last.with_suffix(".index").unlink()
        case "longer":
            with last.open("ab") as file:
                file.write(bytes(FRAME))
        case _:
            with last.open("r+b") as file:
                file.truncate(last.stat().st_size - FRAME)
    disk = CountingDisk()
    CommitLog.open(tmp_path, CONFIG, disk=disk)
    assert disk.synced_directories > 0


def test_c_temporary_files_are_removed(tmp_path: Path) -> None:
    fill(tmp_path, close=True)
    (tmp_path / "00000000000000000000.index.tmp").write_bytes(b"half")
    log = reopen(tmp_path)
    assert rows(log) == "C"
    assert not list(tmp_path.glob("*.tmp"))


def test_d_index_without_a_log_is_removed(tmp_path: Path) -> None:
    fill(tmp_path, close=True)
    orphan = segment_path(tmp_path, 77, ".timeindex")
    orphan.write_bytes(b"")
    log = reopen(tmp_path)
    assert rows(log) == "D"
    assert not orphan.exists()
    assert bodies(log) == BODIES[:4]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("harm", ["missing", "empty", "short", "flipped", "long"])
def test_e_bad_index_is_rebuilt(tmp_path: Path, suffix: str, harm: str) -> None:
    fill(tmp_path, 12, close=True)
    path = segment_path(tmp_path, PER_SEGMENT, suffix)
    good = path.read_bytes()
    match harm:
        case "missing":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "short":
            path.write_bytes(good[:-3])
        case "flipped":
            flip(path, 20)
        case _:
            path.write_bytes(good + bytes(16))
    log = reopen(tmp_path)
    assert rows(log) == "E"
    assert path.read_bytes() == good
    assert bodies(log) == BODIES[:12]


def test_e_index_of_another_segment_is_rebuilt(tmp_path: Path) -> None:
    fill(tmp_path, 12, close=True)
    for suffix in (".index", ".timeindex"):
        foreign = segment_path(tmp_path, 0, suffix).read_bytes()
        segment_path(tmp_path, PER_SEGMENT, suffix).write_bytes(foreign)
    log = reopen(tmp_path)
    assert rows(log) == "E"
    assert bodies(log) == BODIES[:12]


def test_f_tail_torn_at_any_byte_is_cut(tmp_path: Path) -> None:
    fill(tmp_path)
    path = segment_path(tmp_path, 0)
    whole = path.read_bytes()
    for cut in range(1, FRAME):
        (tmp_path / MARK).unlink()
        path.write_bytes(whole[: 4 * FRAME - cut])
        log = reopen(tmp_path)
        assert rows(log) == "EF"
        assert log.recovery.bytes_truncated == FRAME - cut
        assert (log.end_offset, path.stat().st_size) == (3, 3 * FRAME)
        assert bodies(log) == BODIES[:3]


@pytest.mark.parametrize("tail", [b"\0" * 700, b"garbage" * 99, b"P", encode_header], ids="0gPh")
def test_f_trailing_rubbish_is_cut(tmp_path: Path, tail: object) -> None:
    fill(tmp_path)
    path = segment_path(tmp_path, 0)
    header, body = make_frame(4, BODIES[4])
    rubbish = tail if isinstance(tail, bytes) else encode_header(header) + body[:-1] + b"?"
    path.write_bytes(path.read_bytes() + rubbish)
    log = reopen(tmp_path)
    assert rows(log) == "EF"
    assert bodies(log) == BODIES[:4]
    log.append([(header, body)])
    log.sync()
    assert bodies(reopen(tmp_path)) == BODIES[:5]


def test_g_unsynced_writes_with_a_lost_sector_are_copied_and_cut(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    log = CommitLog.open(tmp_path, LogConfig())
    log.append(make_frames(1, [b"lost" * 300, b"sound" * 8]))
    path = segment_path(tmp_path, 0)
    patch(path, 512, bytes(512))
    tail = path.read_bytes()[FRAME:]
    log = reopen(tmp_path)
    assert rows(log) == "EG"
    assert bodies(log) == BODIES[:1]
    assert path.with_suffix(f".{FRAME}.torn").read_bytes() == tail
    assert rows(reopen(tmp_path)) == "E"


def test_h_bit_flip_below_sound_frames_is_kept_and_reported(tmp_path: Path) -> None:
    for position in range(FRAME):
        directory = tmp_path / str(position)
        fill(directory)
        (directory / MARK).unlink()
        path = segment_path(directory, 0)
        flip(path, FRAME + position)
        before = path.read_bytes()
        log = reopen(directory)
        assert rows(log) == "EH"
        finding = log.recovery.damages[0]
        assert (finding.file, finding.position) == (str(path), FRAME)
        assert (finding.offset, finding.next_offset) == (1, 2)
        assert path.read_bytes() == before
        with pytest.raises(CorruptFrameError) as caught:
            bodies(log)
        assert (caught.value.offset, caught.value.next_offset) == (1, 2)
        assert bodies(log, 2) == BODIES[2:4]


def test_h_damage_at_the_very_beginning_is_not_skipped(tmp_path: Path) -> None:
    fill(tmp_path)
    flip(segment_path(tmp_path, 0), 3)
    log = reopen(tmp_path)
    with pytest.raises(CorruptFrameError):
        log.read(0, bytes_max=9999, upto=4)
    assert log.read(1, bytes_max=9999, upto=4)[0].base_offset == 1


def test_h_damage_of_everything_is_not_served(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    path = segment_path(tmp_path, 0)
    patch(path, 0, b"?" * path.stat().st_size)
    log = reopen(tmp_path)
    assert (rows(log), log.end_offset) == ("EH", 3)
    for offset in range(3):
        with pytest.raises(CorruptFrameError) as caught:
            log.read(offset, bytes_max=9999, upto=3)
        assert caught.value.next_offset == 3


def test_h_rubbish_between_frames_is_not_served_and_hides_nothing(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    (tmp_path / MARK).unlink()
    path = segment_path(tmp_path, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[:FRAME] + b"rubbish!" + whole[FRAME:])
    log = reopen(tmp_path)
    assert rows(log) == "EH"
    assert bodies(log) == BODIES[:2]
    assert [part.position for part in log.read(0, bytes_max=9999, upto=2)] == [0]
    assert [part.position for part in log.read(1, bytes_max=9999, upto=2)] == [FRAME + 8]


def test_h_synced_last_frame_that_rots_is_not_taken_for_a_torn_tail(tmp_path: Path) -> None:
    fill(tmp_path)
    path = segment_path(tmp_path, 0)
    flip(path, 3 * FRAME + 100)
    log = reopen(tmp_path)
    assert rows(log) == "EH"
    assert (log.end_offset, path.stat().st_size) == (4, 4 * FRAME)
    assert [body for _, body in log.frames(upto=3)] == BODIES[:3]
    with pytest.raises(CorruptFrameError, match="body CRC"):
        log.read(3, bytes_max=1000, upto=4)


def test_h_synced_bytes_that_are_gone_are_reported(tmp_path: Path) -> None:
    fill(tmp_path)
    path = segment_path(tmp_path, 0)
    path.write_bytes(path.read_bytes()[: 2 * FRAME + 50])
    log = reopen(tmp_path)
    assert rows(log) == "EH"
    assert (log.recovery.damages[0].offset, log.recovery.damages[0].next_offset) == (2, 4)
    assert log.end_offset == 4, "offsets that were acked are not given to other records"


def test_h_damaged_log_takes_appends_in_a_new_segment_and_reports_every_time(
    tmp_path: Path,
) -> None:
    fill(tmp_path)
    flip(segment_path(tmp_path, 0), FRAME + 50)
    log = reopen(tmp_path)
    log.append(make_frames(4, [BODIES[4]]))
    log.sync()
    assert log.segment_count == 2
    log.close()
    log = reopen(tmp_path)
    assert [finding.row for finding in log.recovery.damages] == ["I"]
    assert bodies(log, 2) == BODIES[2:5]


def test_i_bit_flip_in_a_scanned_earlier_segment_is_reported(tmp_path: Path) -> None:
    fill(tmp_path, 12, close=True)
    segment_path(tmp_path, 0, ".index").unlink()
    flip(segment_path(tmp_path, 0), 2 * FRAME + 30)
    log = reopen(tmp_path)
    assert rows(log) == "EI"
    assert log.recovery.damages[0].offset == 2
    assert bodies(log, 3) == BODIES[3:12]


def test_i_bit_flip_in_a_trusted_segment_is_found_when_read(tmp_path: Path) -> None:
    fill(tmp_path, 12, close=True)
    flip(segment_path(tmp_path, 0), 2 * FRAME + 30)
    log = reopen(tmp_path)
    assert log.recovery.clean
    ranges = log.read(0, bytes_max=10_000, upto=12)
    assert [(part.base_offset, part.next_offset) for part in ranges] == [(0, 2)]
    with pytest.raises(CorruptFrameError) as caught:
        log.read(2, bytes_max=10_000, upto=12)
    assert (caught.value.offset, caught.value.next_offset) == (2, 3)
    assert caught.value.position == 2 * FRAME
    assert log.read(3, bytes_max=10_000, upto=12)[-1].next_offset == 12


def test_i_torn_end_of_an_earlier_segment_is_damage(tmp_path: Path) -> None:
    fill(tmp_path, 12, close=True)
    path = segment_path(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-10])
    log = reopen(tmp_path)
    assert rows(log) == "EI"
    assert (log.recovery.damages[0].offset, log.recovery.damages[0].next_offset) == (4, 5)
    assert bodies(log, 5) == BODIES[5:12]


def test_i_bytes_behind_an_earlier_segment_are_not_served(tmp_path: Path) -> None:
    fill(tmp_path, 12, close=True)
    path = segment_path(tmp_path, 0)
    path.write_bytes(path.read_bytes() + b"\0")
    log = reopen(tmp_path)
    assert rows(log) == "EI"
    ranges = log.read(0, bytes_max=10_000, upto=12)
    assert [part.length for part in ranges] == [5 * FRAME, 5 * FRAME, 2 * FRAME]
    assert bodies(log) == BODIES[:12]


def test_i_rubbish_between_frames_of_an_earlier_segment_hides_nothing(tmp_path: Path) -> None:
    fill(tmp_path, 12, close=True)
    path = segment_path(tmp_path, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[:FRAME] + b"rubbish!" + whole[FRAME:])
    log = reopen(tmp_path)
    assert rows(log) == "EI"
    assert bodies(log) == BODIES[:12]
    assert [part.length for part in log.read(0, bytes_max=9999, upto=12)] == [FRAME]
    assert log.read(1, bytes_max=9999, upto=5)[0].length == 4 * FRAME


def test_j_missing_segment_is_reported(tmp_path: Path) -> None:
    fill(tmp_path, 15, close=True)
    segment_path(tmp_path, PER_SEGMENT).unlink()
    log = reopen(tmp_path)
    assert rows(log) == "DDEJ"
    damage = log.recovery.damages[0]
    assert (damage.offset, damage.next_offset) == (PER_SEGMENT, 2 * PER_SEGMENT)
    with pytest.raises(CorruptFrameError) as caught:
        log.read(PER_SEGMENT + 1, bytes_max=1000, upto=15)
    assert caught.value.next_offset == 2 * PER_SEGMENT
    assert bodies(log, 2 * PER_SEGMENT) == BODIES[2 * PER_SEGMENT : 15]


def test_j_empty_earlier_segment_is_reported(tmp_path: Path) -> None:
    fill(tmp_path, 12, close=True)
    segment_path(tmp_path, PER_SEGMENT).write_bytes(b"")
    log = reopen(tmp_path)
    assert rows(log) == "EJ"
    assert [body for _, body in log.frames(upto=PER_SEGMENT)] == BODIES[:PER_SEGMENT]
    assert bodies(log, 2 * PER_SEGMENT) == BODIES[2 * PER_SEGMENT : 12]


def test_k_overlapping_segments_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, 12, close=True)
    copy = segment_path(tmp_path, 3)
    copy.write_bytes(segment_path(tmp_path, 0).read_bytes()[3 * FRAME :])
    before = {path: path.read_bytes() for path in tmp_path.glob("*.log")}
    with pytest.raises(CorruptError, match="the next begins at 3"):
        reopen(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.glob("*.log")} == before


def test_l_empty_last_segment_takes_appends(tmp_path: Path) -> None:
    log = fill(tmp_path, 3)
    log.roll()
    log = reopen(tmp_path)
    assert (rows(log), log.end_offset, log.segment_count) == ("", 3, 2)
    log.append(make_frames(3, [BODIES[3]]))
    assert bodies(log) == BODIES[:4]


def test_m_frame_of_a_later_version_is_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    path = segment_path(tmp_path, 0)
    later = bytearray(path.read_bytes()[:HEADER_SIZE])
    later[4] = 2
    later[8:12] = header_crc(later)
    path.write_bytes(path.read_bytes() + bytes(later))
    before = path.read_bytes()
    with pytest.raises(RefusedError) as caught:
        reopen(tmp_path)
    assert (caught.value.code, caught.value.detail["version"]) == ("UNKNOWN_FORMAT", 2)
    assert path.read_bytes() == before


def test_m_index_of_a_later_version_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, close=True)
    path = segment_path(tmp_path, 0, ".index")
    later = bytearray(path.read_bytes())
    assert later[:4] == OFFSET_MAGIC
    later[4] = 9
    later[44:48] = crc(later[:44] + later[48:])
    path.write_bytes(later)
    with pytest.raises(RefusedError, match="version 9"):
        reopen(tmp_path)


def crc(data: bytes | bytearray) -> bytes:
    return crc32c(bytes(data)).to_bytes(4, "little")


def header_crc(data: bytes | bytearray) -> bytes:
    return crc(data[:8] + data[12:HEADER_SIZE])
