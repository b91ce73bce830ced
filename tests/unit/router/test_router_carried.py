"""Rows that go past Spark: what it says of each meets the row that it was said of."""

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.router.columns.passthrough import (
    PART_BYTES,
    PASSTHROUGH,
    lost_of,
    pack,
    pack_lost,
    unpack,
    unpack_for_each,
    whole_values,
)

SCHEMA = pa.schema([("offset", pa.int64()), ("tags", pa.map_(pa.string(), pa.string()))])
VERDICT = "route"


def batch(first: int, count: int) -> pa.RecordBatch:
    offsets = list(range(first, first + count))
    return pa.RecordBatch.from_pydict(
        {"offset": offsets, "tags": [[("n", str(offset))] for offset in offsets]}, schema=SCHEMA
    )


def judged(parts: list[pa.RecordBatch], verdicts: list[Any]) -> pa.Table:
    """What Spark makes of packed batches, one verdict a row."""
    values = [value for part in parts for value in part.column(PASSTHROUGH).to_pylist()]
    return pa.table(
        {PASSTHROUGH: pa.array(values, pa.binary()), VERDICT: pa.array(verdicts, pa.int32())}
    )


@given(st.lists(st.lists(st.none() | st.integers(0, 3), min_size=1, max_size=5), max_size=5))
def test_each_row_has_its_own_verdict_and_those_without_one_are_left_out(
    of_batches: list[list[int | None]],
) -> None:
    parts, want, first = [], [], 0
    for verdicts in of_batches:
        rows = batch(first, len(verdicts))
        parts.append(pack(rows.select(["offset"]), rows))
        want += [(first + at, it) for at, it in enumerate(verdicts) if it is not None]
        first += len(verdicts)
    got = unpack(judged(parts, [it for each in of_batches for it in each]), VERDICT, SCHEMA)
    assert got.column_names == ["offset", "tags", VERDICT]
    assert list(zip(got["offset"].to_pylist(), got[VERDICT].to_pylist(), strict=True)) == want
    assert [dict(tags)["n"] for tags in got["tags"].to_pylist()] == [str(at) for at, _ in want]


@given(
    st.lists(
        st.lists(st.tuples(st.none() | st.just(0), st.none() | st.just(1)), min_size=1, max_size=5),
        max_size=5,
    )
)
def test_several_verdicts_on_the_same_rows_are_each_as_if_it_were_the_only_one(
    of_batches: list[list[tuple[int | None, int | None]]],
) -> None:
    parts, first = [], 0
    for verdicts in of_batches:
        rows = batch(first, len(verdicts))
        parts.append(pack(rows.select(["offset"]), rows))
        first += len(verdicts)
    said = [pair for each in of_batches for pair in each]
    packed = judged(parts, [one for one, _ in said])
    both = packed.append_column("other", pa.array([other for _, other in said], pa.int32()))
    names = [VERDICT, "other"]
    found = unpack_for_each(both, names, SCHEMA, "said")
    for name, rows in zip(names, found, strict=True):
        alone = unpack(both, name, SCHEMA)
        assert rows.rename_columns(alone.column_names) == alone
        assert rows.column_names[-1] == "said"


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(1, 7), st.booleans())
def test_rows_that_spark_cuts_anywhere_are_unpacked_as_the_whole_is(
    counts: list[int], cut: int, one_row_for_all: bool
) -> None:
    parts, first = [], 0
    for count in counts:
        rows = batch(first, count)
        parts.append(pack(rows.select([] if one_row_for_all else ["offset"]), rows))
        first += count
    packed = judged(parts, [0] * sum(part.num_rows for part in parts))
    tables = list(whole_values(iter(packed.combine_chunks().to_batches(max_chunksize=cut))))
    assert pa.concat_tables(tables) == packed
    got = [it for table in tables for it in unpack(table, VERDICT, SCHEMA)["offset"].to_pylist()]
    assert got == list(range(first))


@given(st.lists(st.tuples(st.integers(1, 5), st.none() | st.integers(0, 3)), max_size=5))
def test_where_nothing_is_looked_at_one_verdict_is_for_all_of_a_batch(
    batches: list[tuple[int, int | None]],
) -> None:
    parts, want, first = [], [], 0
    for count, verdict in batches:
        rows = batch(first, count)
        packed = pack(rows.select([]), rows)
        assert packed.num_rows == 1
        parts.append(packed)
        want += [] if verdict is None else [(at, verdict) for at in range(first, first + count)]
        first += count
    got = unpack(judged(parts, [verdict for _, verdict in batches]), VERDICT, SCHEMA)
    assert list(zip(got["offset"].to_pylist(), got[VERDICT].to_pylist(), strict=True)) == want


@pytest.mark.parametrize("verdict", [None, 1])
@pytest.mark.parametrize("judged_columns", [[], ["offset"]])
def test_what_tells_of_losses_is_no_row_whatever_is_said_of_it(
    judged_columns: list[str], verdict: int | None
) -> None:
    rows = batch(0, 2)
    packed = pack(rows.select(judged_columns), rows)
    lost = [pack_lost(count, packed.schema.remove(len(judged_columns))) for count in (7, 5)]
    assert [it.schema for it in lost] == [packed.schema] * 2
    said: list[int | None] = [1] * packed.num_rows
    table = judged([lost[0], packed, lost[1], packed], [verdict, *said, verdict, *said])
    assert unpack(table, VERDICT, SCHEMA)["offset"].to_pylist() == [0, 1, 0, 1]
    assert (lost_of(table), lost_of(table.slice(0, 0))) == (12, 0)


def test_what_does_not_fit_together_is_an_error() -> None:
    rows = batch(0, 3)
    with pytest.raises(pa.ArrowInvalid):
        unpack(judged([pack(rows.select(["offset"]), rows).slice(0, 2)], [1, 1]), VERDICT, SCHEMA)


@pytest.mark.parametrize("offsets", [[7, 8], [None, None], [None, 8]])
@pytest.mark.parametrize("tags", [[None, None], [None, [("n", "1")]]])
def test_columns_without_any_value_come_back(offsets: list[Any], tags: list[Any]) -> None:
    rows = pa.RecordBatch.from_pydict({"offset": offsets, "tags": tags}, schema=SCHEMA)
    got = unpack(judged([pack(rows.select([]), rows)], [1]), VERDICT, SCHEMA)
    assert got.schema.remove(2) == SCHEMA
    assert got.select(SCHEMA.names).to_pylist() == rows.to_pylist()


def test_what_has_no_value_takes_no_room() -> None:
    many = pa.schema([("offset", pa.int64()), *((f"c{at}", pa.string()) for at in range(80))])
    nulls = {f"c{at}": [None] * 100 for at in range(80)}
    rows = pa.RecordBatch.from_pydict({"offset": range(100), **nulls}, schema=many)
    alone = pack(rows.select([]), rows.select(["offset"])).nbytes
    assert pack(rows.select([]), rows).nbytes == alone


def test_columns_without_values_take_the_memory_of_one_for_each_type() -> None:
    count = 10_000
    schema = pa.schema([("offset", pa.int64()), *((f"text{n}", pa.string()) for n in range(50))])
    columns = [pa.array(range(count)), *(pa.nulls(count, pa.string()) for _ in range(50))]
    rows = pa.RecordBatch.from_arrays(columns, schema=schema)
    packed = pack(rows.select([]), rows)
    before = pa.total_allocated_bytes()
    got = unpack(judged([packed], [1]), VERDICT, schema)
    assert pa.total_allocated_bytes() - before < 30 * count
    assert got.drop_columns([VERDICT]).equals(pa.Table.from_batches([rows]))


@pytest.mark.parametrize("verdict", [None, 1])
@pytest.mark.parametrize("judged_columns", [[], ["offset"]])
@pytest.mark.parametrize("cut", [1, 2, 1000])
def test_a_long_value_comes_in_parts_that_are_rows_of_no_record(
    judged_columns: list[str], verdict: int | None, cut: int
) -> None:
    """However Spark cuts them, and whatever it says of their rows."""
    schema = pa.schema([("offset", pa.int64()), ("value", pa.binary())])
    large = [random.Random(at).randbytes(size) for at, size in enumerate((9, 2 * PART_BYTES, 4))]
    long = pa.RecordBatch.from_pydict({"offset": [0, 1, 2], "value": large}, schema=schema)
    short = pa.RecordBatch.from_pydict({"offset": [3], "value": [b"PART"]}, schema=schema)
    packed = [pack(it.select(judged_columns), it) for it in (long, long, short)]
    rows = [2 + (3 if judged_columns else 1)] * 2 + [1]
    assert [it.num_rows for it in packed] == rows
    longest = max(len(it or b"") for part in packed for it in part[PASSTHROUGH].to_pylist())
    assert longest <= PART_BYTES + 4
    said = [verdict, verdict, *([0] * (rows[0] - 2))]
    table = judged(packed, [*said, *said, 0]).combine_chunks()
    tables = list(whole_values(iter(table.to_batches(max_chunksize=cut))))
    got = pa.concat_tables([unpack(it, VERDICT, schema) for it in tables])
    assert got["offset"].to_pylist() == [0, 1, 2, 0, 1, 2, 3]
    assert got["value"].to_pylist() == [*large, *large, b"PART"]
    assert lost_of(table) == 0
