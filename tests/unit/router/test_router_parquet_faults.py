"""The local Parquet sink on a disk that fails at any point: whole files only, each record once."""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from penstock.router.lake.layout import FORMER_PARTITIONED_BY
from penstock.router.sinks.parquet import writer
from penstock.router.sinks.parquet.sink import ParquetLake, ParquetSink
from tests.unit.router.sink_rows import context, row, table

SETTINGS = ParquetSink(type="parquet", path="/", partition_by=FORMER_PARTITIONED_BY)
EARLIER = [row(number, service=f"s{number % 3}") for number in range(6)]
ROWS = [row(number, service=f"s{number % 3}") for number in range(6, 36)]


class Disk:
    """Fails once, at one of the calls that a batch makes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int, fails_at: int) -> None:
        self.has_failed = False
        self._calls = 0
        self._code, self._fails_at = code, fails_at
        real = writer.write_parquet

        def torn(part: pa.Table, file: Any, compression: str) -> None:
            """Half of it is on the disk already."""
            real(part.slice(0, part.num_rows // 2), file, compression)
            file.flush()
            self._call()
            file.seek(0)
            file.truncate()
            real(part, file, compression)

        monkeypatch.setattr(writer, "write_parquet", torn)  # as a disk that fills up in between
        sync, rename, synced = os.fsync, Path.replace, set[int]()

        def fsync(handle: int) -> None:
            self._call()
            sync(handle)
            synced.add(os.fstat(handle).st_ino)

        def replace(path: Path, target: Path) -> Path:
            self._call()
            assert path.stat().st_ino in synced, "after a crash its name would lead to nothing"
            return rename(path, target)

        # The system's calls themselves: no file system of a test fails at the nth one.
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(Path, "replace", replace)
        monkeypatch.setattr(Path, "mkdir", self._after(Path.mkdir))

    def _after(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            self._call()
            return real(*given, **more)

        return call

    def _call(self) -> None:
        self._calls += 1
        if self._calls == self._fails_at:
            self.has_failed = True
            raise OSError(self._code, os.strerror(self._code))


def visible(directory: Path) -> list[int]:
    """Offsets that any reader of hive-partitioned Parquet sees."""
    dataset = ds.dataset(directory / "lake", format="parquet", partitioning="hive")
    return sorted(dataset.to_table()["offset"].to_pylist())


def files_are_whole(directory: Path) -> None:
    """Each holds what its name says: every third offset from the first to the last."""
    for path in (directory / "lake").glob("kind=*/**/*.parquet"):
        first, last = map(int, path.stem.rsplit("-", 2)[1:])
        assert pq.read_table(path)["offset"].to_pylist() == [*range(first, last + 1, 3)]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("reopened", [False, True])
def test_a_disk_that_fails_anywhere_leaves_whole_files_and_the_batch_comes_again(
    tmp_path: Path, code: int, *, reopened: bool
) -> None:
    """To the same sink, as a query that starts again has it, or to one of a new process."""
    point = 1
    while fails_and_comes_again(tmp_path / str(point), code, point, reopened=reopened):
        point += 1
    assert point > 15, "each file is written, synced and renamed, and so is the note of them"


def fails_and_comes_again(directory: Path, code: int, point: int, *, reopened: bool) -> bool:
    """Whether a batch has such a point."""
    directory.mkdir()
    lake = opened(directory)
    lake.write(table(EARLIER))
    failed = True
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, code, point)
        with suppress(OSError):
            lake.write(table(ROWS))
            failed = False
    assert failed is disk.has_failed, "no failure is swallowed"
    files_are_whole(directory)
    again = opened(directory) if reopened else lake
    again.write(table(ROWS))
    assert visible(directory) == [*range(36)]
    return failed


def opened(directory: Path) -> ParquetLake:
    lake = ParquetLake(
        SETTINGS.model_copy(update={"path": str(directory / "lake")}), context(directory)
    )
    lake.open()
    return lake
