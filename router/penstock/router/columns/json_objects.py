"""A record's JSON object, read and written so that no value in it changes.

An integer stays what it is, however large: parsers that hold integers in 64 bits make a nearby
number of a larger one. Numbers with a fraction or an exponent are doubles, here as everywhere.
"""

import re
from itertools import accumulate
from typing import Any, Final

import msgspec

NESTED_MAX: Final = 500
"""Objects and lists inside each other that are changed; the parser reads somewhat fewer than 1000,
as the stack allows, and what it has read it may be unable to write."""

_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*"?', re.DOTALL)
"""One without an end as well: then no text takes time beyond its length."""

_BRACKETS: Final = b"[]{}"
_NO_BRACKET: Final = bytes(byte for byte in range(256) if byte not in _BRACKETS)
_STEP: Final = {byte: 1 if byte in b"[{" else -1 for byte in _BRACKETS}

read_json: Final = msgspec.json.Decoder().decode
"""Decoder of JSON that `write_json` wrote."""
_encoder: Final = msgspec.json.Encoder()
write_json: Final = _encoder.encode
"""A value as JSON, in one line.

What `orjson.dumps` returns holds 4 KiB until it is let go; this is as large as it is long.
"""

write_sorted: Final = msgspec.json.Encoder(order="sorted").encode
"""Encoder of JSON that sorts the names of an object."""

write_lines: Final = _encoder.encode_lines
"""Values as JSON, a line each; a line break ends the last one as well."""


def read_object(text: bytes | None) -> dict[str, Any] | None:
    """The JSON object that a text is; None where it is none, or one that cannot be held."""
    try:
        found = read_json(text or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def text_of(value: Any) -> str:
    """Text as it is, anything else as its JSON."""
    return value if isinstance(value, str) else write_json(value).decode()


def is_deep(text: bytes) -> bool:
    """Return whether more than `NESTED_MAX` objects and lists of a JSON text are nested."""
    if len(text) <= 2 * NESTED_MAX or text.count(b"[") + text.count(b"{") <= NESTED_MAX:
        return False
    brackets = _STRING.sub(b"", text).translate(None, _NO_BRACKET)
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > NESTED_MAX
