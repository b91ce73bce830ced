"""Filters evaluated on Arrow columns: which rows of a batch pass, all at once."""

from collections.abc import Callable
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.router.core.filters import Filter, Test, Timestamp

ColumnOf = Callable[[str], pa.Array]

_COMPARE: Final[dict[str, Callable[[Any, Any], pa.Array]]] = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_MATCH: Final[dict[str, Callable[..., pa.Array]]] = {
    "starts": pc.starts_with,
    "ends": pc.ends_with,
    "contains": pc.match_substring,
}


def passing(condition: Filter, column: ColumnOf) -> pa.Array:
    """Which rows a filter lets through.

    Args:
        condition: The filter.
        column: A column of the rows by its name; asked for once or more.

    Returns:
        Booleans without nulls, one for each row.
    """
    return pc.fill_null(_truth(condition, column), fill_value=False)


def _truth(condition: Filter, column: ColumnOf) -> pa.Array:
    """True, false or null, as SQL's logic has it."""
    if isinstance(condition, Test):
        return _tested(condition, column(condition.column))
    parts = [_truth(part, column) for part in condition.parts]
    if condition.how == "not":
        return pc.invert(parts[0])
    return reduce(pc.and_kleene if condition.how == "and" else pc.or_kleene, parts)


def _tested(test: Test, values: pa.Array) -> pa.Array:
    if test.how == "null":
        return pc.is_null(values)
    if test.how == "in":
        wide = values.cast(pa.int64()) if pa.types.is_integer(values.type) else values
        found = pc.is_in(wide, value_set=pa.array(_plain(test), wide.type))
        return pc.if_else(pc.is_null(values), None, found)
    (value,) = _plain(test)
    if test.how in _MATCH:
        return _MATCH[test.how](values, value)
    # A whole number may lie outside of the column's type; Arrow then compares in a wider one.
    scalar = pa.scalar(value, values.type) if pa.types.is_timestamp(values.type) else value
    if test.how == "<=>":
        return pc.fill_null(pc.equal(values, scalar), fill_value=False)
    return _COMPARE[test.how](values, scalar)


def _plain(test: Test) -> list[Any]:
    return [value.us if isinstance(value, Timestamp) else value for value in test.values]
