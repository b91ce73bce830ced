"""Sampling: which records are kept is told by their trace, so that its records go together.

The trace's id decides, or what `by` names: the first 56 bits of its BLAKE2b are a number, and a
record is kept where that reaches a threshold. The hash is keyed by which `sample` step of its route
it is, and by `seed`. So all routes keep the same traces, who keeps a larger share keeps every trace
that others keep, and yet a step decides again of what an emitter, a collector or a step before it
has kept: only then is the product of their weights how many records each one stands for.
"""

from hashlib import blake2b
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.router.transforms.fields import entry, parse_field
from penstock.router.transforms.settings import Sample

_RANGE: Final = 1 << 56


def sample_columns(settings: Sample) -> set[str]:
    """The columns that the decision is made of."""
    field = parse_field(settings.by)
    return {field.column or field.path[0], "record_id", "stream", "partition", "offset"}


def kept(table: pa.Table, settings: Sample, nth: int) -> pa.Array:
    """Return which rows stay at a route's `nth` step of this kind, from 0 on."""
    threshold = round((1 - settings.rate) * _RANGE)
    coded = _deciding(table, settings).dictionary_encode()
    salt = f"router/{nth}/{settings.seed}"
    stays = [randomness(text, salt) >= threshold for text in coded.dictionary.to_pylist()]
    return pa.array(stays, pa.bool_()).take(coded.indices)


def weigh(table: pa.Table, records: list[dict[str, Any]], rate: float) -> pa.Table:
    """Make each row stand for the ones that were left out."""
    for record in records:
        record["sample_weight"] = _weight(record.get("sample_weight")) / rate
    at = table.schema.get_field_index("sample_weight")
    if at < 0:
        return table
    weights = pc.divide(pc.fill_null(table.column(at), 1.0), rate)
    return table.set_column(at, table.schema.field(at), weights)


def _weight(value: Any) -> float:
    """Return the record's weight: 1 where it has none, or one that no double can hold."""
    try:
        return float(value) if isinstance(value, int | float) else 1.0
    except OverflowError:
        return 1.0


def randomness(text: str, salt: str) -> int:
    """A number below 2^56 that is the same for the same text and salt, everywhere."""
    digest = blake2b(text.encode(), digest_size=7, key=salt.encode()).digest()
    return int.from_bytes(digest, "big")


def _deciding(table: pa.Table, settings: Sample) -> pa.Array:
    """Return the value that decides on each row: that of `by`, else its id, else its position."""
    field = parse_field(settings.by)
    if field.column is not None:
        by = table.column(field.column).combine_chunks()
    else:
        by = entry(table.column(field.path[0]).combine_chunks(), field.path[1])
    place = pc.binary_join_element_wise(
        table.column("stream"),
        table.column("partition").cast(pa.string()),
        table.column("offset").cast(pa.string()),
        "/",
    )
    return pc.coalesce(by, table.column("record_id"), place).combine_chunks()
