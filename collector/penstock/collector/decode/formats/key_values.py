"""Pairs of keys and values in a text, as logfmt writes them or with separators of one's own."""

import re
from collections.abc import Iterator
from typing import Any, Final

from penstock.collector.decode.attributes import clean_text
from penstock.specs.limits import ATTRIBUTES_MAX

_ESCAPE: Final = re.compile(r"\\(?:([\\\"ntr])|u([0-9A-Fa-f]{4}))")
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r"}


def read_logfmt(text: str) -> dict[str, Any] | None:
    """``key=value key="quoted value" flag``; a key without a value is true."""
    return pairs_of(text, " ", "=", bare=True)


def pairs_of(
    text: str, pair_separator: str, value_separator: str, *, bare: bool
) -> dict[str, Any] | None:
    """The pairs of a text; None where it has none, or something else.

    Args:
        text: Keys and values; values in double quotes may hold separators.
        pair_separator: Between two pairs.
        value_separator: Between a key and its value.
        bare: A key may stand alone, and is true.
    """
    found: dict[str, Any] = {}
    has_pair = False
    for key, value in _split(text, pair_separator, value_separator):
        if not key or (value is None and not bare) or len(found) > ATTRIBUTES_MAX * 2:
            return None
        has_pair = has_pair or value is not None
        found[key] = True if value is None else value
    return found if has_pair else None


def _split(
    text: str, pair_separator: str, value_separator: str
) -> Iterator[tuple[str, str | None]]:
    at, end = 0, len(text)
    while at < end:
        if text.startswith(pair_separator, at):
            at += len(pair_separator)
            continue
        stop = _find(text, pair_separator, at)
        middle = text.find(value_separator, at, stop)
        if middle < 0:
            yield text[at:stop].strip(), None
            at = stop
            continue
        key, at = text[at:middle].strip(), middle + len(value_separator)
        if text.startswith('"', at) and (close := _closing(text, at + 1)) > 0:
            yield key, unescaped(text[at + 1 : close])
            at = close + 1
        else:
            stop = _find(text, pair_separator, at)
            yield key, text[at:stop].strip()
            at = stop


def _find(text: str, part: str, at: int) -> int:
    found = text.find(part, at)
    return len(text) if found < 0 else found


def _closing(text: str, at: int) -> int:
    """Return where the quote ends; -1 when it does not."""
    while True:
        quote = text.find('"', at)
        if quote < 0:
            return -1
        slashes = quote - len(text[at:quote].rstrip("\\")) - at
        if slashes % 2 == 0:
            return quote
        at = quote + 1


def unescaped(text: str) -> str:
    """The text of a value in quotes; a backslash that escapes nothing stays."""
    if "\\" not in text:
        return text
    return clean_text(_ESCAPE.sub(_meant, text))


def _meant(escape: re.Match[str]) -> str:
    """The character that an escape stands for."""
    return chr(int(escape[2], 16)) if escape[2] else _ESCAPED.get(escape[1], escape[1])
