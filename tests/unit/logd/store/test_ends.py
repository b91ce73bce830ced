"""The log remembers where ranges that were read ended; a cut moves what comes there."""

from pathlib import Path

from penstock.logd.storage import CommitLog, LogConfig
from penstock.logd.storage.segment import RangeEnds
from tests.support.frames import make_frames

SHORT, LONG = b"x" * 104, b"y" * 208


def test_what_is_read_on_from_is_what_was_written_after_a_cut(tmp_path: Path) -> None:
    log = CommitLog.open(tmp_path, LogConfig())
    log.append(make_frames(0, [SHORT, LONG, SHORT]))
    for first in range(3):
        assert log.read(first, bytes_max=1, upto=3)[0].base_offset == first
    log.truncate_to(1)
    log.append(make_frames(1, [SHORT, LONG]))
    assert log.read(2, bytes_max=1, upto=3)[0].base_offset == 2


def test_only_the_last_are_remembered() -> None:
    ends = RangeEnds()
    for offset in (0, *range(20), 0):
        ends.note(offset, 100 + offset)
    assert (ends.at(0), ends.at(19)) == ((100, 0), (119, 19))
    assert ends.at(5) is None
