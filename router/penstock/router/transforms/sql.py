"""The step `sql`: a SELECT over the record's typed columns, whose columns become fields.

    SELECT lower(service) AS service, teams.owner AS owner
    FROM records LEFT JOIN teams ON teams.service = records.service
    WHERE severity_number >= 9

Spark evaluates it for each record by itself, so it keeps no state, and a batch that comes again
gives the same. That leaves one shape: columns, LEFT JOINs with tables of the job file, a WHERE.
Rows of which the WHERE is not true are left out. Other columns of the record stay as they are: one
that is named again replaces its field, NULL takes it away, and any other name is an attribute.

A task gets the columns as JSON in the column `SQL_COLUMN`, and changes the record's text and its
typed columns by it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from penstock.router.columns.json_objects import read_json, write_json
from penstock.router.columns.projection import Projection, Projector
from penstock.router.columns.schema import Column, view
from penstock.router.columns.spec_versions import known_versions
from penstock.router.read.offsets import Span

SQL_COLUMN: Final = "_sql"
"""The fields that a SELECT sets, as one JSON object; NULL where the row's route has no SELECT."""

RECORDS: Final = "records"
"""Name of the record's columns in a SELECT."""

_TOKEN: Final = re.compile(
    r"""(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*"|`[^`]*`)|(?P<comment>--[^\n]*|/\*.*?\*/)"""
    r"""|(?P<word>\w+)|(?P<other>\s+|.)""",
    re.DOTALL,
)
_NEVER: Final = {
    "GROUP": "groups need rows of other batches",
    "HAVING": "groups need rows of other batches",
    "DISTINCT": "what is distinct depends on other batches",
    "ORDER": "records stay in the order of the log",
    "SORT": "records stay in the order of the log",
    "CLUSTER": "records stay in the order of the log",
    "DISTRIBUTE": "records stay in the order of the log",
    "LIMIT": "a batch is no fixed set of records",
    "OFFSET": "a batch is no fixed set of records",
    "UNION": "a step is one SELECT",
    "INTERSECT": "a step is one SELECT",
    "EXCEPT": "columns that are not named stay; write NULL AS NAME to take one away",
    "MINUS": "a step is one SELECT",
    "WINDOW": "windows need other records",
    "LATERAL": "a record must stay one record",
    "INNER": "write LEFT JOIN, and in WHERE that a column of the table IS NOT NULL",
    "RIGHT": "only LEFT JOIN keeps each record once",
    "FULL": "only LEFT JOIN keeps each record once",
    "CROSS": "only LEFT JOIN keeps each record once",
    "SEMI": "write LEFT JOIN, and in WHERE that a column of the table IS NOT NULL",
    "ANTI": "write LEFT JOIN, and in WHERE that a column of the table IS NULL",
    "NATURAL": "name the columns: LEFT JOIN ... ON",
    "USING": "name the columns: LEFT JOIN ... ON",
}
"""Words that no SELECT of a step has outside parentheses, with what to do, or why."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """A LEFT JOIN."""

    table: str
    alias: str
    on: str


@dataclass(frozen=True, slots=True)
class Select:
    """A SELECT, taken apart; all parts are SQL text."""

    columns: tuple[str, ...]
    lookups: tuple[Lookup, ...]
    where: str | None


@dataclass(frozen=True, slots=True)
class _Word:
    """A word outside quotes, comments and parentheses.

    Attributes:
        text: The word in upper case, or a comma.
        begin: Its place in the statement.
    """

    text: str
    begin: int

    @property
    def end(self) -> int:
        return self.begin + len(self.text)


def parse_select(statement: str) -> Select:
    """Take a statement apart.

    Raises:
        ValueError: It is not of the one shape; says why.
    """
    statement = statement.strip().removesuffix(";").rstrip()
    words = _clauses(statement)
    for word in words:
        if (reason := _NEVER.get(word.text)) is not None:
            raise ValueError(f"{word.text}: {reason}")
    if not words or words[0].text != "SELECT":
        raise ValueError("a step is a SELECT")
    origin = next((it for it in words if it.text == "FROM"), None)
    if origin is None:
        raise ValueError(f"it needs FROM {RECORDS}")
    commas = [it for it in words if it.text == "," and it.begin < origin.begin]
    edges = [words[0].end, *(it.begin for it in commas), origin.begin]
    columns = tuple(statement[begin:end].strip(", \t\r\n") for begin, end in pairwise(edges))
    if not all(columns):
        raise ValueError("a column is empty")
    where = next((it for it in words if it.text == "WHERE" and it.begin > origin.begin), None)
    source = [
        it for it in words if it.begin > origin.begin and (where is None or it.begin < where.begin)
    ]
    end = len(statement) if where is None else where.begin
    lookups = tuple(_lookups(statement, source, origin.end, end))
    condition = None if where is None else statement[where.end :].strip()
    if condition == "":
        raise ValueError("WHERE: the condition is missing")
    return Select(columns, lookups, condition)


def _words(statement: str) -> Iterator[_Word]:
    depth = 0
    for found in _TOKEN.finditer(statement):
        text = found[0]
        if text in ("(", "["):
            depth += 1
        elif text in (")", "]"):
            depth -= 1
        elif depth == 0 and (found["word"] is not None or text == ","):
            yield _Word(text.upper(), found.start())
    if depth:
        raise ValueError("its parentheses do not fit")


def _clauses(statement: str) -> list[_Word]:
    """The words that may begin a clause, and commas.

    No clause begins with a column (`records.offset`, or `offset` without a number behind it), a
    function (`left(body, 3)`) or an operator (`IS DISTINCT FROM`).
    """
    found: list[_Word] = []
    words = list(_words(statement))
    for at, word in enumerate(words):
        before, after = statement[: word.begin].rstrip(), statement[word.end :].lstrip()
        last = words[at - 1].text if at else ""
        is_column = before.endswith(".") or (word.text == "OFFSET" and not after[:1].isdigit())
        is_function = word.text in ("LEFT", "RIGHT") and after.startswith("(")
        is_operator = word.text == "DISTINCT" and last in ("IS", "NOT")
        is_operator |= word.text == "FROM" and last == "DISTINCT" and words[at - 2].text != "SELECT"
        if not (is_column or is_function or is_operator):
            found.append(word)
    return found


def _lookups(statement: str, words: Sequence[_Word], begin: int, end: int) -> Iterator[Lookup]:
    lefts = [it for it in words if it.text == "LEFT"]
    joins = sum(it.text == "JOIN" for it in words)
    if joins != len(lefts):
        raise ValueError("JOIN: write LEFT JOIN, and in WHERE that a column of it IS NOT NULL")
    edges = [*(it.begin for it in lefts), end]
    source = statement[begin : edges[0]].strip()
    if source.lower() != RECORDS:
        raise ValueError(f"FROM: it is {RECORDS}, without another name, not {source!r}")
    shape = re.compile(
        r"LEFT\s+(?:OUTER\s+)?JOIN\s+(\w+)(?:\s+(?:AS\s+)?(\w+))?\s*$", re.IGNORECASE
    )
    for first, last in pairwise(edges):
        on = next((it for it in words if it.text == "ON" and first < it.begin < last), None)
        found = None if on is None else shape.match(statement[first : on.begin])
        if on is None or found is None:
            raise ValueError("a join is LEFT JOIN TABLE ON CONDITION")
        table, alias = found[1], found[2] or found[1]
        yield Lookup(table, alias, statement[on.end : last].strip())


def set_fields(record: dict[str, Any], fields: Mapping[str, Any]) -> None:
    """Set fields of a record by the names of columns; None takes a field away."""
    for name, value in fields.items():
        column = _columns().get(name)
        *parents, last = ("attributes", name) if column is None else column.path
        holder = record
        for key in parents:
            below = holder.get(key)
            if not isinstance(below, dict):
                below = holder[key] = {}
            holder = below
        if value is None:
            holder.pop(last, None)
        elif column is not None and column.neutral == "json":
            holder[last] = _json_of(value)
        else:
            holder[last] = value


@cache
def _columns() -> Mapping[str, Column]:
    return {it.name: it for it in view("records").columns if it.origin == "json"}


def _json_of(text: str) -> Any:
    """A value whose column has its JSON; a text that is none stands for itself."""
    try:
        return read_json(text)
    except (ValueError, RecursionError):
        return text


def with_fields(table: pa.Table, records: Sequence[dict[str, Any]]) -> pa.Table:
    """Set the fields of records, in place, and make the typed columns of their rows again.

    The rows have `SQL_COLUMN`, and any columns of the view `records`.
    """
    for record, text in zip(records, table.column(SQL_COLUMN).to_pylist(), strict=True):
        if text is not None:
            set_fields(record, read_json(text))
    names = tuple(
        it.name
        for it in view("records").columns
        if it.name in table.column_names and (it.origin == "json" or it.name == "time")
    )
    if not names or not table.num_rows:
        return table
    log = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([write_json(it) for it in records], pa.binary()),
            "timestamp": _timestamps(table),
        }
    )
    made = _projector(names).shape(Span("", 0, 0, 0), log)
    for name in names:
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), made.column(name))
    return table


@cache
def _projector(names: tuple[str, ...]) -> Projector:
    columns = tuple(it for it in view("records").columns if it.name in names)
    return Projector(Projection(view("records"), columns, None, known_versions()))


def _timestamps(table: pa.Table) -> pa.Array:
    """When the log got the rows, which a record without a time has as its own."""
    found = table.column("timestamp_ns").combine_chunks()
    found = pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found
    return found.cast(pa.timestamp("ns", tz="UTC"))
