"""Expressions over a record: checked when the configuration is read, total when they run.

What a record does not have is null. Comparisons of null, or of things of different types, are
false (``==`` of two nulls is true); arithmetic with them, division by zero, and numbers that int64
or a finite double cannot hold, are null. So no record makes an expression fail.

An expression becomes nested Python functions, one for each of its parts: nothing is generated and
nothing of Python can be reached.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from zoneinfo import ZoneInfo

from penstock.collector.core.patterns import compile_pattern
from penstock.collector.core.times import known_zone, layouts_of
from penstock.collector.transforms.functions import (
    FUNCTIONS,
    NUMBERS,
    bounded_number,
    bounded_text,
)
from penstock.collector.transforms.paths import Fields, PathError, check_path, getter
from penstock.collector.transforms.syntax import (
    Call,
    ExpressionError,
    Field,
    ListOf,
    Literal,
    Node,
    parse,
)

Evaluate = Callable[[Fields], Any]

_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_ARITHMETIC: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "%": operator.mod,
}  # fmt: skip
_NUMERIC: Final = frozenset({"int", "number", "dyn"})
_FAMILY: Final = {"int": "number"}


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression.

    Attributes:
        type: ``bool``, ``int``, ``number``, ``string``, ``list``, ``map``, ``null``, or ``dyn``
            when only a record tells.
    """

    text: str
    type: str
    evaluate: Evaluate


@dataclass(frozen=True, slots=True)
class _Part:
    type: str
    evaluate: Evaluate
    constant: Any = None
    is_constant: bool = False


def compile_expression(text: str) -> Expression:
    """Check an expression of any type.

    Raises:
        ExpressionError: With the position of what is wrong.
    """
    part = _compile(parse(text))
    return Expression(text, part.type, part.evaluate)


def compile_condition(text: str) -> Expression:
    """Check an expression that decides; it holds when it is true, and only then.

    Raises:
        ExpressionError: With the position of what is wrong.
    """
    found = compile_expression(text)
    if found.type not in {"bool", "dyn"}:
        raise ExpressionError(0, f"a condition is true or false, and this is a {found.type}")
    if found.type == "bool":
        return found
    inner = found.evaluate
    return Expression(text, "bool", lambda fields: inner(fields) is True)


def _compile(node: Node) -> _Part:
    match node:
        case Literal(value=value):
            return _Part(_type_of(value), lambda _: value, value, is_constant=True)
        case ListOf(items=items):
            return _list_of([_compile(item) for item in items])
        case Field(position, path):
            try:
                return _Part(check_path(path), getter(path))
            except PathError as error:
                raise ExpressionError(position, str(error)) from None
        case Call():
            return _call(node)


def _type_of(value: Any) -> str:
    names = {bool: "bool", int: "int", float: "number", str: "string"}
    return names.get(value.__class__, "null")


def _list_of(items: list[_Part]) -> _Part:
    evaluators = [item.evaluate for item in items]
    if all(item.is_constant for item in items):
        constant = [item.constant for item in items]
        return _Part("list", lambda _: constant, constant, is_constant=True)
    return _Part("list", lambda fields: [evaluate(fields) for evaluate in evaluators])


def _call(node: Call) -> _Part:  # noqa: PLR0911 - one a group of operators
    name, position = node.name, node.position
    if name in FUNCTIONS:
        return _function(node)
    arguments = [_compile(argument) for argument in node.arguments]
    types = [_FAMILY.get(argument.type, argument.type) for argument in arguments]
    match name:
        case "&&" | "||" | "!":
            return _logic(name, position, arguments)
        case "==" | "!=":
            _refuse_unlike(name, position, types)
            return _equality(name, arguments)
        case "<" | "<=" | ">" | ">=":
            _refuse_unlike(name, position, types)
            _refuse_types(name, position, types, {"number", "string", "dyn", "null"})
            return _order(name, arguments)
        case "in":
            _refuse_types(name, position, types[1:], {"list", "dyn"})
            return _membership(arguments)
        case "+" if "string" in types:
            _refuse_types(name, position, types, {"string", "dyn"})
            return _arithmetic(name, arguments)
        case "+" | "-" | "*" | "/" | "%":
            _refuse_types(name, position, types, {"number", "dyn"})
            return _arithmetic(name, arguments)
        case "?:":
            return _choice(position, arguments)
        case _:
            pass
    known = ", ".join(sorted(FUNCTIONS))
    raise ExpressionError(position, f"there is no function {name!r}; there are {known}")


def _refuse_types(name: str, position: int, types: list[str], allowed: set[str]) -> None:
    for found in types:
        if found not in allowed:
            raise ExpressionError(position, f"{name} cannot be applied to a {found}")


def _refuse_unlike(name: str, position: int, types: list[str]) -> None:
    known = {found for found in types if found not in {"dyn", "null"}}
    if len(known) > 1:
        both = " and a ".join(types)
        raise ExpressionError(position, f"a {both} are never {name}")


def _logic(name: str, position: int, arguments: list[_Part]) -> _Part:
    _refuse_types(name, position, [argument.type for argument in arguments], {"bool", "dyn"})
    first = _as_bool(arguments[0])
    if name == "!":
        return _Part("bool", lambda fields: not first(fields))
    second = _as_bool(arguments[1])
    if name == "&&":
        return _Part("bool", lambda fields: first(fields) and second(fields))
    return _Part("bool", lambda fields: first(fields) or second(fields))


def _as_bool(part: _Part) -> Evaluate:
    evaluate = part.evaluate
    return evaluate if part.type == "bool" else lambda fields: evaluate(fields) is True


def _is_equal(one: Any, other: Any) -> bool:
    return bool(one == other) and (one.__class__ is bool) == (other.__class__ is bool)


def _equality(name: str, arguments: list[_Part]) -> _Part:
    one, other = arguments[0].evaluate, arguments[1].evaluate
    if arguments[1].is_constant and arguments[1].constant.__class__ is str:
        text = arguments[1].constant
        if name == "==":
            return _Part("bool", lambda fields: bool(one(fields) == text))
        return _Part("bool", lambda fields: bool(one(fields) != text))
    if name == "==":
        return _Part("bool", lambda fields: _is_equal(one(fields), other(fields)))
    return _Part("bool", lambda fields: not _is_equal(one(fields), other(fields)))


def _order(name: str, arguments: list[_Part]) -> _Part:
    compare = _ORDERS[name]
    one, other = arguments[0].evaluate, arguments[1].evaluate
    if arguments[1].is_constant and arguments[1].type in {"int", "number"}:
        bound = arguments[1].constant

        def judge(fields: Fields) -> bool:
            value = one(fields)
            return value.__class__ in NUMBERS and compare(value, bound)

        return _Part("bool", judge)

    def judge_both(fields: Fields) -> bool:
        first, second = one(fields), other(fields)
        if first.__class__ in NUMBERS:
            return second.__class__ in NUMBERS and compare(first, second)
        return first.__class__ is str and second.__class__ is str and compare(first, second)

    return _Part("bool", judge_both)


def _membership(arguments: list[_Part]) -> _Part:
    member, group = arguments[0].evaluate, arguments[1].evaluate
    if arguments[1].is_constant and all(v.__class__ is str for v in arguments[1].constant):
        texts = frozenset(arguments[1].constant)

        def is_listed(fields: Fields) -> bool:
            value = member(fields)
            return value.__class__ is str and value in texts

        return _Part("bool", is_listed)

    def is_member(fields: Fields) -> bool:
        value, found = member(fields), group(fields)
        return found.__class__ is list and any(_is_equal(value, item) for item in found)

    return _Part("bool", is_member)


def _arithmetic(name: str, arguments: list[_Part]) -> _Part:
    apply = _ARITHMETIC[name]
    one, other = arguments[0].evaluate, arguments[1].evaluate
    types = {argument.type for argument in arguments}
    kind = "dyn"
    if "string" in types:
        kind = "string"
    elif types == {"int"} and name != "/":
        kind = "int"
    elif types <= {"int", "number"}:
        kind = "number"

    def calculate(fields: Fields) -> Any:
        first, second = one(fields), other(fields)
        if first.__class__ in NUMBERS and second.__class__ in NUMBERS:
            try:
                return bounded_number(apply(first, second))
            except ArithmeticError:
                return None
        if name == "+" and first.__class__ is str and second.__class__ is str:
            return bounded_text(first + second)
        return None

    return _Part(kind, calculate)


def _choice(position: int, arguments: list[_Part]) -> _Part:
    _refuse_types("?", position, [arguments[0].type], {"bool", "dyn"})
    condition = _as_bool(arguments[0])
    chosen, other = arguments[1].evaluate, arguments[2].evaluate
    types = {argument.type for argument in arguments[1:]} - {"null"}
    kind = types.pop() if len(types) == 1 else "number" if types == {"int", "number"} else "dyn"
    return _Part(kind, lambda fields: chosen(fields) if condition(fields) else other(fields))


def _function(node: Call) -> _Part:
    function, count = FUNCTIONS[node.name], len(node.arguments)
    needed = len(function.arguments)
    if count < needed or (count > needed and not function.repeats):
        takes = f"{needed}{' or more' if function.repeats else ''}"
        raise ExpressionError(node.position, f"{node.name} takes {takes} arguments, not {count}")
    wanted = function.arguments + function.arguments[-1:] * (count - needed)
    evaluators = [
        _argument(node.name, argument, kind)
        for argument, kind in zip(node.arguments, wanted, strict=True)
    ]
    apply = function.apply
    one, other = evaluators[0], evaluators[-1]
    if len(evaluators) == 1:
        return _Part(function.result, lambda fields: apply(one(fields)))
    if len(evaluators) == 2:
        return _Part(function.result, lambda fields: apply(one(fields), other(fields)))
    return _Part(function.result, lambda fields: apply(*[e(fields) for e in evaluators]))


def _argument(name: str, node: Node, wanted: str) -> Evaluate:
    if (compile_ := _CONSTANTS.get(wanted)) is not None:
        if not isinstance(node, Literal) or node.value.__class__ is not str:
            raise ExpressionError(node.position, f"{name} needs a constant {wanted} in quotes")
        try:
            constant = compile_(node.value)
        except ValueError as error:
            raise ExpressionError(node.position, str(error)) from None
        return lambda _: constant
    part = _compile(node)
    if wanted != "any" and part.type not in {wanted, "dyn", "null"}:
        raise ExpressionError(node.position, f"{name} takes a {wanted}, and this is a {part.type}")
    return part.evaluate


_CONSTANTS: Final[Mapping[str, Callable[[str], Any]]] = {
    "pattern": compile_pattern,
    "layout": lambda text: layouts_of([text]),
    "zone": lambda text: ZoneInfo(known_zone(text)),
}
"""Arguments that are constant texts, and what they are compiled to."""
