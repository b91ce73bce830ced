"""Leaving out what was there before: the record ids of the last while, bounded, kept on disk.

    STATE_DIR/dedupe.ROUTE/00000000000000000042.arrow   the ids that batch 42 saw first, with times

Times are those of the log, so that they only ever tell how far the log has come. Before a batch,
the files of earlier batches are what is known; so a batch that comes again is judged as it was the
first time. Ids that are older than the window, and the oldest ones above the bound, are forgotten
between batches, never within one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from penstock.router.durable import write_whole
from penstock.router.transforms.settings import Dedupe

COLUMNS: Final = frozenset({"record_id", "timestamp_ns", "stream", "partition", "offset"})
_SCHEMA: Final = pa.schema([("id", pa.string()), ("time_ns", pa.int64())])
_NEWEST: Final = b"newest_ns"


class Seen:
    """The ids that one route of one sink has seen."""

    def __init__(self, settings: Dedupe, directory: Path) -> None:
        self._settings = settings
        self._directory = directory
        self._times: dict[str, int] = {}
        self._files: dict[int, int] = {}
        """Batch to the newest time of its rows."""
        self._last: int | None = None
        self.forgotten = 0

    def fresh(self, table: pa.Table, batch: int) -> pa.Array:
        """Which rows are there for the first time; remembers them under the batch's number.

        Args:
            table: In the log's order, with `COLUMNS`.
            batch: Its number; one that is not above the last one is a batch that comes again.
        """
        if self._last is None or batch <= self._last:
            self._load(batch)
        self._forget()
        self._last = batch
        within_ns = int(self._settings.within_s * 1e9)
        ids = table.column("record_id").to_pylist()
        times = table.column("timestamp_ns").to_pylist()
        new: dict[str, int] = {}
        stays = []
        for record_id, time_ns in zip(ids, times, strict=True):
            before = None if record_id is None else self._times.get(record_id)
            known = before is not None and time_ns - before <= within_ns
            stays.append(not known)
            if record_id is not None and not known:
                self._times[record_id] = new[record_id] = time_ns
        self._keep(batch, new, max(times, default=0))
        return pa.array(stays, pa.bool_())

    def _keep(self, batch: int, new: dict[str, int], newest_ns: int) -> None:
        schema = _SCHEMA.with_metadata({_NEWEST: str(newest_ns).encode()})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as writer:
            writer.write(pa.record_batch([list(new), list(new.values())], schema=schema))
        write_whole(self._path(batch), sink.getvalue().to_pybytes())
        self._files[batch] = newest_ns

    def _load(self, batch: int) -> None:
        """Know what the batches before this one saw, and nothing else."""
        self._times, self._files = {}, {}
        for number in self._numbers():
            if number >= batch:
                self._path(number).unlink()
                continue
            with pa.ipc.open_file(self._path(number).read_bytes()) as reader:
                rows = reader.read_all()
            self._times.update(zip(*(c.to_pylist() for c in rows.columns), strict=True))
            self._files[number] = int(rows.schema.metadata[_NEWEST])

    def _forget(self) -> None:
        if not self._files:
            return
        horizon = max(self._files.values()) - int(self._settings.within_s * 1e9)
        newest = max(self._files)
        for number in [n for n, at in self._files.items() if at < horizon and n != newest]:
            self._path(number).unlink(missing_ok=True)
            del self._files[number]
        self._times = {name: at for name, at in self._times.items() if at >= horizon}
        above = len(self._times) - self._settings.ids_max
        if above > 0:
            times = pa.array(list(self._times.values()), pa.int64())
            oldest = pc.select_k_unstable(times, above, [("", "ascending")])
            names = pa.array(list(self._times), pa.string()).take(oldest)
            for name in names.to_pylist():
                del self._times[name]
            self.forgotten += above

    def _numbers(self) -> Iterator[int]:
        return iter(sorted(int(path.stem) for path in self._directory.glob("*.arrow")))

    def _path(self, batch: int) -> Path:
        return self._directory / f"{batch:020d}.arrow"
