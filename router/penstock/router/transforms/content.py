"""Steps that change what a record says, in its typed columns and in its JSON text alike."""

import hashlib
import hmac
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.router.columns.json_objects import is_deep, read_json, text_of, write_json
from penstock.router.transforms.fields import (
    ENVELOPE,
    MAPS,
    Change,
    Field,
    all_columns,
    change_entries,
    keep_entries,
    parse_field,
    rename_entries,
)
from penstock.router.transforms.settings import Hash, Mask

Records = list[dict[str, Any]]
"""The rows' JSON objects; empty where the sink does not want `value`."""

_ALWAYS: Final = frozenset((name,) for name in ENVELOPE)


def drop(table: pa.Table, records: Records, names: Iterable[str]) -> pa.Table:
    """Take fields away."""
    fields = [parse_field(name) for name in names]
    gone = {field.path for field in fields}
    members = [field for field in fields if field.is_member]

    def is_gone(path: tuple[str, ...]) -> bool:
        return path in gone or path[:1] in gone or _is_any(members, path)

    table = _remove(table, records, is_gone)
    for field in members:
        for record in records:
            _drop_deep(record.get(field.path[0]), field)
        edit = partial(_edit_deep, field=field, change=partial(_drop_deep, field=field))
        table = _edit(table, field.path[0], edit)
    return table


def select(table: pa.Table, records: Records, names: Iterable[str]) -> pa.Table:
    """Take all fields away but these, and what makes it a record; members stay or go whole."""
    fields = [parse_field(name) for name in names]
    kept = {field.path for field in fields} | _ALWAYS
    members = [field for field in fields if field.is_member]

    def is_gone(path: tuple[str, ...]) -> bool:
        return path not in kept and path[:1] not in kept and not _is_any(members, path)

    return _remove(table, records, is_gone)


def _is_any(fields: Iterable[Field], path: tuple[str, ...]) -> bool:
    return len(path) == 2 and any(it.path[0] == path[0] and it.matches(path[1]) for it in fields)


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
        for column in field.columns():
            table = _edit(table, column.name, partial(_changed_column, change=change))
        if field.is_member:
            table = _edit(
                table, field.path[0], partial(_change_members, field=field, change=change)
            )
            _change_deep([record.get(field.path[0]) for record in records], field, change)
        else:
            _change_records(records, field, change)
    return table


def _changed_column(column: pa.Array, change: Change) -> pa.Array:
    """Changed text; NULL in place of what has another type, which has no room for it."""
    if pa.types.is_string(column.type):
        return change(column)
    return pa.nulls(len(column), column.type)


def _change_members(maps: pa.MapArray, field: Field, change: Change) -> pa.MapArray:
    """The entries of a map that are meant, and what is meant deeper in others."""
    keys = maps.keys.unique().to_pylist()
    maps = change_entries(maps, [key for key in keys if field.matches(key)], change)
    return _edit_deep(maps, field, lambda value: _change_deep([value], field, change))


def _edit_deep(
    maps: pa.MapArray, field: Field, change: Callable[[dict[str, Any]], None]
) -> pa.MapArray:
    """Edit entries that are JSON, of keys in which what is meant may lie deeper."""
    keys, texts = maps.keys.to_pylist(), maps.items.to_pylist()
    inside = {it for it in set(keys) if field.may_lie_in(it) and not field.matches(it)}
    if not inside:
        return maps
    edited = list(texts)
    for at, (key, text) in enumerate(zip(keys, texts, strict=True)):
        if key not in inside or text is None or text[:1] not in ("{", "["):
            continue
        value = _json_of(text)
        if isinstance(value, dict | list):
            holder = {key: value}
            before = write_json(holder)
            change(holder)
            if write_json(holder) != before:
                edited[at] = text_of(holder[key])
    return pa.MapArray.from_arrays(
        maps.offsets if not maps.null_count else _offsets_of(maps),
        maps.keys,
        pa.array(edited, pa.string()),
        type=maps.type,
    )


def _offsets_of(maps: pa.MapArray) -> pa.Array:
    absent = pa.concat_arrays([maps.is_null(), pa.array([False])])
    return pc.if_else(absent, pa.scalar(None, pa.int32()), maps.offsets)


def _json_of(text: str) -> Any:
    try:
        return None if is_deep(text.encode()) else read_json(text)
    except (ValueError, RecursionError):
        return None


def _meant(value: Any, field: Field, before: str = "") -> Iterator[tuple[dict[str, Any], str]]:
    """Each object, and its key, that is meant: in lists and deeper objects as well."""
    if isinstance(value, list):
        for it in value:
            if isinstance(it, dict | list):
                yield from _meant(it, field, before)
    elif isinstance(value, dict):
        for key, it in list(value.items()):
            if field.matches(before + key):
                yield value, key
            elif isinstance(it, dict | list) and field.may_lie_in(before + key):
                yield from _meant(it, field, f"{before}{key}.")


def _change_deep(values: list[Any], field: Field, change: Change) -> None:
    found = [at for value in values for at in _meant(value, field)]
    found = [(holder, key) for holder, key in found if holder[key] is not None]
    texts = pa.array([text_of(holder[key]) for holder, key in found], pa.string())
    for (holder, key), text in zip(found, change(texts).to_pylist(), strict=True):
        holder[key] = text


def _drop_deep(value: Any, field: Field) -> None:
    for holder, key in list(_meant(value, field)):
        del holder[key]


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
