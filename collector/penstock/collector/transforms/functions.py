"""The functions of expressions. Every one is total: what it cannot be applied to gives null.

Each takes and gives what JSON can hold. None runs longer than its operands are long: regular
expressions are constant, compiled when the configuration is read, and run by RE2 in linear time.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from penstock.collector.core.times import text_time_ns, time_of
from penstock.specs.limits import INT64_MAX, INT64_MIN, STRING_CHARACTERS_MAX

NUMBERS: Final[frozenset[Any]] = frozenset((int, float))
"""Classes of numbers; bool is none."""


@dataclass(frozen=True, slots=True)
class Function:
    """What is known of a function before it runs.

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
