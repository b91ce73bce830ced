"""JSON objects as programs write them, also where one value in them is no JSON.

What strict readers refuse whole is read part by part: ``NaN`` and the infinities, numbers beyond a
double (as their text), lone surrogates (as U+FFFD), bytes that are no UTF-8, a comma before a
closing bracket. An integer keeps its digits, however large.
"""

import json
import math
import re
from typing import Any, Final

import msgspec

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
"""What a file in UTF-8 may begin with."""
_TRAILING_COMMA: Final = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")|,(?=\s*[}\]])', re.DOTALL)
_DIGITS_MAX: Final = 4000
"""Of an integer; Python itself refuses somewhat more."""
_decode: Final = msgspec.json.Decoder().decode


def read_object(text: bytes) -> tuple[dict[str, Any] | None, bool]:
    """The JSON object that a text is, and whether a strict reader would have refused it.

    None when it is none, also for a lenient reader.
    """
    try:
        found = _decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _read_leniently(text), True
    except RecursionError:
        return None, False
    return found if isinstance(found, dict) else None, False


def _read_leniently(text: bytes) -> dict[str, Any] | None:
    if not text.rstrip().endswith(b"}"):
        return None
    whole = text.decode("utf-8", "replace")
    for attempt in (whole, None):
        try:
            found = json.loads(
                _TRAILING_COMMA.sub(lambda it: it[1] or "", whole) if attempt is None else attempt,
                parse_float=_real,
                parse_int=_integer,
            )
        except (ValueError, RecursionError):
            continue
        return found if isinstance(found, dict) else None
    return None


def _real(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text


def _integer(text: str) -> int | str:
    return int(text) if len(text) <= _DIGITS_MAX else text
