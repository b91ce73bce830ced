"""The disk in memory keeps the same promises as the real one."""

import os
import resource
from pathlib import Path
from random import Random

import pytest

from penstock.logd.storage.disk import (
    IOV_MAX,
    REAL_DISK,
    Disk,
    make_directories,
    write_atomically,
)
from tests.sim.disk import MemoryDisk
from tests.support.mounts import make_read_only, small_file_system


@pytest.fixture(params=["real", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, Path]:
    """A disk and an empty directory on it."""
    if request.param == "real":
        return REAL_DISK, tmp_path
    disk = MemoryDisk()
    disk.make_directory(Path("/tmp"))
    return disk, Path("/tmp")


def test_file_holds_what_was_written(place: tuple[Disk, Path]) -> None:
    disk, root = place
    file = disk.create(root / "a")
    file.write(0, [b"one", b"", b"two"])
    file.write(6, [b"three"])
    file.write(1, [b"N"])
    assert (file.size(), file.read(0, 100)) == (11, b"oNetwothree")
    assert file.read(3, 3) == b"two"
    assert file.read(9, 10) == b"ee"
    assert file.read(11, 10) == b""


def test_file_write_takes_more_buffers_than_one_call(place: tuple[Disk, Path]) -> None:
    disk, root = place
    file = disk.create(root / "a")
    file.write(0, [b"%04d" % number for number in range(IOV_MAX * 2 + 1)])
    assert file.size() == (IOV_MAX * 2 + 1) * 4
    assert file.read(IOV_MAX * 4, 4) == b"%04d" % IOV_MAX


def test_file_truncate_cuts_and_write_beyond_the_end_fills_with_zeros(
    place: tuple[Disk, Path],
) -> None:
    disk, root = place
    file = disk.create(root / "a")
    file.write(0, [b"abcdef"])
    file.truncate(2)
    file.write(4, [b"x"])
    assert file.read(0, 10) == b"ab\0\0x"


def test_file_outlives_its_name(place: tuple[Disk, Path]) -> None:
    disk, root = place
    file = disk.create(root / "a")
    file.write(0, [b"kept"])
    disk.unlink(root / "a")
    assert not disk.exists(root / "a")
    assert file.read(0, 4) == b"kept"


def test_create_empties_an_old_file(place: tuple[Disk, Path]) -> None:
    disk, root = place
    disk.create(root / "a").write(0, [b"old"])
    assert disk.create(root / "a").size() == 0


def test_rename_replaces(place: tuple[Disk, Path]) -> None:
    disk, root = place
    disk.create(root / "a").write(0, [b"new"])
    disk.create(root / "b").write(0, [b"old"])
    disk.rename(root / "a", root / "b")
    disk.sync_directory(root)
    assert disk.list_directory(root) == ["b"]
    assert disk.open(root / "b").read(0, 9) == b"new"


def test_missing_names_raise(place: tuple[Disk, Path]) -> None:
    disk, root = place
    for operation in (disk.open, disk.unlink, disk.list_directory, disk.sync_directory):
        with pytest.raises(FileNotFoundError):
            operation(root / "none")
    with pytest.raises(FileNotFoundError):
        disk.create(root / "none" / "a")


def test_read_gives_all_of_a_file_and_none_where_there_is_none(
    place: tuple[Disk, Path],
) -> None:
    disk, root = place
    assert disk.read(root / "a") is None
    assert disk.read(root / "none" / "a") is None
    write_atomically(disk, root / "a", [b"one", b"two"])
    write_atomically(disk, root / "b", b"")
    assert (disk.read(root / "a"), disk.read(f"{root}/b")) == (b"onetwo", b"")


def test_an_error_of_reading_a_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as raised:
        REAL_DISK.read(tmp_path)
    assert raised.value.filename == str(tmp_path)


def test_make_directories_makes_parents_and_leaves_old_ones(place: tuple[Disk, Path]) -> None:
    disk, root = place
    make_directories(disk, root / "a" / "b")
    disk.create(root / "a" / "b" / "c").sync()
    make_directories(disk, root / "a" / "b")
    assert disk.list_directory(root / "a" / "b") == ["c"]


def test_write_atomically_leaves_one_whole_file(place: tuple[Disk, Path]) -> None:
    disk, root = place
    write_atomically(disk, root / "a", b"one")
    write_atomically(disk, root / "a", b"two")
    assert disk.list_directory(root) == ["a"]
    assert disk.open(root / "a").read(0, 9) == b"two"


def test_write_atomically_leaves_old_or_new_after_any_crash() -> None:
    seen = set()
    for seed in range(300):
        disk = MemoryDisk()
        random = Random(seed)
        write_atomically(disk, Path("/a"), b"old" * 500)
        steps = random.randint(0, 6)

        def fail(_operation: str, _path: Path) -> bool:
            nonlocal steps
            steps -= 1
            return steps < 0

        disk.fail = fail
        try:
            write_atomically(disk, Path("/a"), b"new" * 500)
            done = True
        except OSError:
            done = False
        disk.crash(random)
        data = disk.open(Path("/a")).read(0, 9999)
        assert data in {b"old" * 500, b"new" * 500}
        assert data[:3] == b"new" or not done
        seen.add((data[:3], done))
    assert seen == {(b"old", False), (b"new", False), (b"new", True)}


def test_real_write_goes_on_after_short_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.pwritev
    # No file system can be made to write less than it is asked for and then to go on.
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: whole(fd, [buffers[0][:2]], at))
    file = REAL_DISK.create(tmp_path / "a")
    file.write(0, [b"abcdef", b"ghi"])
    assert file.read(0, 99) == b"abcdefghi"


def test_real_write_raises_when_the_disk_is_full_after_a_short_write(
    tmp_path: Path,
) -> None:
    """A file may not become larger than the process's limit, as it may not on a full disk."""
    file = REAL_DISK.create(tmp_path / "a")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            file.write(0, [b"abcdef"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert file.read(0, 9) == b"ab"


def test_real_file_closes_with_its_last_reference(tmp_path: Path) -> None:
    file = REAL_DISK.create(tmp_path / "a")
    descriptor = file.fileno()
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_file_that_is_closed_while_it_is_read_is_an_error_of_the_disk(tmp_path: Path) -> None:
    """A reader gets what other errors of the disk get, and not a bug of logd's."""
    file = REAL_DISK.create(tmp_path / "a")
    file.write(0, [b"one"])
    file.close()
    with pytest.raises(OSError, match="closed while it was read"):
        file.read(0, 3)


def test_memory_crash_loses_unsynced_bytes_and_names() -> None:
    outcomes = set()
    for seed in range(100):
        disk = MemoryDisk()
        kept = disk.create(Path("/kept"))
        kept.write(0, [b"x" * 700])
        kept.sync()
        disk.sync_directory(Path("/"))
        kept.write(700, [b"y" * 1000])
        disk.create(Path("/new")).sync()
        disk.crash(Random(seed))
        data = disk.open(Path("/kept")).read(0, 9999)
        assert data[:700] == b"x" * 700
        assert set(data[700:]) <= set(b"y\0")
        outcomes.add((disk.exists(Path("/new")), b"\0" in data, len(data) == 1700))
    assert {True, False} == {outcome[0] for outcome in outcomes}
    assert (True, True, True) in outcomes


def test_memory_failed_sync_is_not_made_up_for_by_the_next() -> None:
    disk = MemoryDisk()
    file = disk.create(Path("/a"))
    disk.sync_directory(Path("/"))
    file.write(0, [b"x" * 2048])
    disk.fail = lambda operation, _: operation == "sync"
    with pytest.raises(OSError, match="error"):
        file.sync()
    disk.fail = lambda _operation, _path: False
    file.sync()
    disk.crash(Random(1))
    assert disk.open(Path("/a")).read(0, 9999) == b"x" * 1024 + bytes(1024)


def test_a_removed_file_cannot_be_made_durable(tmp_path: Path) -> None:
    file = REAL_DISK.create(tmp_path / "a")
    file.write(0, [b"x"])
    file.sync()
    (tmp_path / "a").unlink()
    with pytest.raises(FileNotFoundError, match="removed"):
        file.sync()


def test_files_of_a_read_only_file_system_are_opened_to_read(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "small", "1m") as small:
        (small / "a").write_bytes(b"x")
        make_read_only(small)
        file = REAL_DISK.open(small / "a")
        assert file.read(0, 1) == b"x"
        with pytest.raises(OSError, match="Bad file descriptor"):
            file.write(0, [b"y"])
        file.close()
