"""Filters on rows as data: what the source can decide by itself, before rows go to Spark.

A filter is a condition of SQL on single columns, combined by AND, OR and NOT; where it is neither
true nor false, because a column is NULL, the row is left out, as SQL does. Its JSON form is lists:

    ["and", ["=", "kind", "log"], [">=", "severity_number", 17]]
    ["or", ["in", "service", ["shop", "till"]], ["not", ["null", "trace_id"]]]
    ["starts", "subject", "telemetry.logs."]

Values are text, whole numbers, numbers, booleans, and `{"timestamp_us": 1795000000000000}`,
microseconds since 1970 UTC.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import pyarrow as pa

from penstock.base.lazy_module import LazyModule
from penstock.router.errors import BadOptionError

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")  # who plans batches has no rows to compute with

Value = str | int | float | bool
Comparison = Literal["=", "<=>", "<", "<=", ">", ">=", "in", "null", "starts", "ends", "contains"]
Joint = Literal["and", "or", "not"]

_COMPARISONS: Final = frozenset(get_args(Comparison))
_JOINTS: Final = frozenset(get_args(Joint))
_DEPTH_MAX: Final = 64
"""Maximum nesting of ANDs, ORs and NOTs in a filter; a deeper one is refused."""

_LONG_LIMIT: Final = 2**63

_SUBJECT: Final = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
"""A subject without wildcards, as logd's filter takes it."""


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A value of a column of times.

    Attributes:
        us: Microseconds since 1970-01-01 UTC.
    """

    us: int


@dataclass(frozen=True, slots=True)
class Test:
    """A condition on one column.

    Attributes:
        values: Values to compare with: none for `null`, any number for `in`, else one.
    """

    how: Comparison
    column: str
    values: tuple[Value | Timestamp, ...] = ()


@dataclass(frozen=True, slots=True)
class Joined:
    """Conditions combined; `not` has one part."""

    how: Joint
    parts: tuple["Test | Joined", ...]


Filter = Test | Joined


def both(first: Filter | None, second: Filter | None) -> Filter | None:
    """Return the filter of rows that pass both; None passes all rows."""
    if first is None or second is None:
        return first or second
    return Joined("and", (first, second))


def columns_of(condition: Filter | None) -> frozenset[str]:
    """The columns that a filter looks at."""
    return frozenset(test.column for test in _tests(condition))


def subject_of(condition: Filter | None) -> str | None:
    """The one subject that a filter lets through, if it says so at its top."""
    for part in _conjuncts(condition):
        if isinstance(part, Test) and (part.how, part.column) == ("=", "subject"):
            (value,) = part.values
            if isinstance(value, str) and _SUBJECT.fullmatch(value):
                return value
    return None


def filter_to_json(condition: Filter) -> list[Any]:
    """The form of the module's docstring."""
    if isinstance(condition, Joined):
        return [condition.how, *map(filter_to_json, condition.parts)]
    values = [
        {"timestamp_us": value.us} if isinstance(value, Timestamp) else value
        for value in condition.values
    ]
    if condition.how == "in":
        return [condition.how, condition.column, values]
    return [condition.how, condition.column, *values]


def filter_from_json(document: Any, *, depth: int = 0) -> Filter:
    """Read that form.

    Raises:
        BadOptionError: It is of another one.
    """
    if depth > _DEPTH_MAX:
        raise BadOptionError(f"a filter is nested more than {_DEPTH_MAX} deep")
    if not isinstance(document, list) or not document:
        raise BadOptionError(f"a filter is a list that begins with what it does, not {document!r}")
    how, rest = document[0], document[1:]
    if how in _JOINTS:
        if not rest or (how == "not" and len(rest) != 1):
            raise BadOptionError(f"{how!r} joins filters; not takes one: {document!r}")
        return Joined(how, tuple(filter_from_json(part, depth=depth + 1) for part in rest))
    if how not in _COMPARISONS or not rest or not isinstance(rest[0], str):
        raise BadOptionError(f"no such filter: {document!r}")
    values = rest[1:]
    if how == "in":
        if len(values) != 1 or not isinstance(values[0], list):
            raise BadOptionError(f"'in' takes a column and a list: {document!r}")
        values = values[0]
    elif len(values) != (how != "null"):
        raise BadOptionError(f"{how!r} takes a column and one value; null takes none: {document!r}")
    return Test(how, rest[0], tuple(map(_value, values)))


def _value(document: Any) -> Value | Timestamp:
    if isinstance(document, dict) and [*document] == ["timestamp_us"]:
        return Timestamp(int(document["timestamp_us"]))
    if isinstance(document, str | float) or (
        isinstance(document, int) and abs(document) < _LONG_LIMIT
    ):
        return document
    raise BadOptionError(f"not a value of a filter: {document!r}")


def _tests(condition: Filter | None) -> Iterator[Test]:
    if isinstance(condition, Joined):
        for part in condition.parts:
            yield from _tests(part)
    elif condition is not None:
        yield condition


def _conjuncts(condition: Filter | None) -> Sequence[Filter]:
    if condition is None:
        return ()
    if isinstance(condition, Joined) and condition.how == "and":
        return [each for part in condition.parts for each in _conjuncts(part)]
    return (condition,)


ColumnOf = Callable[[str], pa.Array]

_COMPARE: Final = {
    "=": "equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
"""Arrow's functions, by name; so are those of `_MATCH`."""
_MATCH: Final = {
    "starts": "starts_with",
    "ends": "ends_with",
    "contains": "match_substring",
}


def passing(condition: Filter, column: ColumnOf) -> pa.Array:
    """Return which rows pass a filter.

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
        return getattr(pc, _MATCH[test.how])(values, value)
    # A whole number may lie outside of the column's type; Arrow then compares in a wider one.
    scalar = pa.scalar(value, values.type) if pa.types.is_timestamp(values.type) else value
    if test.how == "<=>":
        return pc.fill_null(_compared("=", values, scalar), fill_value=False)
    return _compared(test.how, values, scalar)


def _compared(how: str, values: pa.Array, scalar: Any) -> pa.Array:
    """Compare as Spark does, to which NaN is equal to itself and above all other numbers."""
    found = getattr(pc, _COMPARE[how])(values, scalar)
    if not pa.types.is_floating(values.type):
        return found
    is_nan = pc.is_nan(values)
    if isinstance(scalar, float) and math.isnan(scalar):
        return _compared_with_nan(how, is_nan)
    return pc.or_(found, is_nan) if how in (">", ">=") else found


def _compared_with_nan(how: str, is_nan: pa.Array) -> pa.Array:
    """Compare with NaN, by which values are it; null stays null."""
    if how in ("=", ">="):
        return is_nan
    others = pc.invert(is_nan)
    if how == "<":
        return others
    return pc.or_(is_nan, others) if how == "<=" else pc.and_(is_nan, others)


def _plain(test: Test) -> list[Any]:
    return [value.us if isinstance(value, Timestamp) else value for value in test.values]
