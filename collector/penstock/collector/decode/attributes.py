"""Foreign values as the flat attributes that a record allows."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from penstock.specs.limits import (
    ATTRIBUTE_DEPTH_SOFT,
    ATTRIBUTES_MAX,
    INT64_MAX,
    INT64_MIN,
    KEY_CHARACTERS_MAX,
    LIST_ITEMS_MAX,
    STRING_CHARACTERS_MAX,
)
from penstock.specs.models.scalars import not_finite_word

Scalar = str | bool | int | float | None
Value = Scalar | list[Scalar]


def flatten(
    fields: Mapping[Any, Any], *, count_max: int = ATTRIBUTES_MAX
) -> tuple[dict[str, Value], int]:
    """Lay a mapping out flat: nested keys are joined by dots, what does not fit becomes JSON text.

    Returns:
        The attributes, and how many were left out because there are too many or a key is too long,
        or were cut because they are too long.
    """
    if len(fields) <= count_max and all(map(_is_fit, fields.keys(), fields.values())):
        return dict(fields), 0  # as almost all are
    attributes: dict[str, Value] = {}
    left_out = 0
    for key, value in _leaves(fields, "", ATTRIBUTE_DEPTH_SOFT):
        if len(attributes) >= count_max or not 0 < len(key) <= KEY_CHARACTERS_MAX:
            left_out += 1
        elif value.__class__ is str and len(value) > STRING_CHARACTERS_MAX:
            left_out += 1
            attributes[key] = value[:STRING_CHARACTERS_MAX]
        else:
            attributes[key] = value
    return attributes, left_out


def _is_fit(key: Any, value: Any) -> bool:
    """Return whether a field needs no change; False also for text that is not ASCII."""
    if key.__class__ is not str or not key.isascii() or not 0 < len(key) <= KEY_CHARACTERS_MAX:
        return False
    kind = value.__class__
    if kind is str:
        return len(value) <= STRING_CHARACTERS_MAX and bool(value.isascii())
    if kind is int:
        return bool(INT64_MIN <= value <= INT64_MAX)
    if kind is float:
        return bool(value - value == 0.0)
    return kind is bool or value is None


def _leaves(fields: Mapping[Any, Any], prefix: str, depth: int) -> Iterator[tuple[str, Value]]:
    for key, value in fields.items():
        if not prefix and _is_fit(key, value):
            yield key, value
            continue
        name = f"{prefix}{_text(key)}"
        if isinstance(value, Mapping) and value and depth > 1:
            yield from _leaves(value, f"{name}.", depth - 1)
        else:
            yield name, _plain(value)


def _plain(value: Any) -> Value:
    scalar = _scalar(value)
    if scalar is not None or value is None:
        return scalar
    if isinstance(value, (list, tuple)) and len(value) <= LIST_ITEMS_MAX:
        items = [_scalar(item) for item in value]
        if all(item is not None for item in items) and len({type(item) for item in items}) <= 1:
            return items
    return _as_json(value)


def _scalar(value: Any) -> Scalar:
    """The value as a scalar that a record can hold; None when it is none."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if INT64_MIN <= value <= INT64_MAX else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(not_finite_word(value))
    if isinstance(value, (str, bytes, bytearray)):
        return _text(value)
    return None


def clean_text(text: str) -> str:
    """Text that encodes as UTF-8: each surrogate that stands alone becomes U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _text(value: Any) -> str:
    """Text that encodes as UTF-8 whatever it was."""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    return clean_text(str(value))


def _as_json(value: Any) -> str:
    try:
        return orjson.dumps(value, default=_text, option=orjson.OPT_NON_STR_KEYS).decode()
    except (orjson.JSONEncodeError, RecursionError):
        return clean_text(repr(value)[:1024])
