"""How the lakes' sinks find out how far a table is, in memory that does not grow with it."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from typing_extensions import override

from penstock.router.sinks.iceberg.sink import MARKS, IcebergTable
from penstock.router.sinks.table_format import LakeFiles, LakeTable, SinkPartition, missing_rows

PLACE = SinkPartition("job.sink", "logs", "5f2c19aa", 0)
ROWS = 1_000_000_000
"""Of the table: what nobody may load."""


def rows_of(*offsets: int) -> pa.Table:
    count = len(offsets)
    return pa.table(
        {
            "sink": [PLACE.sink] * count,
            "stream": [PLACE.stream] * count,
            "incarnation": [PLACE.stream_id] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
        }
    )


class LargeTable(LakeTable):
    """It has each offset below `ROWS`, and counts how many it was asked for at once."""

    def __init__(self) -> None:
        self.most = 0

    @override
    def committed_offset(self, place: SinkPartition, first: int) -> int | None:
        return ROWS

    @override
    def offsets(self, place: SinkPartition, first: int, last: int) -> pa.Array:
        self.most = max(self.most, last - first + 1)
        return pa.array(range(first, min(last, first + 10) + 1), pa.int64())

    @override
    def append(self, rows: pa.Table, marks: Mapping[SinkPartition, int]) -> None:
        raise AssertionError("nobody appends")

    @override
    def files(self) -> LakeFiles | None:
        return None

    @override
    def append_files(self, files: Sequence[Any], marks: Mapping[SinkPartition, int]) -> None:
        raise AssertionError("nobody appends")


def test_rows_far_from_each_other_are_not_looked_up_with_all_between_them() -> None:
    table = LargeTable()
    missing, marks = missing_rows(table, rows_of(3, 4, ROWS - 2, ROWS + 5))
    assert missing.column("offset").to_pylist() == [ROWS + 5]
    assert marks == {PLACE: ROWS + 6}
    assert table.most < ROWS // 100


class Snapshots:
    """Of an Iceberg table: the oldest one kept names another partition, its parent is expired."""

    def __init__(self, batches: Callable[[Any], list[pa.RecordBatch]]) -> None:
        self._batches = batches
        summary = {MARKS: "{}"}
        self._kept = SimpleNamespace(
            snapshot_id=7, parent_snapshot_id=6, sequence_number=7, summary=summary
        )

    def snapshots(self) -> list[Any]:
        return [self._kept]

    def current_snapshot(self) -> Any:
        return self._kept

    def snapshot_by_id(self, number: int) -> Any:
        return self._kept if number == 7 else None

    def scan(self, *, row_filter: Any, selected_fields: Any) -> Any:
        assert selected_fields == ("offset",)
        batches = self._batches(row_filter)
        schema = pa.schema([pa.field("offset", pa.int64())])
        return SimpleNamespace(
            to_arrow=lambda: pa.Table.from_batches(batches, schema),
            to_arrow_batch_reader=lambda: pa.RecordBatchReader.from_batches(schema, batches),
        )


@pytest.mark.parametrize(("there", "mark"), [([], None), ([500, 502, 501], 503)])
def test_behind_expired_snapshots_only_rows_from_the_first_on_are_read(
    there: list[int], mark: int | None
) -> None:
    asked: list[str] = []

    def batches(row_filter: Any) -> list[pa.RecordBatch]:
        asked.append(str(row_filter))
        return [pa.record_batch({"offset": pa.array([it], pa.int64())}) for it in there]

    table = IcebergTable(Snapshots(batches), adds_columns=False)
    assert table.committed_offset(PLACE, 500) == mark
    (text,) = asked
    assert "GreaterThanOrEqual(term=Reference(name='offset'), literal=LongLiteral(500))" in text
