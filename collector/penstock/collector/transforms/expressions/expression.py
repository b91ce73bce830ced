"""Expressions over a record: checked when the configuration is read, total when they run.

The syntax is that of the Common Expression Language, as far as it is needed (decision 0035):

    condition  = or [ "?" or ":" condition ]
    or         = and { "||" and }            and = relation { "&&" relation }
    relation   = sum [ ( "==" | "!=" | "<" | "<=" | ">" | ">=" | "in" ) sum ]
    sum        = product { ( "+" | "-" ) product }
    product    = unary { ( "*" | "/" | "%" ) unary }
    unary      = [ "!" | "-" ] member
    member     = primary { "[" literal "]" | "." NAME [ "(" arguments ")" ] }
    primary    = literal | NAME [ "(" arguments ")" ] | "(" condition ")" | "[" arguments "]"

There are no loops, no variables, and no calls except of the functions below.

A missing field is null. Comparisons of null, or of values of different types, are false (``==`` of
two nulls is true). Arithmetic with them, division by zero, and numbers that int64 or a finite
double cannot hold, give null. A function gives null for a value that it cannot be applied to. So no
record makes an expression fail.

An expression becomes nested Python functions, one for each of its parts: no code is generated, and
nothing of Python can be reached. Functions take and give JSON values, and none runs longer than its
operands are long: regular expressions are constant, compiled when the configuration is read, and
run by RE2 in linear time.
"""

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import orjson

from penstock.collector.decode.timestamps import known_zone, layouts_of, text_time_ns, time_of
from penstock.collector.regex import compile_pattern
from penstock.collector.transforms.expressions.paths import Fields, PathError, check_path, getter
from penstock.specs.limits import INT64_MAX, INT64_MIN, STRING_CHARACTERS_MAX

NUMBERS: Final[frozenset[Any]] = frozenset((int, float))
"""Classes of numbers; bool is none."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function's signature and limits, known before it runs.

    Attributes:
        arguments: Types; the last may repeat when `repeats`. ``pattern`` is a constant text that is
            a regular expression, ``layout`` one that is a time's layout, ``zone`` one that names a
            time zone; ``any`` is whatever.
    """

    arguments: tuple[str, ...]
    result: str
    apply: Callable[..., Any]
    repeats: bool = False


def bounded_text(text: str) -> str | None:
    """The text, unless it is longer than any field of a record may be."""
    return text if len(text) <= STRING_CHARACTERS_MAX else None


def bounded_number(value: Any) -> Any:
    """The number, unless no record can hold it."""
    if value.__class__ is int:
        return value if INT64_MIN <= value <= INT64_MAX else None
    return value if math.isfinite(value) else None


def to_integer(value: Any) -> Any:
    """A number without its fraction, or a text that is a whole number."""
    if value.__class__ is bool:
        return int(value)
    if value.__class__ is float:
        return bounded_number(int(value)) if math.isfinite(value) else None
    if value.__class__ is int:
        return int(value)
    text = str(value).strip() if value.__class__ is str else ""
    if not 0 < len(text) <= 20 or not text.lstrip("+-").isdecimal() or not text.isascii():
        return None
    try:
        return bounded_number(int(text))
    except ValueError:  # two signs
        return None


def to_real(value: Any) -> Any:
    """A number, or a text that is one."""
    is_text = value.__class__ is str and len(value) <= 64 and "_" not in value
    if not (is_text or value.__class__ in NUMBERS or value.__class__ is bool):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def to_text(value: Any) -> str | None:
    """A text as it is, a number or a truth value as JSON has it."""
    if value.__class__ is str:
        return str(value)
    if value.__class__ is bool:
        return "true" if value else "false"
    return repr(value) if value.__class__ in NUMBERS else None


def digest(value: Any) -> bytes:
    """Sixteen bytes that are the same for equal values alone, whatever the order of their keys."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer beyond 64 bits, in a field that the spec does not have
        text = repr(value).encode()
    return blake2b(text, digest_size=16).digest()


def _of_text(change: Callable[[str], Any]) -> Callable[[Any], Any]:
    return lambda value: change(value) if value.__class__ is str else None


def _of_texts(test: Callable[[str, str], bool]) -> Callable[[Any, Any], bool]:
    return lambda text, part: text.__class__ is str and part.__class__ is str and test(text, part)


def _size(value: Any) -> int | None:
    return len(value) if value.__class__ in (str, list, dict) else None


def _replace(text: Any, old: Any, new: Any) -> str | None:
    if not (text.__class__ is str and old.__class__ is str and new.__class__ is str) or not old:
        return None
    if text.count(old) * len(new) > 2 * STRING_CHARACTERS_MAX:
        return None
    return bounded_text(text.replace(old, new))


def _substring(text: Any, first: Any, end: Any) -> str | None:
    if text.__class__ is not str or first.__class__ is not int or end.__class__ is not int:
        return None
    return text[max(first, 0) : max(end, 0)]


def _matches(text: Any, pattern: Any) -> bool:
    return text.__class__ is str and pattern.search(text) is not None


def _extract(text: Any, pattern: Any) -> str | None:
    found = pattern.search(text) if text.__class__ is str else None
    return None if found is None else found.group(1 if pattern.groups else 0)


def _timestamp(value: Any, layouts: Any, zone: Any, near: Any) -> int | None:
    near_ns = near if near.__class__ is int else 0
    if value.__class__ is not str:
        return time_of(value, near_ns, zone)
    return text_time_ns(value.strip(), near_ns, zone, layouts)


def _coalesce(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


FUNCTIONS: Final[dict[str, Function]] = {
    "has": Function(("any",), "bool", lambda value: value is not None),
    "size": Function(("any",), "int", _size),
    "int": Function(("any",), "int", to_integer),
    "double": Function(("any",), "number", to_real),
    "string": Function(("any",), "string", to_text),
    "coalesce": Function(("any",), "dyn", _coalesce, repeats=True),
    "contains": Function(("string", "string"), "bool", _of_texts(lambda a, b: b in a)),
    "startsWith": Function(("string", "string"), "bool", _of_texts(str.startswith)),
    "endsWith": Function(("string", "string"), "bool", _of_texts(str.endswith)),
    "matches": Function(("string", "pattern"), "bool", _matches),
    "extract": Function(("string", "pattern"), "string", _extract),
    "lower": Function(("string",), "string", _of_text(str.lower)),
    "upper": Function(("string",), "string", _of_text(str.upper)),
    "trim": Function(("string",), "string", _of_text(str.strip)),
    "replace": Function(("string", "string", "string"), "string", _replace),
    "timestamp": Function(("any", "layout", "zone", "int"), "int", _timestamp),
    "substring": Function(("string", "int", "int"), "string", _substring),
}


EXPRESSION_CHARACTERS_MAX: Final = 8192
"""Length of one expression; longer ones are made by programs: split them into transforms."""

DEPTH_MAX: Final = 32
"""Parts inside each other; evaluation recurses as deep."""

_TOKEN: Final = re.compile(
    r"""(?P<blank>\s+|//[^\n]*)
    |(?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
    |(?P<int>\d+)
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<mark>\|\||&&|==|!=|<=|>=|[-+*/%<>!?:.,()\[\]])""",
    re.VERBOSE,
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'"}
_WORDS: Final = {"true": True, "false": False, "null": None}
_LEVELS: Final = (
    ("||",),
    ("&&",),
    ("==", "!=", "<", "<=", ">", ">=", "in"),
    ("+", "-"),
    ("*", "/", "%"),
)
_RELATION: Final = 2


class ExpressionError(ValueError):
    """An expression is wrong; the message says where, counted in characters from 1."""

    def __init__(self, position: int, message: str) -> None:
        self.position = position
        super().__init__(f"at character {position + 1}: {message}")


class Token(NamedTuple):
    """A word of the text."""

    kind: str
    text: str
    position: int


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    position: int
    value: Any


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of parts."""

    position: int
    items: list["Node"]


@dataclass(frozen=True, slots=True)
class Field:
    """Names joined by dots, or with the last in brackets: a place in the record."""

    position: int
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A function or an operator with what it is applied to; of a method, the object comes first."""

    position: int
    name: str
    arguments: list["Node"] = field(default_factory=list)


Node = Literal | ListOf | Field | Call


def parse(text: str) -> Node:
    """The tree of an expression.

    Raises:
        ExpressionError: It is none.
    """
    if len(text) > EXPRESSION_CHARACTERS_MAX:
        raise ExpressionError(
            EXPRESSION_CHARACTERS_MAX, f"longer than {EXPRESSION_CHARACTERS_MAX} characters"
        )
    return _Parser(_tokens(text)).whole()


def fields_of(node: Node) -> Iterator[tuple[str, ...]]:
    """Every place that an expression reads: the field, and the key in it."""
    match node:
        case Field(path=path):
            yield (path[0], ".".join(path[1:])) if len(path) > 1 else path
        case ListOf(items=parts) | Call(arguments=parts):
            for part in parts:
                yield from fields_of(part)
        case Literal():
            pass


def _tokens(text: str) -> list[Token]:
    found: list[Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ExpressionError(position, f"{text[position]!r} is not understood")
        kind = str(match.lastgroup)
        if kind != "blank":
            found.append(Token(kind, match.group(), position))
        position = match.end()
    found.append(Token("end", "the end", len(text)))
    return found


class _Parser:
    """Recursive descent over the tokens."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._condition()
        if self._peek.kind != "end":
            raise ExpressionError(self._peek.position, f"{self._peek.text!r} is one too many")
        return node

    @property
    def _peek(self) -> Token:
        return self._tokens[self._next]

    def _pop(self) -> Token:
        token = self._peek
        self._next += 1
        return token

    def _accept(self, *texts: str) -> Token | None:
        token = self._peek
        is_mark = token.kind == "mark" or (token.kind == "name" and token.text == "in")
        return self._pop() if is_mark and token.text in texts else None

    def _expect(self, text: str) -> None:
        if self._accept(text) is None:
            raise ExpressionError(
                self._peek.position, f"{text!r} is expected, not {self._peek.text!r}"
            )

    def _condition(self) -> Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ExpressionError(
                self._peek.position, f"more than {DEPTH_MAX} parts are inside each other"
            )
        node = self._binary(0)
        if (mark := self._accept("?")) is not None:
            chosen = self._binary(0)
            self._expect(":")
            node = Call(mark.position, "?:", [node, chosen, self._condition()])
        self._depth -= 1
        return node

    def _binary(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self._unary()
        node = self._binary(level + 1)
        count = 0
        while (mark := self._accept(*_LEVELS[level])) is not None:
            count += 1
            if level == _RELATION and count > 1:
                raise ExpressionError(mark.position, "comparisons cannot be chained; use &&")
            if count > DEPTH_MAX:
                raise ExpressionError(
                    mark.position, f"more than {DEPTH_MAX} of {mark.text!r} in a row"
                )
            node = Call(mark.position, mark.text, [node, self._binary(level + 1)])
        return node

    def _unary(self) -> Node:
        mark = self._accept("!", "-")
        if mark is None:
            return self._member()
        operand = self._member()
        if mark.text == "-":
            if isinstance(operand, Literal) and operand.value.__class__ in {int, float}:
                return Literal(mark.position, -operand.value)
            return Call(mark.position, "-", [Literal(mark.position, 0), operand])
        return Call(mark.position, "!", [operand])

    def _member(self) -> Node:
        node = self._primary()
        steps = 0
        while (mark := self._accept(".", "[")) is not None:
            steps += 1
            if steps > DEPTH_MAX:
                raise ExpressionError(mark.position, f"more than {DEPTH_MAX} steps")
            node = self._key(node, mark) if mark.text == "[" else self._step(node)
        return node

    def _key(self, node: Node, mark: Token) -> Node:
        token = self._pop()
        if not isinstance(node, Field) or token.kind != "text":
            raise ExpressionError(
                mark.position, 'only a field can have [ ], with a constant text: attributes["a.b"]'
            )
        self._expect("]")
        return Field(node.position, (*node.path, _unquoted(token)))

    def _step(self, node: Node) -> Node:
        token = self._pop()
        if token.kind != "name":
            raise ExpressionError(token.position, f"a name is expected, not {token.text!r}")
        if self._accept("(") is not None:
            return Call(token.position, token.text, [node, *self._arguments(")")])
        if not isinstance(node, Field):
            raise ExpressionError(token.position, "only a field can have a name after a dot")
        return Field(node.position, (*node.path, token.text))

    def _primary(self) -> Node:  # noqa: PLR0911 - one a kind of token
        token = self._pop()
        match token.kind:
            case "int":
                return Literal(token.position, _integer(token))
            case "float":
                return Literal(token.position, _real(token))
            case "text":
                return Literal(token.position, _unquoted(token))
            case "name" if token.text in _WORDS:
                return Literal(token.position, _WORDS[token.text])
            case "name" if token.text != "in":
                if self._accept("(") is not None:
                    return Call(token.position, token.text, self._arguments(")"))
                return Field(token.position, (token.text,))
        if token.text == "(" and token.kind == "mark":
            node = self._condition()
            self._expect(")")
            return node
        if token.text == "[" and token.kind == "mark":
            return ListOf(token.position, self._arguments("]"))
        raise ExpressionError(token.position, f"a value is expected, not {token.text!r}")

    def _arguments(self, end: str) -> list[Node]:
        found: list[Node] = []
        if self._accept(end) is not None:
            return found
        while True:
            found.append(self._condition())
            if self._accept(",") is None:
                self._expect(end)
                return found


def _integer(token: Token) -> int:
    if len(token.text) > 19 or int(token.text) >= 1 << 63:
        raise ExpressionError(token.position, "the number is outside int64")
    return int(token.text)


def _real(token: Token) -> float:
    value = float(token.text)
    if value == float("inf"):
        raise ExpressionError(token.position, "the number is too large")
    return value


def _unquoted(token: Token) -> str:
    def replace(match: re.Match[str]) -> str:
        if match[1] not in _ESCAPES:
            raise ExpressionError(
                token.position + 1 + match.start(), f"the escape \\{match[1]} is not known"
            )
        return _ESCAPES[match[1]]

    return re.sub(r"\\(.)", replace, token.text[1:-1])


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

        def holds(fields: Fields) -> bool:
            value = one(fields)
            return value.__class__ in NUMBERS and compare(value, bound)

        return _Part("bool", holds)

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
