"""What `dedupe` left out of each batch, so that a replay of a range leaves out the same.

    SINK/dedupe.ROUTE/left_out.ndjson   [["logs", "5f2c…", 0, 100, 199, [104, 104, 150, 162]]]

A line is a batch: for each partition the stream, its id (`SinkContext.stream_id`), its number, the
first and the last offset of the rows that were judged, and runs of those that were left out, from
and to. What comes again, or in a stream's order before what is noted, takes the place of that.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from penstock.router.kept_lines import KeptLines

NOTES: Final = "left_out.ndjson"
"""Its file, in the directory of a route's `dedupe`."""

BATCHES_MAX: Final = 100_000
"""Lines that are kept, as of the journal of batches."""

BYTES_MAX: Final = 64 * 1024 * 1024
"""Of them, about: a batch of which every second row was left out has 600 KB."""

Place = tuple[str, str, int]
"""Stream, its id with the generation of the record, and partition."""

StreamId = Callable[[str, int, int], str]
"""The id of a stream, of a record's stream, partition and offset."""


def nameless(_stream: str, _partition: int, _offset: int) -> str:
    """Of streams whose ids are not known."""
    return ""


@dataclass(slots=True)
class Judged:
    """Of one partition, in its order: what was judged, and of that what was left out, from and to.

    The latter as two lists for each batch, so that a row is looked up without a copy of them.
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
        """Whether the row went on; None: it was not judged, as far as is known."""
        at = bisect_right(self.firsts, offset) - 1
        if at < 0 or offset > self.lasts[at]:
            return None
        begins, ends = self.runs[at]
        return bisect_right(begins, offset) == bisect_right(ends, offset - 1)


class LeftOut:
    """The notes of one route of one sink.

    Args:
        directory: Of the route's `dedupe`.
        stream_id: As `SinkContext.stream_id`.
        bytes_max: Of the file, about.
    """

    def __init__(self, directory: Path, stream_id: StreamId, *, bytes_max: int = BYTES_MAX) -> None:
        self._path = directory / NOTES
        self._bytes_max = bytes_max
        self._stream_id = stream_id
        self._lines: KeptLines | None = None
        self._judged: dict[Place, Judged] | None = None

    def note(self, table: pa.Table, stays: Sequence[bool]) -> None:
        """Of a batch, whose rows come in the log's order."""
        found: dict[Place, tuple[list[int], list[int]]] = {}
        for (place, offset), stay in zip(self._places(table), stays, strict=True):
            judged, runs = found.setdefault(place, ([], []))
            judged.append(offset)
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
            self._lines = KeptLines(self._path, lines_max=BATCHES_MAX, bytes_max=self._bytes_max)
        if line != self._lines.last:
            self._lines.add(line)

    def stayed(self, table: pa.Table) -> list[bool | None]:
        """Of each row, whether it went on then; None: that is not known."""
        if self._judged is None:
            self._judged = self._load()
        nothing = Judged()
        judged = self._judged
        return [judged.get(at, nothing).stayed(offset) for at, offset in self._places(table)]

    def _places(self, table: pa.Table) -> list[tuple[Place, int]]:
        streams, partitions, offsets = (
            table.column(name).to_pylist() for name in ("stream", "partition", "offset")
        )
        return [
            ((stream, self._stream_id(stream, partition, offset), partition), offset)
            for stream, partition, offset in zip(streams, partitions, offsets, strict=True)
        ]

    def _load(self) -> dict[Place, Judged]:
        found: dict[Place, Judged] = {}
        for line in KeptLines(self._path, lines_max=BATCHES_MAX).load():
            try:
                parts: list[Any] = json.loads(line)
            except ValueError:  # torn by a crash; the batch is not known then
                continue
            for stream, life, partition, first, last, runs in parts:
                found.setdefault((stream, life, partition), Judged()).add(first, last, runs)
        return found
