"""What a leader has just written is sent to its followers as a read of its log would give it."""

from pathlib import Path

import pytest

from penstock.logd.cluster.replication.sender import SharedReads, Wanted, read_frames
from penstock.logd.encryption.cipher import SegmentCipher
from penstock.logd.replication.session import PartitionId
from penstock.logd.storage import CommitLog, LogConfig
from tests.support.frames import make_frames

KEY = PartitionId("i", 0)
CIPHER = SegmentCipher({7: bytes(range(32))}, b"00ff/0")
MIB = 1024 * 1024


@pytest.mark.parametrize("cipher", [None, CIPHER], ids=["plain", "encrypted"])
def test_what_was_written_is_what_a_read_gives(
    tmp_path: Path, cipher: SegmentCipher | None
) -> None:
    log = CommitLog.open(tmp_path / "log", LogConfig(), cipher=cipher)
    frames = make_frames(0, [b"%d" % n * 100 for n in range(5)])
    log.append(frames[:2])
    log.append(frames[2:])
    shared = SharedReads()
    shared.keep_written(KEY, frames[2:])
    kept = shared.get(KEY, Wanted(1, 2, 5), MIB)
    assert kept == read_frames(log, 2, bytes_max=MIB, upto=5)
    log.close()


def test_only_the_range_that_is_wanted_is_given() -> None:
    shared, frames = SharedReads(), make_frames(7, [bytes(100), bytes(100)])
    shared.keep_written(KEY, frames)
    for wanted in (Wanted(2, 7, 9), Wanted(1, 6, 9), Wanted(1, 8, 9), Wanted(1, 7, 10)):
        assert shared.get(KEY, wanted, MIB) is None
    assert shared.get(PartitionId("i", 1), Wanted(1, 7, 9), MIB) is None
    assert shared.get(KEY, Wanted(1, 7, 9), 100) is None, "it is larger than asked for"
    assert shared.get(KEY, Wanted(1, 7, 9), MIB) is not None
    shared.keep_written(KEY, make_frames(9, [bytes(100)]))
    assert shared.get(KEY, Wanted(1, 7, 9), MIB) is None, "it was the last before"
    assert shared.get(KEY, Wanted(1, 9, 10), 1) is not None, "one frame is given whatever its size"
