"""Frozen structs and dataclasses as strict JSON: what nodes of a cluster write for each other.

A document is an object with the fields of its class, by their names. It is read with the types of
the class: `str`, `int`, `bool`, `None`, literals, enums, tuples, other such classes, and unions of
these with `None`. A field that has a default may be missing. What is more than the class has was
written by a later version, and is not guessed at: a node that skipped what it does not understand
would apply something else than the others do. So what came later and is not used is not written:
nodes of before are to understand whatever means nothing new, while a cluster is upgraded.
"""

import types
from collections.abc import Callable
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Final, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec
import orjson

from penstock.logd.errors import CorruptError, LogdError

Document: TypeAlias = dict[str, Any]
"""Python form of a JSON object."""

Reader = Callable[[Any, str], Any]

_UNUSED: Final = b',"restore_from":[],"restore_upto":[]'
"""JSON of a `StreamConfig` that is restored from no backup. It is cut out of the bytes, as msgspec
writes every field, and Python would take long for all streams of a cluster. Within a string there
would be backslashes, so that it is nothing else."""

_GONE: Final = {"ReplicationOptions": frozenset({"warm_standby"})}
"""Fields that 0.1.0 wrote, by their classes; they are read over."""

FORMER_STREAM_OPTIONS: Final = {
    "batch_decoded_bytes_max": "max_batch_decoded_bytes",
    "batch_rows_max": "max_batch_rows",
    "dedup_entries_max": "max_dedup_entries",
    "header_bytes_max": "max_header_bytes",
    "header_pairs_max": "max_header_pairs",
    "intake_bytes_max": "max_intake_bytes",
    "key_bytes_max": "max_key_bytes",
    "message_bytes_max": "max_message_bytes",
    "producers_max": "max_producers",
    "segment_bytes_max": "max_segment_bytes",
}
"""Names of options in what 0.1.0 wrote, metadata and backups, and those of today."""

_FORMER: Final = {"StreamConfig": FORMER_STREAM_OPTIONS}


class LaterVersionError(LogdError):
    """A later version of logd wrote this; this node must be upgraded before it can go on.

    Attributes:
        where: Name of the data that was read.
    """

    def __init__(self, message: str, *, where: str) -> None:
        self.where = where
        super().__init__(f"{where}: {message}; upgrade this node")


def write_document(document: Any) -> bytes:
    """JSON of such objects, lists and plain values; the same bytes for the same values."""
    return msgspec.json.encode(document).replace(_UNUSED, b"")


def read_document(data: bytes, *, where: str) -> dict[str, Any]:
    """The object that some JSON holds.

    Raises:
        CorruptError: It holds something else, or is no JSON.
    """
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise CorruptError(f"not JSON: {error}", where=where) from None
    if not isinstance(document, dict):
        raise CorruptError("not a JSON object", where=where)
    return document


def read_as(kind: Any, value: Any, *, where: str) -> Any:
    """A value of a type, from parsed JSON.

    msgspec makes it, ten times as fast as Python does. It skips fields that a dataclass has not, so
    those are looked for first. What is not as it should be is read again in Python, for the words.

    Raises:
        CorruptError: It is not of that type; the path of the part that is not is named.
        LaterVersionError: An object has fields that its class has not.
    """
    if _knows_fields(kind)(value):
        with suppress(msgspec.ValidationError):
            return msgspec.convert(value, kind)
    return _reader(kind)(value, where)


def _is_plain(_: Any) -> bool:
    return True


@cache
def _knows_fields(kind: Any) -> Callable[[Any], bool]:
    """Return a check that the objects in a value have no fields but those of their classes.

    A struct that forbids other fields needs none: msgspec refuses them.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if _has_fields(kind):
        return _knows_fields_of(kind)
    if origin is tuple:
        knows = _knows_fields(arguments[0])
        if knows is _is_plain:
            return _is_plain
        return lambda value: isinstance(value, list) and all(map(knows, value))
    if origin in (types.UnionType, Union):
        parts = [_knows_fields(part) for part in arguments if part is not type(None)]
        if all(knows is _is_plain for knows in parts):
            return _is_plain
        (one,) = parts  # the only unions of classes are those with None
        return lambda value: value is None or one(value)
    return _is_plain


def _knows_fields_of(kind: Any) -> Callable[[Any], bool]:
    hints = get_type_hints(kind)
    names = frozenset(hints)
    parts = {
        name: knows for name in names if (knows := _knows_fields(hints[name])) is not _is_plain
    }

    strict = issubclass(kind, msgspec.Struct) and kind.__struct_config__.forbid_unknown_fields
    if strict and not parts:
        return _is_plain

    def knows_fields(value: Any) -> bool:
        if not isinstance(value, dict) or not (strict or value.keys() <= names):
            return False
        return all(name not in value or knows(value[name]) for name, knows in parts.items())

    return knows_fields


@cache
def _reader(kind: Any) -> Reader:
    if kind in (str, int, bool, type(None)):
        return _read_plain(kind)
    if _has_fields(kind):
        return _read_object(kind)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _read_choice(tuple(kind), kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple and arguments[1:] == (Ellipsis,):
        return _read_tuple(_reader(arguments[0]))
    if origin is Literal:
        return _read_choice(arguments, None)
    assert origin in (types.UnionType, Union), kind
    return _read_union([_reader(argument) for argument in arguments])


def _read_plain(kind: type) -> Reader:
    def read(value: Any, where: str) -> Any:
        if type(value) is not kind:  # a bool is an int
            raise CorruptError(f"{value!r:.80} is not of type {kind.__name__}", where=where)
        return value

    return read


def _read_choice(choices: tuple[Any, ...], kind: type[StrEnum] | None) -> Reader:
    def read(value: Any, where: str) -> Any:
        if not isinstance(value, str) or value not in choices:
            raise CorruptError(f"{value!r:.80} is none of {[*choices]}", where=where)
        return kind(value) if kind else value

    return read


def _read_tuple(item: Reader) -> Reader:
    def read(value: Any, where: str) -> Any:
        if not isinstance(value, list):
            raise CorruptError(f"{value!r:.80} is not a list", where=where)
        return tuple(item(part, f"{where}[{number}]") for number, part in enumerate(value))

    return read


def _read_union(readers: list[Reader]) -> Reader:
    def read(value: Any, where: str) -> Any:
        *first, last = readers
        for reader in first:
            try:
                return reader(value, where)
            except CorruptError:
                continue
        return last(value, where)

    return read


def _has_fields(kind: Any) -> bool:
    return is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, msgspec.Struct))


def _needed(kind: Any) -> set[str]:
    """Names of the fields without a default."""
    if issubclass(kind, msgspec.Struct):
        return {field.name for field in msgspec.structs.fields(kind) if field.required}
    return {
        field.name
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    }


def _read_object(kind: Any) -> Reader:
    readers = {name: _reader(hint) for name, hint in get_type_hints(kind).items()}
    needed = _needed(kind)
    gone = _GONE.get(kind.__name__, frozenset())
    former = _FORMER.get(kind.__name__, {})

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise CorruptError(f"{value!r:.80} is not an object", where=where)
        if gone & value.keys():
            value = {name: part for name, part in value.items() if name not in gone}
        if former.keys() & value.keys():
            value = {former.get(name, name): part for name, part in value.items()}
        if more := sorted(value.keys() - readers.keys()):
            raise LaterVersionError(f"unknown fields {', '.join(more)}", where=where)
        if missing := sorted(needed - value.keys()):
            raise CorruptError(f"fields {', '.join(missing)} are missing", where=where)
        return kind(
            **{name: readers[name](part, f"{where}.{name}") for name, part in value.items()}
        )

    return read
