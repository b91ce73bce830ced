"""The columns and rows that a query needs of the source, found in Spark's plan.

Spark gives a data source written in Python the conditions of a batch (`pushFilters`), those of a
stream not, and of neither the columns. `need_of` finds both out from Spark's optimised plan, before
the query starts. What it cannot express as a `Filter` is left to Spark, which applies every
condition itself in any case.

Spark computes what looks at the clock (`current_timestamp()`, `cast('today' AS DATE)`) once for
each batch of a stream. The optimiser would make a constant of it when the query starts, so it is
hidden from the optimiser first, and no filter is made of a comparison with it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as spark_filters

from penstock.router.columns.filters import (
    Comparison,
    Filter,
    Joined,
    Test,
    Timestamp,
    Value,
    both,
    columns_of,
)
from penstock.router.columns.schema import View

_FILTERS: Final[dict[str, Comparison]] = {
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "In": "in",
    "IsNull": "null",
    "StringStartsWith": "starts",
    "StringEndsWith": "ends",
    "StringContains": "contains",
}
_EXPRESSIONS: Final[dict[str, Comparison]] = {
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "StartsWith": "starts",
    "EndsWith": "ends",
    "Contains": "contains",
}
_TURNED: Final[dict[Comparison, Comparison]] = {
    "=": "=", "<=>": "<=>", "<": ">", "<=": ">=", ">": "<", ">=": "<=",
}  # fmt: skip
_NULL_OF_NULL: Final = frozenset({*_EXPRESSIONS, "In"} - {"EqualNullSafe"})
"""Conditions that are NULL where what they look at is."""

NEVER_NULL: Final = frozenset(
    {"stream", "partition", "offset", "timestamp", "timestamp_ns", "subject", "malformed"}
)
"""Columns that every row has."""

_COMPARABLE: Final = frozenset({"string", "int", "bigint", "double", "boolean", "timestamp"})
"""Types of columns that Arrow compares as Spark does."""


_IDS: Final = re.compile(r"#(\d+)")
_NAMES_AND_IDS: Final = re.compile(r"(\w+)#(\d+)")
"""Catalyst's way to write attributes: one call for all of them, where each costs a round trip."""

CHEAPEST: Final = "partition"
"""Name of the column that is read where only the number of rows counts."""


@dataclass(frozen=True, slots=True)
class Need:
    """The part of a view that a query needs.

    Attributes:
        columns: Names of columns in the view's order; may be empty.
        only: Filter that every needed row passes; None: none is known.
    """

    columns: tuple[str, ...]
    only: Filter | None


def pushed(
    filters: Sequence[spark_filters.Filter], view: View
) -> tuple[Filter | None, list[spark_filters.Filter]]:
    """Spark's conditions as one filter, and those that it has to apply itself."""
    only: Filter | None = None
    left = []
    for each in filters:
        found = _of_filter(each, view)
        if found is None:
            left.append(each)
        only = both(only, found)
    return only, left


def need_of(frame: DataFrame, view: View) -> Need:
    """Return the columns and rows that a query needs of a view of one stream.

    Args:
        frame: The query on a `readStream` of this view, all of its columns.
        view: The view.
    """
    # Not `optimizedPlan`, which is not for streams. There is no public way.
    session = frame.sparkSession._jsparkSession.sessionState()  # noqa: SLF001
    analyzed = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    without_clock = _Clocks(frame.sparkSession).hidden(analyzed)
    if without_clock is None:  # what is folded cannot be told from what is not
        return Need(tuple(column.name for column in view.columns), None)
    plan = session.optimizer().execute(without_clock)
    # What it is joined with is no stream.
    nodes = [node for node in _nodes(plan) if node.isStreaming()]
    leaves = [node for node in nodes if node.children().isEmpty()]
    if len(leaves) != 1:  # it reads this stream more than once
        return Need(tuple(column.name for column in view.columns), None)
    used = set(_IDS.findall(plan.output().toString()))
    for node in nodes:
        if node is not leaves[0]:
            used |= set(_IDS.findall(node.references().toSeq().toString()))
    named = _NAMES_AND_IDS.findall(leaves[0].output().toString())
    wanted = {name for name, ident in named if ident in used}
    columns = tuple(column.name for column in view.columns if column.name in wanted)
    only: Filter | None = None
    parents = [node for node in nodes if node is not leaves[0]]
    for node in reversed(parents):  # from the leaf upwards, as long as only rows are left out
        if node.nodeName() != "Filter":
            break
        only = both(only, _weaker(node.condition(), view))
    return Need(columns, only)


def columns_in(frame: DataFrame, view: View) -> tuple[str, ...]:
    """Return the columns of a view that the condition of `frame` looks at, in the view's order.

    Args:
        frame: Rows of the view, filtered by one condition.
        view: The view.
    """
    condition = frame._jdf.queryExecution().analyzed().condition()  # noqa: SLF001 - no public way
    named = _NAMES_AND_IDS.findall(condition.references().toSeq().toString())
    names = {name for name, _ in named}
    return tuple(column.name for column in view.columns if column.name in names)


class _Clocks:
    """Replaces in a plan of Catalyst each expression that depends on when it is evaluated.

    The placeholder is the one that Spark itself puts into the plan of a stream, to be replaced for
    each batch. The optimiser never folds it.
    """

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001 - Catalyst has no public way
        catalyst = jvm.org.apache.spark.sql.catalyst
        self._placeholder = catalyst.expressions.CurrentBatchTimestamp
        self._zone = jvm.scala.Option.apply("UTC")
        patterns = catalyst.trees.TreePattern
        self._clock, self._cast = patterns.CURRENT_LIKE(), patterns.CAST()
        self._replaceable = patterns.RUNTIME_REPLACEABLE()
        self._subquery = patterns.PLAN_EXPRESSION()
        replaceable = "org.apache.spark.sql.catalyst.expressions.RuntimeReplaceable"
        self._is_replaceable = jvm.java.lang.Class.forName(replaceable).isInstance

    def hidden(self, plan: Any) -> Any | None:
        """The plan without anything that looks at the clock; None: that cannot be told."""
        if plan.containsPattern(self._subquery):
            return None
        if not self._may_look(plan):
            return plan
        child = self._hidden_child(plan)
        if child is None:
            return None
        if plan.nodeName() in ("SubqueryAlias", "Join"):
            return plan.withNewChildren(plan.children().updated(0, child))
        if plan.nodeName() == "Filter":
            return plan.copy(self._replaced(plan.condition()), child)
        columns = plan.projectList()
        for index, column in enumerate([*_each(columns)]):
            columns = columns.updated(index, self._replaced(column))
        return plan.copy(columns, child)

    def _hidden_child(self, plan: Any) -> Any | None:
        """The child of a node that leaves records as they are; of a join, its left side."""
        kind, children = plan.nodeName(), plan.children()
        if kind not in ("Filter", "Project", "SubqueryAlias", "Join"):
            return None
        if kind == "Join" and (
            plan.condition().isEmpty() or self._may_look(plan.condition().get())
        ):
            return None
        return self.hidden(children.apply(0))

    def _may_look(self, tree: Any) -> bool:
        patterns = (self._clock, self._cast, self._replaceable)
        return any(tree.containsPattern(it) for it in patterns)

    def _replaced(self, expression: Any) -> Any:
        if not self._may_look(expression):
            return expression
        if self._is_replaceable(expression):  # as `to_date('now')`, whose cast is not yet in sight
            return self._replaced(expression.replacement())
        children = expression.children()
        if self._looks(expression, children):
            return self._placeholder(0, expression.dataType(), self._zone)
        for index, child in enumerate([*_each(children)]):
            children = children.updated(index, self._replaced(child))
        return expression.withNewChildren(children)

    def _looks(self, expression: Any, children: Any) -> bool:
        """Return whether an expression is a function of the clock, or a cast of text like 'now'."""
        kind: str = expression.dataType().simpleString()
        if not kind.startswith(("date", "time")):
            return False
        if children.isEmpty():
            return bool(expression.containsPattern(self._clock))
        if not expression.nodeName().lower().endswith("cast") or not expression.foldable():
            return False
        (text,) = _each(children)
        return bool(text.dataType().simpleString() == "string") and not _is_date(text)


def _is_date(text: Any) -> bool:
    """Return whether a text that is cast to a time always means the same time."""
    is_literal = text.nodeName() == "Literal" and text.value() is not None
    return is_literal and text.value().toString().strip()[:1] in "+-0123456789"


def _weaker(condition: Any, view: View) -> Filter | None:
    """A filter that lets through whatever a condition of Catalyst does, and maybe more."""
    kind = condition.nodeName()
    parts = list(_each(condition.children()))
    if kind == "And":
        return both(_weaker(parts[0], view), _weaker(parts[1], view))
    if kind == "Or":
        sides = [_weaker(part, view) for part in parts]
        return None if None in sides else Joined("or", tuple(side for side in sides if side))
    if kind == "Coalesce" and len(parts) == 2:
        if _literal(parts[1]) is False:  # a row whose condition is NULL is left out either way
            return _weaker(parts[0], view)
        return _weaker_or(parts[0], _exact(parts[1], view), view)
    if kind == "If" and _is_null(parts[1]):
        return _weaker(parts[2], view)
    return _exact(condition, view, loosely=kind in _NULL_OF_NULL)


def _weaker_or(condition: Any, instead: Filter | None, view: View) -> Filter | None:
    """Return a weaker filter for a condition whose NULL is replaced by another filter."""
    if instead is None:
        return None
    kind = condition.nodeName()
    if kind in ("And", "Or"):
        sides = [_weaker_or(part, instead, view) for part in _each(condition.children())]
        if kind == "And":
            return both(sides[0], sides[1])
        return None if None in sides else Joined("or", tuple(side for side in sides if side))
    exact = _exact(condition, view)
    if exact is not None and columns_of(exact) <= NEVER_NULL:
        return exact
    weaker = _weaker(condition, view)
    return None if weaker is None else Joined("or", (weaker, instead))


def _exact(condition: Any, view: View, *, loosely: bool = False) -> Filter | None:
    """A filter that is true, false or NULL just where a condition is; None: there is none.

    `loosely`: one that is true at least where the condition is.
    """
    kind = condition.nodeName()
    parts = list(_each(condition.children()))
    if loosely:
        parts = [_not_null_part(part) for part in parts]
    if kind in ("And", "Or", "Not"):
        found = [_exact(part, view) for part in parts]
        return None if None in found else Joined(kind.lower(), tuple(f for f in found if f))
    if kind == "AttributeReference":
        name = condition.name()
        return Test("=", name, (True,)) if _type_of(name, view) == "boolean" else None
    if kind in ("IsNull", "IsNotNull"):
        name = _attribute(parts[0], view)
        test = None if name is None else Test("null", name)
        return test if test is None or kind == "IsNull" else Joined("not", (test,))
    if kind == "In":
        name = _attribute(parts[0], view)
        values = [_literal(part) for part in parts[1:]]
        if name is None or any(value is None for value in values):
            return None
        return Test("in", name, tuple(value for value in values if value is not None))
    return _comparison(kind, parts, view)


def _comparison(kind: str, parts: list[Any], view: View) -> Filter | None:
    how = _EXPRESSIONS.get(kind)
    if how is None or len(parts) != 2:
        return None
    if _attribute(parts[0], view) is None and how in _TURNED:
        how, parts = _TURNED[how], parts[::-1]
    name, value = _attribute(parts[0], view), _literal(parts[1])
    return None if name is None or value is None else Test(how, name, (value,))


def _not_null_part(expression: Any) -> Any:
    """Return `x` of an expression of the form `if(..., NULL, x)`, else the expression."""
    if expression.nodeName() == "If":
        parts = list(_each(expression.children()))
        if _is_null(parts[1]):
            return parts[2]
    return expression


def _is_null(expression: Any) -> bool:
    return expression.nodeName() == "Literal" and expression.value() is None


def _attribute(expression: Any, view: View) -> str | None:
    """The name of a column that Arrow compares as Spark does; None: it is something else."""
    if expression.nodeName() != "AttributeReference":
        return None
    name: str = expression.name()
    return name if _type_of(name, view) in _COMPARABLE else None


def _literal(expression: Any) -> Value | Timestamp | None:
    if expression.nodeName() != "Literal" or expression.value() is None:
        return None
    kind, value = expression.dataType().simpleString(), expression.value()
    if kind == "timestamp":
        return Timestamp(int(value))
    if kind == "string":
        return str(value.toString())
    return value if kind in _COMPARABLE and isinstance(value, bool | int | float) else None


def _of_filter(condition: spark_filters.Filter, view: View) -> Filter | None:
    """One of the conditions that Spark offers to a batch; None: it has to apply that itself."""
    if isinstance(condition, spark_filters.Not):
        child = _of_filter(condition.child, view)
        return None if child is None else Joined("not", (child,))
    path = condition.attribute
    if len(path) != 1 or _type_of(path[0], view) not in _COMPARABLE:
        return None
    name = path[0]
    if isinstance(condition, spark_filters.IsNotNull):
        return Joined("not", (Test("null", name),))
    how = _FILTERS.get(type(condition).__name__)
    if how is None or how == "null":
        return None if how is None else Test("null", name)
    given: Iterable[Any] = condition.value if how == "in" else (condition.value,)
    values = [_plain(value) for value in given]
    if any(value is None for value in values):
        return None
    return Test(how, name, tuple(value for value in values if value is not None))


def _plain(value: Any) -> Value | Timestamp | None:
    if isinstance(value, datetime):
        return Timestamp(round(value.timestamp() * 10**6)) if value.tzinfo else None
    return value if isinstance(value, str | int | float) else None


def _type_of(name: str, view: View) -> str:
    return next((column.spark.simpleString() for column in view.columns if column.name == name), "")


def _nodes(plan: Any) -> Iterable[Any]:
    """A plan's nodes, those above before those below."""
    yield plan
    for child in _each(plan.children()):
        yield from _nodes(child)


def _each(scala: Any) -> Iterable[Any]:
    for index in range(scala.size()):
        yield scala.apply(index)
