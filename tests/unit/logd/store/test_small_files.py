"""The checkpoint, the epoch file and the directory lock."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.storage import Checkpoint, DirectoryLock, EpochFile
from tests.support.failing_disk import FailingDisk


def test_checkpoint_is_none_before_the_first_save(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path / "c").load() is None


def test_checkpoint_holds_what_was_saved_last(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "c")
    checkpoint.save({"a": 1})
    checkpoint.save({"b": ["ä", None, 2**62], "a": {"nested": True}})
    assert Checkpoint(tmp_path / "c").load() == {"b": ["ä", None, 2**62], "a": {"nested": True}}
    assert list(tmp_path.iterdir()) == [tmp_path / "c"]


@pytest.mark.parametrize("operation", ["write", "sync", "rename"])
def test_a_checkpoint_that_is_not_saved_leaves_nothing_on_a_full_disk(
    tmp_path: Path, operation: str
) -> None:
    disk = FailingDisk()
    checkpoint = Checkpoint(tmp_path / "c", disk=disk)
    checkpoint.save({"a": 1})
    with disk.fails(operation, errno.ENOSPC), pytest.raises(OSError, match="No space left"):
        checkpoint.save({"a": 2})
    assert list(tmp_path.iterdir()) == [tmp_path / "c"]
    assert checkpoint.load() == {"a": 1}


def test_checkpoint_holds_file_names_that_are_not_utf8(tmp_path: Path) -> None:
    document = {os.fsdecode(b"caf\xe9.log"): 1}
    Checkpoint(tmp_path / "c").save(document)
    assert Checkpoint(tmp_path / "c").load() == document


def test_checkpoint_of_version_1_is_read(tmp_path: Path) -> None:
    path = tmp_path / "c"
    Checkpoint(path).save({"high_watermark": 41})
    assert path.read_bytes() == b'PNSC1 ed12e0f0 {"high_watermark":41}\n'


def test_checkpoint_finds_every_changed_or_missing_byte(tmp_path: Path) -> None:
    path = tmp_path / "c"
    Checkpoint(path).save({"offset": 12})
    good = path.read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1
        for data in (bytes(bad), good[:position]):
            path.write_bytes(data)
            with pytest.raises((CorruptError, RefusedError)):
                Checkpoint(path).load()
            assert path.read_bytes() == data


def test_checkpoint_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    Checkpoint(path).save({})
    path.write_bytes(path.read_bytes().replace(b"PNSC1", b"PNSC2"))
    with pytest.raises(RefusedError, match="version 2"):
        Checkpoint(path).load()


def test_epochs_are_kept(tmp_path: Path) -> None:
    epochs = EpochFile(tmp_path / "epochs")
    assert (epochs.latest, epochs.epoch_at(5), epochs.entries) == (0, 0, [])
    epochs.begin(1, 0)
    epochs.begin(4, 10)
    again = EpochFile(tmp_path / "epochs")
    assert again.entries == [(1, 0), (4, 10)]
    assert [again.epoch_at(offset) for offset in (0, 9, 10, 99)] == [1, 1, 4, 4]


def test_epoch_without_records_is_replaced(tmp_path: Path) -> None:
    epochs = EpochFile(tmp_path / "epochs")
    epochs.begin(1, 0)
    epochs.begin(2, 0)
    assert epochs.entries == [(2, 0)]


@pytest.mark.parametrize(("epoch", "start"), [(4, 20), (3, 20), (5, 9)])
def test_epoch_must_follow(tmp_path: Path, epoch: int, start: int) -> None:
    epochs = EpochFile(tmp_path / "epochs")
    epochs.begin(4, 10)
    with pytest.raises(RefusedError, match="does not follow"):
        epochs.begin(epoch, start)


def test_epochs_above_a_truncation_are_forgotten(tmp_path: Path) -> None:
    epochs = EpochFile(tmp_path / "epochs")
    for epoch, start in ((2, 0), (4, 10), (7, 15)):
        epochs.begin(epoch, start)
    epochs.truncate_to(12)
    assert EpochFile(tmp_path / "epochs").entries == [(2, 0), (4, 10)]
    epochs.truncate_to(10)
    assert EpochFile(tmp_path / "epochs").entries == [(2, 0)]


def test_the_number_of_an_epoch_outlives_its_lost_records(tmp_path: Path) -> None:
    epochs = EpochFile(tmp_path / "epochs")
    for epoch, start in ((2, 0), (4, 10), (7, 15)):
        epochs.begin(epoch, start)
    epochs.recover(12)
    assert EpochFile(tmp_path / "epochs").entries == [(2, 0), (4, 10), (7, 12)]


@pytest.mark.parametrize(
    "document", [{}, {"epochs": 1}, {"epochs": [[2, 5], [1, 9]]}, {"epochs": [[1]]}]
)
def test_epoch_file_with_other_content_is_refused(
    tmp_path: Path, document: dict[str, object]
) -> None:
    Checkpoint(tmp_path / "epochs").save(document)
    with pytest.raises(CorruptError):
        EpochFile(tmp_path / "epochs")


def test_lock_keeps_others_out_and_names_the_owner(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path):
        with pytest.raises(RefusedError, match=f"in use by process {os.getpid()}") as caught:
            DirectoryLock(tmp_path)
        assert caught.value.code == "LOCKED"
    DirectoryLock(tmp_path).release()


def test_lock_of_a_dead_process_is_free(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys; from penstock.logd.storage import DirectoryLock;"
        "lock = DirectoryLock(pathlib.Path(sys.argv[1])); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 9
    DirectoryLock(tmp_path).release()
