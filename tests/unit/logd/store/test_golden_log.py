"""Logs of format version 1 are read for ever, and written byte for byte the same."""

import shutil
from pathlib import Path

from penstock.logd.storage import CommitLog
from tests.unit.logd.store.golden_log import CONFIG, DIRECTORY, RECORDS, write_golden_log

CLOSED_MARK = bytes.fromhex("504e534d0101000008000000000000006000000000000000f1e5274e01000000")
"""What the mark of the golden log says since it has a byte for a clean close."""


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def test_version_1_is_written_byte_for_byte(tmp_path: Path) -> None:
    write_golden_log(tmp_path / "log")
    assert contents(tmp_path / "log") == contents(DIRECTORY) | {"synced": CLOSED_MARK}


def test_version_1_is_read(tmp_path: Path) -> None:
    shutil.copytree(DIRECTORY, tmp_path / "log")
    log = CommitLog.open(tmp_path / "log", CONFIG)
    assert log.recovery.clean
    assert (log.start_offset, log.end_offset, log.segment_count) == (0, RECORDS, 2)
    frames = list(log.frames())
    assert [header.base_offset for header, _ in frames] == [0, 1, 3, 6, 7, 8]
    assert [header.leader_epoch for header, _ in frames] == [7, 7, 7, 8, 8, 9]
    assert frames[1][0].producer_id == bytes(range(16))
    assert frames[1][0].producer_sequence == 41
    assert frames[-1][1] == b"last\0\0\0\0"
    assert log.offset_for_timestamp(1_700_000_000_000_000_005) == 1


def test_version_1_index_is_rebuilt_byte_for_byte(tmp_path: Path) -> None:
    shutil.copytree(DIRECTORY, tmp_path / "log")
    for name in (f"{0:020d}.index", f"{0:020d}.timeindex"):
        (tmp_path / "log" / name).unlink()
    CommitLog.open(tmp_path / "log", CONFIG).close()
    assert contents(tmp_path / "log") == contents(DIRECTORY) | {"synced": CLOSED_MARK}
