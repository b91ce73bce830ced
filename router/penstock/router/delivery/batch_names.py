"""Names of records at a destination, the same when a batch or a replay delivers them again."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.router.columns.run_length import ascends, runs
from penstock.router.read.offsets import Generations, StreamPartition, generation_at

POSITION: Final = ("stream", "partition", "offset")
"""The columns of a row's position."""

RowPosition = tuple[str, int, int]
"""Stream, partition and offset of a row."""


def positions_of(rows: pa.Table) -> list[RowPosition]:
    """Return the position of each row."""
    columns = (rows.column(name).to_pylist() for name in POSITION)
    return list(zip(*columns, strict=True))


def in_log_order(rows: pa.Table) -> pa.Table:
    """Rows by stream, partition and offset, so that a batch that comes again is the same."""
    if len(runs(rows, POSITION[:2])) < 2 and ascends(rows.column(POSITION[2])):
        return rows
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in POSITION])
    return rows.take(order)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNames:
    """Names of the records of the current batch. It can be pickled.

    Attributes:
        stream_ids: Id of each stream in the batch; a recreated stream has its offsets again. The
            query keeps them up to date.
        generations: Generations of partitions that the log truncated below what was read; the
            query keeps them up to date.
    """

    stream_ids: dict[str, str]
    generations: dict[StreamPartition, Generations] = field(default_factory=dict)

    def names(self) -> "BatchNames":
        """Return the names of the current batch, which do not change with the next one."""
        return BatchNames(stream_ids=dict(self.stream_ids), generations=dict(self.generations))

    def stream_id(self, stream: str, partition: int, offset: int) -> str:
        """The stream's id, behind a truncation with the generation of the record (`5f2c….1`).

        With partition and offset it names one record only, whatever the log has lost.
        """
        of_stream = self.stream_ids.get(stream, "")
        found = self.generations.get(StreamPartition(stream, partition))
        number = generation_at(found, offset) if found else 0
        return f"{of_stream}.{number}" if number else of_stream

    def stream_tag(self, stream: str, partition: int, offset: int) -> str:
        """The stream's name with a mark of `stream_id`, for names that must not repeat."""
        of_stream, dot, number = self.stream_id(stream, partition, offset).partition(".")
        return f"{stream}.{of_stream[:8] or '0'}{dot}{number}"

    def position_tag(self, stream: str, partition: int, offset: int) -> str:
        """A partition of the log and a generation of its records, for names likewise."""
        return f"{self.stream_tag(stream, partition, offset)}-{partition}"

    def by_generation(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Rows of one partition, in their order, cut where a generation begins."""
        position = rows.select(["stream", "partition"]).slice(0, 1).to_pylist()[0]
        begins = self.generations.get(
            StreamPartition(position["stream"], position["partition"]), ()
        )
        offsets = rows.column("offset").to_pylist()
        cuts = sorted({bisect_left(offsets, first) for first, _ in begins} - {0, len(offsets)})
        for first, end in pairwise([0, *cuts, len(offsets)]):
            yield rows.slice(first, end - first)
