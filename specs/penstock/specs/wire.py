"""JSON on the wire: orjson where it is installed, the standard library's otherwise."""

import json
from collections.abc import Callable
from typing import Any

try:
    import orjson
except ImportError:  # the base install has pydantic only
    _orjson = None
else:
    _orjson = orjson


def _dumps(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


encode_json: Callable[[Any], bytes] = _dumps if _orjson is None else _orjson.dumps
"""A value as compact UTF-8 JSON on one line.

Raises:
    TypeError: It holds something that is not JSON, or text that is not Unicode.
    ValueError: The same, without orjson.
"""
