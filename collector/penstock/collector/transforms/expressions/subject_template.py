"""Subject templates: ``telemetry.{kind}.{service}.{attributes.tenant}``.

The first token is written out, so that no record can choose where in the subject space it goes. A
placeholder stands for a whole token, or for a part of one; whatever it is replaced with is made of
letters, digits, ``-`` and ``_`` alone.
"""

import re
from functools import lru_cache
from typing import Any, Final

from penstock.collector.transforms.expressions.expression import to_text
from penstock.collector.transforms.expressions.paths import Fields, PathError, getter, parse_path
from penstock.specs.subjects import KINDS, UNKNOWN_SERVICE, subject_token

SUBJECT_CHARACTERS_MAX: Final = 512
TOKENS_MAX: Final = 16

_LITERAL: Final = re.compile(r"^[A-Za-z0-9_-]+$")
_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
_LITERAL_PART: Final = re.compile(r"^[A-Za-z0-9_.-]*$")
_KIND: Final = ("kind",)
_SHORT: Final = {"service": ("resource", "service.name"), "kind": _KIND}


class SubjectTemplate:
    """A checked template.

    Attributes:
        reads: Places whose values it is filled with.

    Raises:
        ValueError: It is not one; the message says why.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        parts = _PLACEHOLDER.split(text)
        self.prefix = parts[0]
        _check(text, parts)
        self._literals = tuple(parts[::2])
        places = [_place(name) for name in parts[1::2]]
        self.reads = frozenset(places)
        self._readers = [getter(place) if place != _KIND else _kind for place in places]

    def subject(self, fields: Fields) -> str:
        """The subject of a record."""
        tokens = tuple(subject_token(_text(read(fields))) for read in self._readers)
        return join_subject(self._literals, tokens)


@lru_cache(maxsize=4096)  # of tokens, which are short; values may be long, and many
def join_subject(literals: tuple[str, ...], tokens: tuple[str, ...]) -> str:
    pieces = [literals[0]]
    for token, literal in zip(tokens, literals[1:], strict=True):
        pieces += [token, literal]
    return "".join(pieces)


def _text(value: Any) -> str:
    return to_text(value) or UNKNOWN_SERVICE


def _kind(fields: Fields) -> Any:
    return KINDS.get(fields.get("kind", ""), UNKNOWN_SERVICE)


def _place(name: str) -> tuple[str, ...]:
    if name in _SHORT:
        return _SHORT[name]
    try:
        return parse_path(name)
    except PathError as error:
        raise ValueError(str(error)) from None


def _check(text: str, parts: list[str]) -> None:
    plain = _PLACEHOLDER.sub("x", text)
    tokens = plain.split(".")
    if len(text) > SUBJECT_CHARACTERS_MAX or len(tokens) > TOKENS_MAX:
        raise ValueError(
            f"a subject has at most {TOKENS_MAX} tokens and {SUBJECT_CHARACTERS_MAX} characters"
        )
    if not all(_LITERAL_PART.match(part) for part in parts[::2]) or not all(tokens):
        raise ValueError(
            "a subject is made of tokens of letters, digits, - and _, joined by dots, and "
            "of placeholders such as {service}"
        )
    if len(tokens) < 2 or not _LITERAL.match(parts[0].partition(".")[0]) or "." not in parts[0]:
        raise ValueError(
            "the first token must be written out, and one must follow, as in "
            "telemetry.{kind}.{service}"
        )
