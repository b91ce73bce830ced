"""Steps that change what a record says, in its typed columns and in its JSON text alike."""

import hashlib
import hmac
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.router.json_objects import text_of
from penstock.router.transforms.entries import (
    Change,
    change_entries,
    keep_entries,
    rename_entries,
)
from penstock.router.transforms.fields import ENVELOPE, MAPS, Field, all_columns, parse_field
from penstock.router.transforms.settings import Hash, Mask

Records = list[dict[str, Any]]
"""The rows' JSON objects; empty where the sink does not want `value`."""

_ALWAYS: Final = frozenset((name,) for name in ENVELOPE)


def drop(table: pa.Table, records: Records, names: Iterable[str]) -> pa.Table:
    """Take fields away."""
    gone = {parse_field(name).path for name in names}
    return _remove(table, records, lambda path: path in gone or path[:1] in gone)


def select(table: pa.Table, records: Records, names: Iterable[str]) -> pa.Table:
    """Take all fields away but these, and what makes it a record."""
    kept = {parse_field(name).path for name in names} | _ALWAYS
    return _remove(table, records, lambda path: path not in kept and path[:1] not in kept)


def rename(table: pa.Table, records: Records, names: dict[str, str]) -> pa.Table:
    """Give attributes other names."""
    members = {parse_field(old).path[1]: parse_field(new).path[1] for old, new in names.items()}
    for record in records:
        attributes = record.get("attributes")
        if isinstance(attributes, dict):
            moved = {new: attributes.pop(old) for old, new in members.items() if old in attributes}
            attributes.update(moved)
    return _edit(table, "attributes", lambda maps: rename_entries(maps, members))


def mask(table: pa.Table, records: Records, settings: Mask) -> pa.Table:
    """Replace text, or parts of it."""

    def change(texts: pa.Array) -> pa.Array:
        if settings.pattern is None:
            whole = pa.scalar(settings.replacement, pa.string())
            return pc.if_else(pc.is_valid(texts), whole, pa.scalar(None, pa.string()))
        return pc.replace_substring_regex(
            texts, pattern=settings.pattern, replacement=settings.replacement
        )

    return change_texts(table, records, settings.fields, change)


def keyed_hash(table: pa.Table, records: Records, settings: Hash, key: bytes) -> pa.Table:
    """Replace text by its HMAC-SHA256; each different text is hashed once."""

    def change(texts: pa.Array) -> pa.Array:
        coded = texts.dictionary_encode()
        hashes = [
            None if text is None else hmac.digest(key, text.encode(), hashlib.sha256).hex()
            for text in coded.dictionary.to_pylist()
        ]
        return pa.array(hashes, pa.string()).take(coded.indices)

    return change_texts(table, records, settings.fields, change)


def change_texts(
    table: pa.Table, records: Records, names: Iterable[str], change: Change
) -> pa.Table:
    """Change the text of fields wherever it stands."""
    for name in names:
        field = parse_field(name)
        if field.column is not None:
            table = _edit(table, field.column, lambda column: change(column.cast(pa.string())))
        if field.path[0] in MAPS:
            in_maps = partial(change_entries, names=[field.path[1]], change=change)
            table = _edit(table, field.path[0], in_maps)
        _change_records(records, field, change)
    return table


def _change_records(records: Records, field: Field, change: Change) -> None:
    *parents, last = field.path
    holders = []
    for record in records:
        holder: Any = record
        for key in parents:
            holder = holder.get(key) if isinstance(holder, dict) else None
        if isinstance(holder, dict) and holder.get(last) is not None:
            holders.append(holder)
    texts = pa.array([text_of(holder[last]) for holder in holders], pa.string())
    for holder, text in zip(holders, change(texts).to_pylist(), strict=True):
        holder[last] = text


def _remove(
    table: pa.Table, records: Records, is_gone: Callable[[tuple[str, ...]], bool]
) -> pa.Table:
    for record in records:
        _remove_keys(record, is_gone)
    for field in all_columns():
        at = table.schema.get_field_index(field.name)
        if at < 0:
            continue
        if field.path[0] in MAPS and len(field.path) == 1:
            thin = partial(_thin, path=field.path, is_gone=is_gone)
            table = _edit(table, field.name, thin)
        elif is_gone(field.path):
            kind = table.schema.field(at)
            table = table.set_column(at, kind, pa.nulls(table.num_rows, kind.type))
    return table


def _thin(
    maps: pa.MapArray, path: tuple[str, ...], is_gone: Callable[[tuple[str, ...]], bool]
) -> pa.MapArray:
    """A map without the entries that are gone."""

    def wanted(keys: pa.Array) -> pa.Array:
        coded = keys.dictionary_encode()
        stays = [not is_gone((*path, key)) for key in coded.dictionary.to_pylist()]
        return pa.array(stays, pa.bool_()).take(coded.indices)

    return keep_entries(maps, wanted)


def _remove_keys(record: dict[str, Any], is_gone: Callable[[tuple[str, ...]], bool]) -> None:
    for key in list(record):
        value = record[key]
        if key in (*MAPS, "context") and isinstance(value, dict):
            kept = {name: value[name] for name in value if not is_gone((key, name))}
            if kept or not is_gone((key,)):
                record[key] = kept
                continue
        elif not is_gone((key,)):
            continue
        del record[key]


def _edit(table: pa.Table, name: str, edit: Callable[[pa.Array], pa.Array]) -> pa.Table:
    at = table.schema.get_field_index(name)
    if at < 0:
        return table
    column = table.column(at).combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # an empty one stays chunked
        column = pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])
    return table.set_column(at, table.schema.field(at), edit(column))
