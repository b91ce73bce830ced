"""Message ids out of a column of stored headers, with no Python object made of a row.

A start and every follower go through as many rows as there are messages within the window of ids,
up to a million: `Array.to_pylist` makes an object of each value on the way and takes many times as
long as reading Arrow's buffers (https://arrow.apache.org/docs/format/Columnar.html) does.
"""

from itertools import pairwise
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from penstock.logd.core.publish_options import MESSAGE_ID
from penstock.logd.limits import MESSAGE_ID_LENGTH_MAX

_NAME: Final = pa.scalar(MESSAGE_ID, pa.string())
_SIZES: Final = {"i": 4, "q": 8, "Q": 8}


def stored_message_ids(headers: pa.MapArray) -> tuple[list[int], list[bytes]]:
    """The rows of a column of headers that have an id, and the ids, as `stored_message_id` finds.

    Of a repeated name the first pair counts, though it be empty; an empty id is none, and so is
    one that is too long to be remembered.
    """
    found = pc.indices_nonzero(pc.equal(headers.keys, _NAME))
    if not len(found):
        return [], []
    pairs, values = integers(found, "Q"), _binaries(headers.items.take(found))
    if max(map(len, values)) > MESSAGE_ID_LENGTH_MAX:
        values = [value if len(value) <= MESSAGE_ID_LENGTH_MAX else b"" for value in values]
    starts = integers(headers.offsets, "i")
    every_row = pairs == starts[:-1] and starts[-1] > pairs[-1]
    if every_row and not headers.null_count and all(values):  # what publishers with ids send
        return list(range(len(values))), values
    return _first_of_each_row(headers, starts, dict(zip(pairs, values, strict=True)))


def integers(column: pa.Array, code: Literal["i", "q", "Q"]) -> list[int]:
    """The values of a column of integers without nulls; `code` is `struct`'s for its type."""
    size = _SIZES[code]
    data = memoryview(column.buffers()[1])[column.offset * size :][: len(column) * size]
    return data.cast(code).tolist()


def _binaries(column: pa.Array) -> list[bytes]:
    """The values of a column of bytes; null is empty."""
    _, ends, data = column.buffers()
    if data is None:
        return [b""] * len(column)
    bounds = memoryview(ends).cast("i")[column.offset : column.offset + len(column) + 1].tolist()
    whole: Any = data.to_pybytes()
    return [whole[first:end] for first, end in pairwise(bounds)]


def _first_of_each_row(
    headers: pa.MapArray, starts: list[int], found: dict[int, bytes]
) -> tuple[list[int], list[bytes]]:
    rows: list[int] = []
    ids: list[bytes] = []
    present = headers.is_valid().to_pylist()
    for row, (first, end) in enumerate(pairwise(starts)):
        value = next((found[pair] for pair in range(first, end) if pair in found), b"")
        if value and present[row]:
            rows.append(row)
            ids.append(value)
    return rows, ids
