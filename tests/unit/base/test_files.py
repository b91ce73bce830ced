"""Files are replaced whole: whatever a crash interrupts, the old file is there or the new one."""

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import BinaryIO

import pytest
from typing_extensions import override

from penstock.base.files import FileSystem, atomic_write, atomic_writer, make_directories

OLD = b"old" * 5000
NEW = b"new" * 7000


class PowerLossError(OSError):
    pass


class PowerLossDisk(FileSystem):
    """Loses power before one of its steps, and knows what may be left of a file then.

    A name that no sync of its directory followed may be on the disk or not, and so may any part of
    bytes that no sync of their file followed.
    """

    def __init__(self, path: Path, crash_at: int) -> None:
        self._path = path
        self._steps_left = crash_at
        self._synced: dict[int, bytes] = {}
        self._created: dict[int, Path] = {}
        self._names: list[int | None] = [None]
        if path.exists():
            self._names = [path.stat().st_ino]
            self._synced[path.stat().st_ino] = path.read_bytes()

    def contents(self) -> set[bytes | None]:
        """All that may be read under the name when the power is back; None: there is no file."""
        found = set[bytes | None]()
        for inode in self._names:
            if inode is None:
                found.add(None)
            elif inode in self._synced:
                found.add(self._synced[inode])
            else:
                found |= {b"", NEW[: len(NEW) // 2], NEW}
        return found

    def _step(self) -> None:
        if not self._steps_left:
            raise PowerLossError
        self._steps_left -= 1

    @override
    def create(self, path: Path, mode: int | None) -> BinaryIO:
        self._step()
        file = super().create(path, mode)
        self._created[os.fstat(file.fileno()).st_ino] = path
        return file

    @override
    def sync(self, file: BinaryIO) -> None:
        self._step()
        super().sync(file)
        inode = os.fstat(file.fileno()).st_ino
        self._synced[inode] = self._created[inode].read_bytes()

    @override
    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)
        self._names.append(target.stat().st_ino)

    @override
    def link(self, source: Path, target: Path) -> None:
        self._step()
        super().link(source, target)
        self._names.append(target.stat().st_ino)

    @override
    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)

    @override
    def sync_directory(self, path: Path) -> None:
        self._step()
        super().sync_directory(path)
        if path == self._path.parent:
            del self._names[:-1]


def after_power_losses(
    path: Path, *, exclusive: bool = False, durable: bool = True
) -> Iterator[tuple[bool, set[bytes | None]]]:
    """Whether a write returned, and what may be left: once for each step that power fails at."""
    for crash_at in count():
        path.unlink(missing_ok=True)
        if not exclusive:
            path.write_bytes(OLD)
        disk = PowerLossDisk(path, crash_at)
        try:
            atomic_write(path, NEW, exclusive=exclusive, durable=durable, system=disk)
        except PowerLossError:
            yield False, disk.contents()
        else:
            yield True, disk.contents()
            return


def test_a_power_loss_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    found = list(after_power_losses(tmp_path / "a"))
    assert found[:-1] == [
        (False, {OLD}),  # before a leftover is removed
        (False, {OLD}),  # before create
        (False, {OLD}),  # before sync
        (False, {OLD}),  # before rename
        (False, {OLD, NEW}),  # before the directory's sync
    ]
    assert found[-1] == (True, {NEW}), "the name is on the disk, too"


def test_a_power_loss_leaves_a_file_that_was_not_there_whole_or_not_at_all(tmp_path: Path) -> None:
    found = list(after_power_losses(tmp_path / "a", exclusive=True))
    assert all(contents <= {None, NEW} for _, contents in found)
    assert found[-1] == (True, {NEW})


def test_without_syncs_a_power_loss_may_leave_an_empty_file(tmp_path: Path) -> None:
    """What `durable=False` says of itself; and the disk above can tell."""
    *_, (done, contents) = after_power_losses(tmp_path / "a", durable=False)
    assert done
    assert {OLD, b""} <= contents


KILLED = """
import os, signal, sys
from pathlib import Path
from penstock.base.files import FileSystem, atomic_write

def killed(self, *given):
    os.kill(os.getpid(), signal.SIGKILL)

Killed = type("Killed", (FileSystem,), {sys.argv[2]: killed})
atomic_write(Path(sys.argv[1]), b"new" * 7000, system=Killed())
"""


@pytest.mark.parametrize(
    ("step", "left"),
    [("unlink", OLD), ("create", OLD), ("sync", OLD), ("rename", OLD), ("sync_directory", NEW)],
)
def test_a_killed_process_leaves_the_old_file_or_the_new_one(
    tmp_path: Path, step: str, left: bytes
) -> None:
    path = tmp_path / "a"
    path.write_bytes(OLD)
    done = subprocess.run([sys.executable, "-c", KILLED, path, step], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == left
    assert all(it.name.startswith(".") for it in tmp_path.iterdir() if it != path)
    atomic_write(path, b"next")
    assert path.read_bytes() == b"next"


@pytest.mark.parametrize("step", ["sync", "rename", "link"])
def test_a_step_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, step: str) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    full, path = type("Full", (FileSystem,), {step: fail})(), tmp_path / "a"
    if step != "link":
        path.write_bytes(OLD)
    with pytest.raises(OSError, match="No space left"):
        atomic_write(path, NEW, exclusive=step == "link", system=full)
    assert [it.read_bytes() for it in tmp_path.iterdir()] == ([] if step == "link" else [OLD])


def test_a_block_that_raises_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(OLD)
    with pytest.raises(ZeroDivisionError), atomic_writer(path) as file:
        file.write(NEW * (1 // 0))
    assert [(it.name, it.read_bytes()) for it in tmp_path.iterdir()] == [("a", OLD)]


def test_writers_of_one_name_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "a"
    contents = [bytes([letter]) * 40_000 for letter in b"abcdef"]
    everybody = threading.Barrier(len(contents))

    def write(content: bytes) -> None:
        everybody.wait()
        for _ in range(20):
            atomic_write(path, content, durable=False)
            assert path.read_bytes() in contents

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("mode", "expected"), [(None, 0o640), (0o600, 0o600), (0o755, 0o755)])
def test_permissions_are_those_asked_for_or_what_the_umask_leaves(
    tmp_path: Path, mode: int | None, expected: int
) -> None:
    path = tmp_path / "a"
    path.touch(0o666)
    umask = os.umask(0o027)
    try:
        atomic_write(path, "text", mode=mode)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == expected


def test_an_exclusive_write_never_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a"
    atomic_write(path, "é", exclusive=True)
    with pytest.raises(FileExistsError):
        atomic_write(path, "other", exclusive=True)
    assert [it.read_text("utf-8") for it in tmp_path.iterdir()] == ["é"]


def test_a_temporary_name_that_is_given_and_taken_is_left_alone(tmp_path: Path) -> None:
    path, partial = tmp_path / "a", tmp_path / "a.partial"
    partial.write_bytes(OLD)
    with pytest.raises(FileExistsError), atomic_writer(path, temporary=partial):
        pytest.fail("another one writes there")
    assert [(it.name, it.read_bytes()) for it in tmp_path.iterdir()] == [("a.partial", OLD)]


def test_made_directories_are_told_with_those_that_hold_their_names(tmp_path: Path) -> None:
    assert make_directories(tmp_path / "a" / "b") == [tmp_path / "a", tmp_path]
    assert make_directories(tmp_path / "a" / "b") == []
    assert (tmp_path / "a" / "b").is_dir()
