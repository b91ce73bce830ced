"""Rows of one place stay together, however many places a batch has."""

import json
from collections import defaultdict
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.router.columns.run_length import ascends, runs
from penstock.router.deadletters.writer import Reason, send_each_to_dlq
from penstock.router.delivery.batch_names import in_log_order, positions_of
from penstock.router.lake.layout import FORMER_PARTITIONED_BY, Partitioning
from penstock.router.sinks.parquet.writer import split_by_partition
from penstock.router.sinks.table_format import rows_by_partition
from tests.support.sink_batches import batch, context, log_record
from tests.unit.router.sink_rows import MORNING, row, table

PLACES = [(stream, number) for stream in ("audit", "logs") for number in range(150)]
KEYS = st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([0, 1, None]))


@given(st.lists(KEYS, max_size=30), st.integers(0, 30))
def test_a_run_goes_on_as_long_as_nothing_changes(keys: list[tuple[str, int]], cut: int) -> None:
    names, types = ["x", "y"], [pa.string(), pa.int32()]
    columns = [pa.array([key[at] for key in keys], kind) for at, kind in enumerate(types)]
    rows = pa.Table.from_arrays(columns, names)
    rows = pa.concat_tables([rows.slice(0, cut), rows.slice(cut)])  # several chunks
    found = runs(rows, names)
    assert [at for run in found for at in range(*run)] == [*range(len(keys))]
    for begin, end in found:
        assert len({*keys[begin:end]}) == 1
        assert end == len(keys) or keys[end] != keys[begin]


@given(st.lists(st.none() | st.integers(0, 9), max_size=6), st.integers(0, 6))
def test_a_column_ascends_where_no_value_is_null_or_below_the_one_before(
    values: list[int | None], cut: int
) -> None:
    column = pa.chunked_array([values[:cut], values[cut:]], pa.int64())
    known = [it for it in values if it is not None]
    in_order = len(known) == len(values) and known == sorted({*known})
    assert ascends(column) == (in_order or len(values) < 2)


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 5), st.integers(0, 1)), min_size=1, max_size=8
    ),
    st.booleans(),
)
def test_rows_of_a_file_are_in_the_order_of_the_log_as_they_come(
    given_rows: list[tuple[int, int, int]], is_sorted: bool
) -> None:
    """Rows that are in order already are not sorted, and others are."""
    unique = {(partition, offset): hour for partition, offset, hour in given_rows}
    places = sorted(unique) if is_sorted else list(unique)
    times = [MORNING + timedelta(hours=unique[place]) for place in places]
    rows = table(
        [
            row(offset, partition=partition, time=time)
            for (partition, offset), time in zip(places, times, strict=True)
        ]
    )
    files = [
        [*zip(part["partition"].to_pylist(), part["offset"].to_pylist(), strict=True)]
        for _, part in split_by_partition(rows, Partitioning(("hour",)))
    ]
    expected = defaultdict[tuple[int, int], list[tuple[int, int]]](list)
    for place, hour in sorted(unique.items()):
        expected[hour, place[0]].append(place)
    assert files == [expected[key] for key in sorted(expected)]
    assert positions_of(in_log_order(rows)) == [("logs", *it) for it in sorted(unique)]


def rows_of_many_places() -> pa.Table:
    """Of each place as many rows as its number says, and one."""
    return table(
        [
            row(offset, stream=stream, partition=partition, service=f"s{partition}")
            for stream, partition in PLACES
            for offset in range(partition % 5 + 1)
        ]
    )


def test_each_row_is_in_the_directory_of_its_service() -> None:
    seen = []
    by_service = Partitioning(FORMER_PARTITIONED_BY)
    for directory, part in split_by_partition(rows_of_many_places(), by_service):
        ((stream,), (partition,)) = (
            {*part.column(name).to_pylist()} for name in ("stream", "partition")
        )
        assert f"/service=s{partition}/" in directory
        assert part.column("offset").to_pylist() == [*range(partition % 5 + 1)]
        seen.append((stream, partition))
    assert sorted(seen) == PLACES


def test_a_lake_has_each_row_for_one_of_its_place() -> None:
    rows = rows_of_many_places()
    for name in ("sink", "incarnation"):
        rows = rows.append_column(name, pa.repeat("i", rows.num_rows))
    found = rows_by_partition(rows)
    assert [(place.stream, place.partition) for place, _ in found] == PLACES
    for place, part in found:
        assert {*part.column("stream").to_pylist()} == {place.stream}
        assert {*part.column("partition").to_pylist()} == {place.partition}


def test_dead_letters_of_one_file_are_of_one_partition(tmp_path: Path) -> None:
    rows = pa.concat_tables(
        batch([log_record(0)] * (partition % 5 + 1), stream=stream, partition=partition)
        for stream, partition in PLACES
    )
    paths = send_each_to_dlq(rows, [Reason("x", "no")] * rows.num_rows, context(tmp_path))
    dead_letters = [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]
    assert [{(it["stream"], it["partition"]) for it in file} for file in dead_letters] == [
        {place} for place in PLACES
    ]
