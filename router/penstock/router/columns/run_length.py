"""Rows that follow one another and are alike, such as those of one partition in sorted rows."""

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc


def runs(rows: pa.Table, names: Sequence[str]) -> list[tuple[int, int]]:
    """Return begin and end of each run of rows that have the same values in some columns.

    Arrow's `group_by` tells how many there are of each, but not in the order of their first row:
    it does so for a handful of groups, and for more of them only mostly.
    """
    if not rows.num_rows:
        return []
    changes = reduce(pc.or_, (_changes(rows.column(name)) for name in names))
    begins = pc.add(pc.indices_nonzero(changes), 1).to_pylist()
    return list(pairwise([0, *begins, rows.num_rows]))


def ascends(column: pa.ChunkedArray) -> bool:
    """Return whether each value is above the one before; null is not."""
    before, after = column.slice(0, max(len(column) - 1, 0)), column.slice(1)
    found = pc.all(pc.less(before, after), skip_nulls=False, min_count=0)
    return found.as_py() is True


def _changes(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return for each value but the first whether it differs from its predecessor.

    Null is a value.
    """
    after, before = column.slice(1), column.slice(0, len(column) - 1)
    one_is_null = pc.xor(pc.is_null(after), pc.is_null(before))
    return pc.coalesce(pc.not_equal(after, before), one_is_null)
