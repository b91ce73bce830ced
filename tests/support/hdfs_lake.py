"""The Parquet sink on a real HDFS: what lies there, and a process that writes until it is killed.

    python -m tests.support.hdfs_lake URL DIRECTORY RULE BATCHES

goes on where the last one was killed, as a job does: a batch that was not noted as done comes again
with the same records. RULE is which of them a route's `where` leads to the sink.
"""

import io
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.router.lake.layout import FORMER_PARTITIONED_BY
from penstock.router.sinks import SinkContext
from penstock.router.sinks.parquet.sink import ParquetLake, ParquetSink
from penstock.router.storage.hdfs import Hdfs
from penstock.service import UnavailableError
from tests.support.sink_batches import batch, context, log_record

SIZE: Final = 30
"""Of a batch, in records of the log."""

_SERVICES: Final = 4


def names_in_time(files: Hdfs) -> list[str] | None:
    """What files there are, if it is said before somebody hasty gives up."""
    with suppress(UnavailableError):
        return files.names()
    return None


def opened(
    url: str, directory: Path, *, within: SinkContext | None = None, **keys: Any
) -> ParquetLake:
    """The sink, as a job of this directory opens it."""
    directory.mkdir(exist_ok=True)
    config = ParquetSink.model_validate(
        {"type": "parquet", "path": url, "partition_by": FORMER_PARTITIONED_BY, **keys}
    )
    lake = ParquetLake(config, within or context(directory))
    lake.open()
    return lake


def rows(first: int, count: int = SIZE, *, rule: int = 0, service: str = "s") -> pa.Table:
    """A batch of several services, as a rule leaves it."""
    whole = batch([log_record(it) for it in range(first, first + count)], first=first)
    names = pa.array([f"{service}{it % _SERVICES}" for it in range(first, first + count)])
    whole = whole.set_column(whole.column_names.index("service"), "service", names)
    kept = kept_by(rule, first, count)
    return whole.filter(pa.array([it in kept for it in range(first, first + count)]))


def kept_by(rule: int, first: int, count: int = SIZE) -> set[int]:
    """The offsets that a rule leads to the sink: all, those of some services, or not the ends."""
    numbers = range(first, first + count)
    if rule == 1:
        return {it for it in numbers if it % _SERVICES != 2}
    return set(numbers[3:-5]) if rule == 2 else set(numbers)


def files(url: str) -> dict[str, bytes]:
    """Every file below a directory, by its path there; unfinished ones have no dot-name here."""
    tree = Hdfs(url, location="the test")
    found = {name: tree.read(name) for name in tree.names(recursive=True)}
    return {name: data for name, data in found.items() if data is not None}


def stored(url: str) -> Counter[int]:
    """How often each offset is there, for a reader of hive-partitioned Parquet."""
    return Counter(_column(url, "offset"))


def values(url: str) -> list[bytes]:
    """The records that are there, as they lie in the log."""
    return list(_column(url, "value"))


def _column(url: str, column: str) -> Iterator[Any]:
    for name, data in files(url).items():
        if not name.startswith("_writing/"):
            yield from pq.read_table(io.BytesIO(data))[column].to_pylist()


def done(directory: Path) -> list[int]:
    """The rules with which batches were done, in their order."""
    path = directory / "done"
    return [int(it) for it in path.read_text().split()] if path.exists() else []


def _write(url: str, directory: Path, rule: int, batches: int) -> None:
    directory.mkdir(exist_ok=True)
    its = context(directory)
    lake = opened(url, directory, within=its)
    print("ready", flush=True)  # noqa: T201 - for the test that waits
    for number in range(len(done(directory)), batches):
        its.starts["logs.5f2c19aa-0"] = number * SIZE
        lake.write(rows(number * SIZE, rule=rule))
        with (directory / "done").open("a") as file:
            file.write(f"{rule}\n")
        print("done", flush=True)  # noqa: T201 - likewise


if __name__ == "__main__":
    _write(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
