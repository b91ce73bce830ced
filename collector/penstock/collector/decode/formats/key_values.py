"""Pairs of keys and values in a text, as logfmt writes them or with separators of one's own."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from penstock.collector.decode.attributes import clean_text
from penstock.specs.limits import ATTRIBUTES_MAX

_ESCAPE: Final = re.compile(r"\\(?:([\\\"ntr])|u([0-9A-Fa-f]{4}))")
_BLANKS: Final = re.compile(r"[ \t]+")
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r"}


def read_logfmt(text: str, notes: Counter[str] | None = None) -> dict[str, Any] | None:
    """``key=value key="quoted value" flag``; a key without a value is true.

    Between pairs are blanks and tabs. Of a key that is repeated the last counts; `notes` has the
    number of the others.
    """
    return _pairs(text, _BLANKS, "=", bare=True, notes=notes)


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
    return _pairs(text, re.compile(re.escape(pair_separator)), value_separator, bare=bare)


def _pairs(
    text: str,
    pair_separator: re.Pattern[str],
    value_separator: str,
    *,
    bare: bool,
    notes: Counter[str] | None = None,
) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    has_pair = False
    repeated = 0
    for key, value in _split(text, pair_separator, value_separator):
        if not key or (value is None and not bare) or len(found) > ATTRIBUTES_MAX * 2:
            return None
        has_pair = has_pair or value is not None
        repeated += key in found
        found[key] = True if value is None else value
    if repeated and has_pair and notes is not None:
        notes["keys_repeated"] += repeated
    return found if has_pair else None


def _split(
    text: str, pair_separator: re.Pattern[str], value_separator: str
) -> Iterator[tuple[str, str | None]]:
    at, end = 0, len(text)
    while at < end:
        if separator := pair_separator.match(text, at):
            at = separator.end()
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


def _find(text: str, part: re.Pattern[str], at: int) -> int:
    found = part.search(text, at)
    return len(text) if found is None else found.start()


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
