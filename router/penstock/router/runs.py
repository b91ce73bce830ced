"""Where in a table rows with the same values begin, and how many there are."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

_ROW = "_row"


def runs(rows: pa.Table, names: Sequence[str]) -> list[tuple[dict[str, Any], int, int]]:
    """Values of the columns, their first row and how many rows have them, in the rows' order.

    Arrow promises no order of groups: where the hashes of two collide, one comes later.

    Args:
        rows: Those with the same values stand together.
        names: Of the columns.
    """
    numbers = pa.array(range(rows.num_rows), pa.int64())
    keys = rows.select(list(names)).append_column(_ROW, numbers)
    groups = keys.group_by(list(names), use_threads=False)
    found = groups.aggregate([(_ROW, "min"), (_ROW, "count")]).sort_by(f"{_ROW}_min").to_pylist()
    return [(group, group.pop(f"{_ROW}_min"), group.pop(f"{_ROW}_count")) for group in found]
