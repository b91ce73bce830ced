"""A spec's fast path through the gate, generated from its pydantic model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from types import GenericAlias
from typing import Any, Final

import msgspec

from penstock.specs.definition import Schema, model_fields_of
from penstock.specs.envelope import Record
from penstock.specs.fast_types import (
    HEX_PATTERN,
    TypeMaker,
    UngeneratableError,
    without_default,
)
from penstock.specs.kinds import BASE_MODELS, WIRE_REQUIRED
from penstock.specs.log_record import DEFAULT_SEVERITY, FAILED_SEVERITY

_RULES = Record.__pydantic_decorators__.model_validators["_obeys_its_rules"].func
"""The one validator that the fast path knows how to stand in for."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """One spec's fast path.

    Attributes:
        decode: The line's Struct; a field that is not there is None or `msgspec.UNSET`.
        flat: Positions of fields that are Structs of scalars.
        nested: Positions of others that hold keys themselves, and what counts these.
        ids: Picks the values that must be hex digits; their length is checked already.
        rules: What must hold between fields.
        severity: The record's severity number.
        own: A specialised spec's own fields, as a Struct to convert its attributes to.
    """

    decode: Callable[[bytes], Any]
    flat: tuple[int, ...]
    nested: tuple[tuple[int, Callable[[Any], int]], ...]
    ids: Callable[[tuple[Any, ...]], Any]
    rules: tuple[Callable[[Any], None], ...]
    severity: Callable[[Any], int]
    own: Any


def generate(model: type[Record]) -> Decoder:
    """The fast path of a spec.

    `schema` and `kind` are taken for granted: the decoder was chosen by them. The resource stays
    JSON text.

    Raises:
        UngeneratableError: It has a validator, rules or types that are not known to be safe.
        TypeError: msgspec cannot tell the types of a union apart.
    """
    kind = str(model.model_fields["kind"].default)
    if model.rules != BASE_MODELS[kind].rules:
        raise UngeneratableError("rules of its own need pydantic")
    maker = TypeMaker(model.__pydantic_core_schema__)
    fields, own, nested, flat, hexadecimal = [], [], {}, set(), set()
    for name, key, schema, required in _fields(model):
        if name in model.own_fields:
            own.append((name, model.own_fields[name], maker.of(schema), required))
            continue
        fields.append((name, key, _type(maker, name, schema), key in WIRE_REQUIRED[kind]))
        if name != "resource" and maker.holds_keys(schema):
            if _is_flat(schema):
                flat.add(name)
            else:
                nested[name] = _counter(schema)
        if _hexadecimal(schema):
            hexadecimal.add(name)
    struct = maker.struct(model.__name__, fields)
    names = struct.__struct_fields__
    return Decoder(
        decode=msgspec.json.Decoder(struct).decode,
        flat=tuple(at for at, name in enumerate(names) if name in flat),
        nested=tuple((at, nested[name]) for at, name in enumerate(names) if name in nested),
        ids=itemgetter(*(at for at, name in enumerate(names) if name in hexadecimal)),
        rules=model.rules,
        severity=_SEVERITIES.get(kind, _usual),
        own=maker.struct("Own", own) if own else None,
    )


def resource_types() -> tuple[Any, Any]:
    """A decoder of all attributes of a resource, and a Struct of those that have rules."""
    maker = TypeMaker(BASE_MODELS["log"].__pydantic_core_schema__)
    schemas = {name: schema for name, _, schema, _ in _fields(BASE_MODELS["log"])}
    model = schemas["resource"]["schema"]
    extras = maker.of(model["schema"]["extras_schema"])
    every = msgspec.json.Decoder(GenericAlias(dict, (str, extras)))
    return every, maker.struct("Named", maker.fields(model))


def _fields(model: type[Record]) -> Iterator[tuple[str, str, Schema, bool]]:
    """Name, key on the wire, core schema and whether it is required, of each field.

    Raises:
        UngeneratableError: Something else than `Record`'s own rules is applied to the whole.
    """
    schema: Schema = model.__pydantic_core_schema__
    while schema["type"] != "model-fields":
        if schema["type"] not in ("definitions", "model") and not _is_ours(schema):
            raise UngeneratableError("a validator needs pydantic")
        schema = schema["schema"]
    for name, field in schema["fields"].items():
        inner, required = without_default(field["schema"])
        yield name, field.get("validation_alias", name), inner, required


def _usual(_record: Any) -> int:
    return DEFAULT_SEVERITY


def _of_span(record: Any) -> int:
    return FAILED_SEVERITY if record.status_code == "ERROR" else DEFAULT_SEVERITY


_SEVERITIES: Final[dict[str, Callable[[Any], int]]] = {
    "log": attrgetter("severity_number"),
    "span": _of_span,
}


def _is_ours(schema: Schema) -> bool:
    function = schema.get("function", {}).get("function")
    return getattr(function, "__func__", function) is _RULES


def count_keys(value: Any) -> int:
    """How many keys the objects in a decoded value have; a map holds no objects."""
    if value.__class__ is dict:
        return len(value)
    if value.__class__ is list:
        return sum(map(count_keys, value))
    if not isinstance(value, msgspec.Struct):
        return 0
    values = msgspec.structs.astuple(value)
    absent = values.count(None) + values.count(msgspec.UNSET)
    return len(values) - absent + sum(map(count_keys, values))


def _counter(schema: Schema) -> Callable[[Any], int]:
    """The quickest way to count a field's keys."""
    inner = schema["schema"] if schema["type"] == "nullable" else schema
    return len if inner["type"] == "dict" else count_keys


def _is_flat(schema: Schema) -> bool:
    """Whether a field is a model of texts that may be None, as the context is."""
    inner = schema["schema"] if schema["type"] == "nullable" else schema
    return inner["type"] == "model" and all(
        _is_text(without_default(field["schema"])[0]) for field in model_fields_of(inner).values()
    )


def _is_text(schema: Schema) -> bool:
    return "str" in (schema["type"], schema.get("schema", {}).get("type"))


def _type(maker: TypeMaker, name: str, schema: Schema) -> Any:
    if name == "resource":
        return msgspec.Raw
    if name in ("schema_id", "kind"):
        return str
    if length := _hexadecimal(schema):
        kind = maker.of({"type": "str", "min_length": length, "max_length": length})
        return kind | None if schema["type"] == "nullable" else kind
    return maker.of(schema)


def _hexadecimal(schema: Schema) -> int:
    """The length of an id in hex digits; 0 for anything else."""
    inner = schema["schema"] if schema["type"] == "nullable" else schema
    found = HEX_PATTERN.fullmatch(inner.get("pattern", "")) if inner["type"] == "str" else None
    return int(found.group(1)) if found else 0
