"""The collector's journal when the disk does not let it give back what is done with."""

import errno
from pathlib import Path

import pytest

from penstock.collector.journal import Entry, Journal
from penstock.logd.batch import Record
from penstock.logd.store import CommitLog


async def test_a_disk_that_gives_nothing_back_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "spool", bytes_max=1 << 20)
    journal.open()
    taken = journal.offer(Entry(Record(subject="s", value=b"x" * 2000, timestamp_ns=1)))
    await journal.commit()
    assert await taken == 0

    def fails(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "delete_before", fails)
        patch.setattr(CommitLog, "roll", fails)
        await journal.delete_before(1)
        assert (journal.failures, "Input/output error" in journal.failure) == (1, True)
        assert await journal.first_segment_end() is None
        assert journal.failures == 2
    again = journal.offer(Entry(Record(subject="s", value=b"y", timestamp_ns=2)))
    await journal.commit()
    assert (await again, journal.failure) == (1, "")
    await journal.delete_before(2)
    await journal.close()
