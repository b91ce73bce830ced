r"""Text that others wrote, shown on a terminal without being able to drive it.

Subjects, headers and payloads may hold anything: escape sequences that move the cursor or set the
clipboard, marks that turn the direction of writing round, characters that nobody sees. Whatever is
neither a letter nor a plain sign is written as an escape, `\x1b` for people and `\u001b` in JSON,
where it means the same to a program as before.
"""

import json
import re
import sys
import unicodedata
from typing import Any, Final

import click
import orjson

# Controls (C0, DEL, C1), marks for directions and joins, unseen spaces, line and paragraph
# separators, tag characters, halves of pairs. \x9b alone begins a sequence, as ESC [.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def safe(text: str) -> str:
    """Text on one line, that moves nothing on a terminal."""
    return text if text.isascii() and text.isprintable() else _UNSAFE.sub(_escape, text)


def safe_bytes(value: bytes) -> str:
    r"""A payload as such text; bytes that are not UTF-8 are written as `\\xff`."""
    return safe(value.decode("utf-8", "backslashreplace"))


def safe_lines(text: str) -> str:
    """Text whose lines may stay lines."""
    return "\n".join(map(safe, text.split("\n")))


def safe_json(document: bytes) -> str:
    """JSON that moves nothing on a terminal, and means the same.

    Args:
        document: Encoded by orjson: what is a control to ASCII is escaped already.
    """
    text = document.decode()
    if text.isascii() and "\x7f" not in text:
        return text
    return "\n".join(_UNSAFE.sub(_escape_json, line) for line in text.split("\n"))


def echo_json(document: Any, *, indent: bool = False) -> None:
    """Print a document as JSON, on one line or on several."""
    options = orjson.OPT_INDENT_2 if indent else None
    click.echo(safe_json(orjson.dumps(document, option=options)))


def pretty_json(value: bytes) -> str | None:
    """A payload that is a JSON object or list, laid out for people; None: it is neither."""
    if value.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        return safe_json(orjson.dumps(orjson.loads(value), option=orjson.OPT_INDENT_2))
    except (orjson.JSONDecodeError, TypeError, RecursionError):
        return None


def width_of(text: str) -> int:
    """Columns of a terminal that text takes: none for marks above letters, two for wide signs."""
    if text.isascii():
        return len(text)
    return sum(map(_width, text))


def cut(text: str, columns: int) -> str:
    """Text that takes no more columns; an ellipsis says that there was more."""
    if width_of(text) <= columns:
        return text
    kept, room = "", columns - 1
    for sign in text:
        room -= _width(sign)
        if room < 0:
            break
        kept += sign
    return kept + "…"


def human_bytes(count: int) -> str:
    """A size for people: 1.5 GB."""
    size, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def on_terminal() -> bool:
    """Whether somebody watches what a command says beside its output."""
    return sys.stderr.isatty()


def _width(sign: str) -> int:
    if unicodedata.combining(sign):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def _escape(match: re.Match[str]) -> str:
    sign = match.group()
    code = ord(sign)
    if sign in _SHORT:
        return _SHORT[sign]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escape_json(match: re.Match[str]) -> str:
    sign = match.group()
    return f"\\u{ord(sign):04x}" if ord(sign) < 0x10000 else json.dumps(sign)[1:-1]
