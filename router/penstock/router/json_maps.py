"""JSON objects as Arrow's maps of text, and JSON in one form: a column at a time."""

from collections.abc import Callable
from itertools import accumulate, chain
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.router.row_types import NULL_TEXT

_BLANK: Final = r"[ \t\r\n]"

_decode_map: Final = msgspec.json.Decoder(dict[str, msgspec.Raw] | None).decode


def _map_or_none(text: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _decode_map(text) or {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def maps(texts: pa.Array) -> pa.Array:
    """JSON objects as maps of text; a nested value is its JSON."""
    found = list(map(_map_or_none, texts.to_pylist()))
    offsets: list[int | None] = list(accumulate(map(len, found), initial=0))
    for absent in pc.indices_nonzero(pc.invert(pc.starts_with(texts, b"{"))).to_pylist():
        offsets[absent] = None
    items = list(map(bytes, chain.from_iterable(map(dict.values, found))))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()),
        pa.array(list(chain.from_iterable(found)), pa.string()),
        _plain_texts(pa.array(items, pa.binary())),
    )


def _plain_texts(texts: pa.Array) -> pa.Array:
    """JSON values as text: strings without their quotes, null as null."""
    is_string = pc.starts_with(texts, b'"')
    plain = pc.if_else(is_string, pc.binary_slice(texts, 1, -1), texts)
    plain = pc.if_else(pc.equal(texts, NULL_TEXT), None, plain)
    escaped = pc.and_(is_string, pc.match_substring(texts, b"\\"))
    plain = _replaced(plain, escaped, texts, lambda text: msgspec.json.decode(text).encode())
    return compact(plain, pc.invert(is_string)).cast(pa.string())


def compact(texts: pa.Array, is_json: pa.Array) -> pa.Array:
    """Lists and objects without blanks, as Spark's own functions write them."""
    is_nested = pc.or_(pc.starts_with(texts, b"{"), pc.starts_with(texts, b"["))
    loose = pc.and_(pc.and_(is_json, is_nested), pc.match_substring_regex(texts, _BLANK))
    return _replaced(texts, loose, texts, _without_blanks)


def _without_blanks(text: bytes) -> bytes:
    """The same JSON; as it is where that is nested too deeply to be gone through."""
    try:
        return msgspec.json.format(text, indent=-1)
    except RecursionError:
        return text


def _replaced(
    values: pa.Array, mask: pa.Array, texts: pa.Array, make: Callable[[bytes], bytes]
) -> pa.Array:
    """Values of which some are made of texts one by one: those that are rare."""
    mask = pc.fill_null(mask, fill_value=False)
    if not pc.any(mask, min_count=0).as_py():
        return values
    made = [make(text) for text in texts.filter(mask).to_pylist()]
    return pc.replace_with_mask(values, mask, pa.array(made, pa.binary()))
