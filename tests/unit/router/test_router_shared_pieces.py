"""What is kept of pieces: found whole or not at all, by one maker at a time, and within bounds."""

import multiprocessing
import os
import resource
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.router.read.shared.cache import SharedChunks

MIB = 1024 * 1024
NAME = "ab" * 20


def rows(size: int = 1) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([b"x" * size])})


def keep(shared: SharedChunks, name: str, batch: pa.RecordBatch) -> None:
    with shared.making(name) as is_mine:
        assert is_mine
        shared.keep(name, batch)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_what_one_keeps_another_finds_and_only_under_its_name(tmp_path: Path) -> None:
    batch = pa.record_batch({"a": [1, None], "b": pa.array([b"x", None], pa.binary())})
    keep(SharedChunks(tmp_path, MIB), NAME, batch)
    assert SharedChunks(tmp_path, MIB).find(NAME) == batch
    assert SharedChunks(tmp_path, MIB).find("other") is None
    assert names(tmp_path) == {NAME}
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600


def test_a_batch_without_rows_is_kept_too(tmp_path: Path) -> None:
    shared = SharedChunks(tmp_path, MIB)
    keep(shared, NAME, rows().slice(0, 0))
    found = shared.find(NAME)
    assert found is not None
    assert found.num_rows == 0


def test_every_bit_that_is_another_is_noticed(tmp_path: Path) -> None:
    shared = SharedChunks(tmp_path, MIB)
    keep(shared, NAME, rows())
    whole = (tmp_path / NAME).read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        (tmp_path / NAME).write_bytes(damaged)
        assert shared.find(NAME) is None, at
        assert names(tmp_path) == set(), at
    for length in range(len(whole)):
        (tmp_path / NAME).write_bytes(whole[:length])
        assert shared.find(NAME) is None, length
    (tmp_path / "other").write_bytes(whole)
    assert shared.find("other") is None, "the file of another piece"


def test_the_oldest_go_and_no_more_than_must(tmp_path: Path) -> None:
    shared = SharedChunks(tmp_path, 100_000)
    for number in range(12):
        keep(shared, str(number), rows(20_000))
        os.utime(tmp_path / str(number), ns=(number, number))
        total = sum(path.stat().st_size for path in tmp_path.iterdir())
        assert total <= 100_000
    assert names(tmp_path) == {"8", "9", "10", "11"}


def test_a_piece_that_would_drive_out_most_others_is_not_kept(tmp_path: Path) -> None:
    shared = SharedChunks(tmp_path, 100_000)
    keep(shared, "small", rows(20_000))
    keep(shared, "large", rows(25_000))
    assert names(tmp_path) == {"small"}


def test_no_more_is_taken_than_half_of_the_memory_there_is(tmp_path: Path) -> None:
    shared = SharedChunks(tmp_path, MIB, memory_bytes=50 * 4096)
    for number in range(10):
        keep(shared, str(number), rows(20_000))
    assert 3 <= len(names(tmp_path)) <= 5


def test_one_makes_a_piece_and_others_are_told(tmp_path: Path) -> None:
    one, other = SharedChunks(tmp_path, MIB), SharedChunks(tmp_path, MIB)
    with one.making(NAME) as is_mine, other.making(NAME) as is_others:
        assert (is_mine, is_others) == (True, False)
        with other.making("other") as of_another:
            assert of_another
    with other.making(NAME) as is_others:
        assert is_others
    assert names(tmp_path) == set()


def test_who_waited_for_a_lock_that_went_with_its_file_does_not_have_it(tmp_path: Path) -> None:
    """It opened the file before it was renamed, and locked it when that was done."""
    one, other = SharedChunks(tmp_path, MIB), SharedChunks(tmp_path, MIB)
    making = tmp_path / f"{NAME}.making"
    real = os.open

    def opened(path: Any, *how: Any) -> int:
        descriptor = real(path, *how)
        if path == making:
            patch.undo()
            making.rename(tmp_path / NAME)
        return descriptor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", opened)  # the moment between opening and locking is the system's
        with other.making(NAME) as is_others:
            assert not is_others
    assert names(tmp_path) == {NAME}, "nor has it removed what is kept"
    with one.making(NAME) as is_mine:
        assert is_mine


def test_who_has_kept_a_piece_leaves_the_lock_of_who_makes_it_anew(tmp_path: Path) -> None:
    one, other = SharedChunks(tmp_path, MIB), SharedChunks(tmp_path, MIB)
    with ExitStack() as ended:
        with one.making(NAME):
            one.keep(NAME, rows())
            (tmp_path / NAME).unlink()  # there was no room
            assert ended.enter_context(other.making(NAME))
        assert names(tmp_path) == {f"{NAME}.making"}
        other.keep(NAME, rows())
    assert names(tmp_path) == {NAME}


@contextmanager
def child(run: Callable[[Connection], None]) -> Iterator[tuple[int, Connection]]:
    """A process that does something."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=run, args=(there,), daemon=True)
    process.start()
    assert process.pid is not None
    try:
        yield process.pid, here
    finally:
        process.kill()
        process.join()


def test_what_a_killed_process_was_writing_is_nothing_and_others_go_on(tmp_path: Path) -> None:
    def run(connection: Connection) -> None:
        with SharedChunks(tmp_path, MIB).making(NAME):
            (tmp_path / f"{NAME}.making").write_bytes(b"half of it")
            connection.send("writing")
            signal.pause()

    shared = SharedChunks(tmp_path, MIB)
    with child(run) as (pid, connection):
        assert connection.recv() == "writing"
        with shared.making(NAME) as is_mine:
            assert not is_mine
        os.kill(pid, signal.SIGKILL)
    assert shared.find(NAME) is None
    with shared.making(NAME) as is_mine:
        assert is_mine
        shared.keep(NAME, rows())
    assert shared.find(NAME) == rows()


def test_what_killed_processes_left_makes_room_and_what_others_write_stays(tmp_path: Path) -> None:
    left, written = tmp_path / "left.making", tmp_path / "written.making"
    shared = SharedChunks(tmp_path, 50_000)
    with SharedChunks(tmp_path, MIB).making("written"):
        for path in (left, written):
            path.write_bytes(bytes(60_000))
            os.utime(path, ns=(1, 1))
        keep(shared, NAME, rows())
        assert names(tmp_path) == {NAME, "written.making"}


def test_where_the_memory_is_full_nothing_is_kept_and_half_is_given_back(tmp_path: Path) -> None:
    shared = SharedChunks(tmp_path, 100_000)
    for number in range(4):
        keep(shared, str(number), rows(20_000))
        os.utime(tmp_path / str(number), ns=(number, number))
    bounds = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, bounds[1]))
    try:
        keep(shared, NAME, rows(20_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, bounds)
    assert names(tmp_path) == {"2", "3"}
    keep(shared, NAME, rows(20_000))
    assert shared.find(NAME) == rows(20_000)


def test_a_directory_that_is_no_more_is_an_error_that_whoever_reads_hears_of(
    tmp_path: Path,
) -> None:
    place = tmp_path / "gone"
    with pytest.raises(FileNotFoundError):
        SharedChunks(place, MIB)
    place.mkdir()
    shared = SharedChunks(place, MIB)
    place.rmdir()
    assert shared.find(NAME) is None
    with pytest.raises(FileNotFoundError), shared.making(NAME):
        pass
