"""Compressed files and names that cannot be read now: they are waited for, and not too eagerly."""

import errno
import os
from collections import Counter
from pathlib import Path

import pytest

from penstock.collector.sources.files.compressed import Names
from tests.support.gone_files import gone
from tests.support.privileges import closed
from tests.unit.collector.test_compressed import (
    CONTENT,
    MINUTE_NS,
    WAIT_NS,
    ZIPPED,
    Seeking,
    rest_of,
)


def test_what_cannot_be_opened_is_asked_less_and_less_often(tmp_path: Path) -> None:
    seeking = Seeking(tmp_path)
    path = tmp_path / "app.log.1.gz"
    path.write_bytes(ZIPPED)
    state = seeking.lost(10)
    asked: Counter[int] = Counter()
    with closed(path):
        for now_ns in range(0, 5 * MINUTE_NS, 10**9):
            before = len(seeking.errors)
            assert seeking.seek(state, now_ns=now_ns) == []
            asked[now_ns // MINUTE_NS] += len(seeking.errors) - before
    assert 5 <= asked[0] <= 10
    assert all(1 <= asked[minute] <= 2 for minute in range(1, 5))
    seeking.search.close()


def test_a_name_that_cannot_be_looked_up_is_no_sign_that_a_file_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here.log", "odd.log", "other.log"):
        (tmp_path / name).touch()
    (tmp_path / "nowhere").symlink_to("gone")
    (tmp_path / "round").symlink_to("round")
    here, away = (tmp_path / "here.log").stat(), gone(10, path=str(tmp_path / "app.log"))
    found = gone(10, path=str(tmp_path / "app.log"))
    found.device, found.inode = here.st_dev, here.st_ino
    assert Names().of(away) is None, "nor are links that lead nowhere"
    look_up = Path.stat

    def some(path: Path, **options: bool) -> os.stat_result:
        if path.name == "odd.log":
            raise OSError(errno.EIO, "Input/output error")
        return look_up(path, **options)

    # Patched: no file system that tests can have here fails for one name of a directory alone.
    monkeypatch.setattr(Path, "stat", some)
    assert Names().of(found) == tmp_path / "here.log"
    with pytest.raises(OSError, match="Input/output error"):
        Names().of(away)


def test_what_cannot_be_opened_for_long_keeps_no_whole_one_from_being_read(tmp_path: Path) -> None:
    seeking = Seeking(tmp_path)
    (tmp_path / "app.log.1.gz").write_bytes(ZIPPED)
    foreign = tmp_path / "foreign.gz"
    foreign.write_bytes(ZIPPED + b" ")
    state = seeking.lost(10)
    with closed(foreign):
        assert seeking.seek(state) == []
        assert rest_of(seeking.seek(state, now_ns=WAIT_NS)[0][1]) == CONTENT[10:]
    seeking.search.close()
