"""Leaving out records whose id was there before; the ids, and what was left out, are kept on disk.

    STATE_DIR/dedupe.ROUTE/00000000000000000042.arrow   the ids that batch 42 saw first, with times
    SINK/dedupe.ROUTE/left_out.ndjson   [["logs", "5f2c…", 0, 100, 199, [104, 104, 150, 162]]]

Times are those of the log, so that they only ever tell how far the log has come. Before a batch,
the files of earlier batches are what is known; so a batch that comes again is decided as it was the
first time. Ids that are older than the window, and the oldest ones above the bound, are forgotten
between batches, never within one.

What is left out is noted, so that a replay of a range leaves out the same, though it does not know
all that came before. A line of `left_out.ndjson` is a batch: for each partition the stream, its id
(`SinkContext.stream_id`), its number, the first and the last offset of the rows that were decided,
and runs of those that were left out, from and to. What comes again, or in a stream's order before
what is noted, takes the place of that.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from penstock.base.files import atomic_write
from penstock.router.checkpoint.journal import JOURNAL, KeptLines
from penstock.router.delivery.batch_names import positions_of
from penstock.router.transforms.settings import Dedupe
from penstock.service import ConfigError

NOTES: Final = "left_out.ndjson"
"""Name of the notes in the directory of a route's `dedupe`."""

BYTES_MAX: Final = 64 * 1024 * 1024
"""Approximate maximum bytes of the journal; a batch with every second row left out has 600 KB."""

StreamIdPartition = tuple[str, str, int]
"""Stream, its id with the generation of the record, and partition."""

StreamId = Callable[[str, int, int], str]
"""The id of a stream, of a record's stream, partition and offset."""


def nameless(_stream: str, _partition: int, _offset: int) -> str:
    """Return "" as the id of each stream, where ids are unknown."""
    return ""


@dataclass(slots=True)
class Decided:
    """Decisions on the rows of one partition, in order: offset ranges decided, and those left out.

    The latter are two lists for each batch, so that a row is looked up without a copy of them.
    """

    firsts: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)
    runs: list[tuple[Sequence[int], Sequence[int]]] = field(default_factory=list)

    def add(self, first: int, last: int, runs: Sequence[int]) -> None:
        while self.lasts and self.lasts[-1] >= first:
            del self.firsts[-1], self.lasts[-1], self.runs[-1]
        self.firsts.append(first)
        self.lasts.append(last)
        self.runs.append((runs[::2], runs[1::2]))

    def stayed(self, offset: int) -> bool | None:
        """Return whether the row was kept; None: no decision is known."""
        at = bisect_right(self.firsts, offset) - 1
        if at < 0 or offset > self.lasts[at]:
            return None
        begins, ends = self.runs[at]
        return bisect_right(begins, offset) == bisect_right(ends, offset - 1)


class LeftOut:
    """The notes of one route of one sink.

    Args:
        stream_id: The same as `SinkContext.stream_id`.
    """

    def __init__(self, directory: Path, stream_id: StreamId, *, max_bytes: int = BYTES_MAX) -> None:
        self._path = directory / NOTES
        self._max_bytes = max_bytes
        self._stream_id = stream_id
        self._lines: KeptLines | None = None
        self._decided: dict[StreamIdPartition, Decided] | None = None

    def note(self, table: pa.Table, stays: Sequence[bool]) -> None:
        """Note the decisions on a batch, whose rows are in the log's order."""
        found: dict[StreamIdPartition, tuple[list[int], list[int]]] = {}
        for (partition_id, offset), stay in zip(self._positions(table), stays, strict=True):
            decided, runs = found.setdefault(partition_id, ([], []))
            decided.append(offset)
            if stay:
                continue
            if runs and runs[-1] == offset - 1:
                runs[-1] = offset
            else:
                runs += [offset, offset]
        if not found:
            return
        line = json.dumps([[*at, rows[0], rows[-1], runs] for at, (rows, runs) in found.items()])
        if self._lines is None:
            self._lines = KeptLines(self._path, max_bytes=self._max_bytes)
        if line != self._lines.last:
            self._lines.add(line)

    def stayed(self, table: pa.Table) -> list[bool | None]:
        """Return for each row whether it was kept; None: no decision is known."""
        if self._decided is None:
            self._decided = self._load()
        nothing = Decided()
        decided = self._decided
        return [decided.get(at, nothing).stayed(offset) for at, offset in self._positions(table)]

    def _positions(self, table: pa.Table) -> list[tuple[StreamIdPartition, int]]:
        return [
            ((stream, self._stream_id(stream, partition, offset), partition), offset)
            for stream, partition, offset in positions_of(table)
        ]

    def _load(self) -> dict[StreamIdPartition, Decided]:
        found: dict[StreamIdPartition, Decided] = {}
        for line in KeptLines(self._path).load():
            try:
                parts: list[Any] = json.loads(line)
            except ValueError:  # torn by a crash; the batch is not known then
                continue
            for stream, stream_id, partition, first, last, runs in parts:
                found.setdefault((stream, stream_id, partition), Decided()).add(first, last, runs)
        return found


COLUMNS: Final = frozenset({"record_id", "timestamp_ns", "stream", "partition", "offset"})
_SCHEMA: Final = pa.schema([("id", pa.string()), ("time_ns", pa.int64())])
_NEWEST: Final = b"newest_ns"


@dataclass(frozen=True, slots=True)
class Again:
    """Mark of rows that are delivered a second time.

    Attributes:
        home: The sink's directory, with the job's notes.
        must_be_noted: Whether rows without a noted decision are refused, for the sink might have
            them twice otherwise.
    """

    home: Path
    must_be_noted: bool


class Seen:
    """The ids that one route of one sink has seen.

    Args:
        stream_id: The same as `SinkContext.stream_id`.
    """

    def __init__(
        self,
        settings: Dedupe,
        directory: Path,
        stream_id: StreamId,
        again: Again | None = None,
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._again = again
        home = directory if again is None else again.home / directory.name
        self._left_out = LeftOut(home, stream_id)
        self._times: dict[str, int] = {}
        self._files: dict[int, int] = {}
        """Batch to the newest time of its rows."""
        self._last: int | None = None
        self.forgotten = 0

    def fresh(self, table: pa.Table, batch: int) -> pa.Array:
        """Return which rows occur for the first time; store them under the batch's number.

        Args:
            table: Rows in the log's order, with `COLUMNS`.
            batch: The batch's number; one that is not above the last one is a repeated batch.

        Raises:
            ConfigError: A decision must be known, and is not.
        """
        if self._last is None or batch <= self._last:
            self._load(batch)
        self._forget()
        self._last = batch
        within_ns = int(self._settings.within_s * 1e9)
        ids = table.column("record_id").to_pylist()
        times = table.column("timestamp_ns").to_pylist()
        new: dict[str, int] = {}
        stays: list[bool] = []
        for record_id, time_ns, then in zip(ids, times, self._noted(table), strict=True):
            before = None if record_id is None else self._times.get(record_id)
            known = before is not None and time_ns - before <= within_ns
            stays.append(not known if then is None else then)
            if record_id is not None and stays[-1]:
                self._times[record_id] = new[record_id] = time_ns
        if self._again is None or not self._again.must_be_noted:  # else notes decide on every row
            self._keep(batch, new, max(times, default=0))
        if self._again is None:
            self._left_out.note(table, stays)
        return pa.array(stays, pa.bool_())

    def decided(self, table: pa.Table) -> list[bool | None]:
        """Return for each row whether it was kept, as noted; None: no decision is known."""
        return self._left_out.stayed(table)

    def _noted(self, table: pa.Table) -> list[bool | None]:
        """Return the noted decision on each row: whether it was kept."""
        if self._again is None:
            return [None] * table.num_rows
        noted = self._left_out.stayed(table)
        if self._again.must_be_noted and None in noted:
            stream, partition, offset = positions_of(table)[noted.index(None)]
            raise ConfigError(
                f"{stream}/{partition}: whether dedupe left out offset {offset} at the first time"
                f" is not noted, and {self._again.home.name} might have records twice",
                fix=f"begin behind it with --from; or replay all, from the job's beginning; or, if"
                f" {self._again.home.name} has none of those records any more, remove"
                f" {self._again.home / JOURNAL}",
            )
        return noted

    def _keep(self, batch: int, new: dict[str, int], newest_ns: int) -> None:
        schema = _SCHEMA.with_metadata({_NEWEST: str(newest_ns).encode()})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as writer:
            writer.write(pa.record_batch([list(new), list(new.values())], schema=schema))
        atomic_write(self._path(batch), sink.getvalue().to_pybytes(), parents=True)
        self._files[batch] = newest_ns

    def _load(self, batch: int) -> None:
        """Know what the batches before this one saw, and nothing else."""
        self._times, self._files = {}, {}
        for number in sorted(int(path.stem) for path in self._directory.glob("*.arrow")):
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
        above = len(self._times) - self._settings.max_ids
        if above > 0:
            times = pa.array(list(self._times.values()), pa.int64())
            oldest = pc.select_k_unstable(times, above, [("", "ascending")])
            names = pa.array(list(self._times), pa.string()).take(oldest)
            for name in names.to_pylist():
                del self._times[name]
            self.forgotten += above

    def _path(self, batch: int) -> Path:
        return self._directory / f"{batch:020d}.arrow"
