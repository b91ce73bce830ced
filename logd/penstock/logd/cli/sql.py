"""What a SELECT reads, by the tree that DuckDB's parser makes of it: streams, columns, bounds.

    {"error": false, "statements": [{"node": {"type": "SELECT_NODE", "from_table": {...}, ...}}]}

Bounds are only taken where they hold of every row that the statement can see of a stream: the
stream is named once, alone in the FROM of its SELECT, and the bound is one of the conditions that
the WHERE joins by AND. Whatever is not understood is no bound: everything is read then, and DuckDB
filters. It filters by the bounds again, so they need only never be too narrow.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

Tree = dict[str, Any]
Evaluate = Callable[[Tree], int | None]
"""The nanoseconds since 1970 that an expression without columns means; None: not known."""

OFFSET: Final = "log_offset"
TIME: Final = "timestamp"

_FLIPPED: Final = {
    "COMPARE_GREATERTHAN": "COMPARE_LESSTHAN",
    "COMPARE_GREATERTHANOREQUALTO": "COMPARE_LESSTHANOREQUALTO",
    "COMPARE_LESSTHAN": "COMPARE_GREATERTHAN",
    "COMPARE_LESSTHANOREQUALTO": "COMPARE_GREATERTHANOREQUALTO",
    "COMPARE_EQUAL": "COMPARE_EQUAL",
}
_PLAIN: Final = {"CONSTANT", "CAST", "TYPE", "FUNCTION"}
_FUNCTIONS: Final = {
    "+", "-", "now", "get_current_timestamp", "transaction_timestamp", "today", "current_date",
    "trunc", "to_seconds", "to_minutes", "to_hours", "to_days", "to_weeks",
    "date_trunc", "to_timestamp",
}  # fmt: skip
"""Functions that give the same for every row of a statement."""


@dataclass(slots=True)
class Bounds:
    """What need be read of a stream.

    Attributes:
        start: First offset; 0: from its beginning.
        end: Exclusive; None: to its end.
        time_ns: Earliest time of a record.
    """

    start: int = 0
    end: int | None = None
    time_ns: int | None = None


@dataclass(slots=True)
class Reading:
    """What a SELECT reads.

    Attributes:
        tables: Names, in the order of the text; a stream's or another's.
        columns: Names, in lower case; None: all.
        bounds: Of the tables for which some are known.
    """

    tables: list[str] = field(default_factory=list)
    columns: set[str] | None = field(default_factory=set)
    bounds: dict[str, Bounds] = field(default_factory=dict)


def reading_of(tree: Tree, evaluate: Evaluate) -> Reading:
    """Find what the statements of a tree read."""
    found, counts = Reading(), Counter[str]()
    ctes: set[str] = set()
    for node in _walk(tree):
        if node.get("type") == "BASE_TABLE" and not node.get("schema_name"):
            counts[str(node["table_name"])] += 1
        elif node.get("class") == "STAR":
            found.columns = None
        elif node.get("class") == "COLUMN_REF" and found.columns is not None:
            found.columns |= {str(name).lower() for name in node["column_names"]}
        if isinstance(node.get("cte_map"), dict):
            ctes |= {str(item["key"]) for item in node["cte_map"].get("map", ())}
    found.tables = [name for name in counts if name not in ctes]
    for node in _walk(tree):
        name = _only_table(node)
        if name in found.tables and counts[name] == 1:
            found.bounds[name] = _bounds(node["where_clause"], evaluate)
    return found


def _walk(tree: Any) -> Iterator[Tree]:
    """Every object of a tree, outer ones first."""
    pending = [tree]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            yield item
            pending.extend(reversed(item.values()))
        elif isinstance(item, list):
            pending.extend(reversed(item))


def _only_table(node: Tree) -> str:
    """The table that a SELECT has for itself, with a WHERE; empty: there is no such."""
    table = node.get("from_table")
    if node.get("type") != "SELECT_NODE" or not isinstance(table, dict):
        return ""
    plain = table.get("type") == "BASE_TABLE" and not table.get("schema_name")
    changed = table.get("sample") or table.get("column_name_alias") or table.get("at_clause")
    return str(table["table_name"]) if plain and not changed and node.get("where_clause") else ""


def _bounds(where: Tree, evaluate: Evaluate) -> Bounds:
    bounds, pending = Bounds(), [where]
    while pending:
        part = pending.pop()
        match part.get("type"):
            case "CONJUNCTION_AND":
                pending.extend(part["children"])
            case "COMPARE_BETWEEN":
                column = _column(part["input"])
                _narrow(bounds, column, "COMPARE_GREATERTHANOREQUALTO", part["lower"], evaluate)
                _narrow(bounds, column, "COMPARE_LESSTHANOREQUALTO", part["upper"], evaluate)
            case kind if kind in _FLIPPED:
                left, right = part["left"], part["right"]
                _narrow(bounds, _column(left), kind, right, evaluate)
                _narrow(bounds, _column(right), _FLIPPED[kind], left, evaluate)
            case _:
                pass
    return bounds


def _column(node: Tree) -> str:
    names = node.get("column_names") if node.get("class") == "COLUMN_REF" else None
    return str(names[-1]).lower() if names else ""


def _narrow(bounds: Bounds, column: str, kind: str, value: Tree, evaluate: Evaluate) -> None:
    """Take one comparison of a column with a value into account."""
    above = kind in ("COMPARE_GREATERTHAN", "COMPARE_GREATERTHANOREQUALTO", "COMPARE_EQUAL")
    if column == OFFSET and (number := _integer(value)) is not None:
        if above:
            bounds.start = max(bounds.start, number + (kind == "COMPARE_GREATERTHAN"))
        if kind in ("COMPARE_LESSTHAN", "COMPARE_LESSTHANOREQUALTO", "COMPARE_EQUAL"):
            end = number + (kind != "COMPARE_LESSTHAN")
            bounds.end = end if bounds.end is None else min(bounds.end, end)
    elif column == TIME and above and _is_constant(value):
        time_ns = evaluate(value)
        if time_ns is not None:
            bounds.time_ns = max(time_ns, bounds.time_ns or time_ns)


def _integer(node: Tree) -> int | None:
    literal = node.get("literal")
    if node.get("class") != "CONSTANT" or not isinstance(literal, dict):
        return None
    text = str(literal.get("text"))
    return int(text) if literal.get("kind") == "INTEGER" and text.isdigit() else None


def _is_constant(node: Tree) -> bool:
    return all(
        part["class"] in _PLAIN
        and (part["class"] != "FUNCTION" or part.get("function_name") in _FUNCTIONS)
        for part in _walk(node)
        if "class" in part
    )
