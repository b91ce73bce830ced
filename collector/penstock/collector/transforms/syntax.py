"""Expressions as text: tokens, and a tree with the position of every part.

The syntax is that of the Common Expression Language, as far as it is needed (decision 0035):

    condition  = or [ "?" or ":" condition ]
    or         = and { "||" and }            and = relation { "&&" relation }
    relation   = sum [ ( "==" | "!=" | "<" | "<=" | ">" | ">=" | "in" ) sum ]
    sum        = product { ( "+" | "-" ) product }
    product    = unary { ( "*" | "/" | "%" ) unary }
    unary      = [ "!" | "-" ] member
    member     = primary { "[" literal "]" | "." NAME [ "(" arguments ")" ] }
    primary    = literal | NAME [ "(" arguments ")" ] | "(" condition ")" | "[" arguments "]"

There are no loops, no variables and no calls of anything but the functions of
`penstock.collector.transforms.functions`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

EXPRESSION_CHARACTERS_MAX: Final = 8192
"""Of one expression; longer ones are made by programs, and belong into several transforms."""

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
