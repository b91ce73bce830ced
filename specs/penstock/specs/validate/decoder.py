"""A spec's fast path through the validator: msgspec types generated from its pydantic model.

The types are made from pydantic's core schema, which holds all that pydantic will do. A type may
refuse more than the model does, because pydantic validates what is refused. It never accepts more.
Anything that is not known to be safe in this sense, such as a validator, ends the generation.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import itemgetter, or_
from types import GenericAlias
from typing import Annotated, Any, Final, Literal

import msgspec

from penstock.specs.limits import INT64_MAX, INT64_MIN
from penstock.specs.models.envelope import Record, Schema, model_fields_of
from penstock.specs.models.kinds import BASE_MODELS, WIRE_REQUIRED
from penstock.specs.models.scalars import no_integer, not_finite_word

HEX_PATTERN: Final = re.compile(r"\^\[0-9a-f\]\{([0-9]+)\}\$")
_PORTABLE: Final = re.compile(r"(?:[^\\$]|\\[.\-+*?()\[\]{}/|^])*\$?")
"""Patterns that mean the same to Rust's engine and to Python's: no classes like ``\\d``, whose
tables differ, and a ``$`` only at the end."""
_KEYS: Final = {
    "str": {"min_length", "max_length", "pattern"},
    "int": {"ge", "le", "gt", "lt"},
    "float": {"ge", "le", "gt", "lt", "allow_inf_nan"},
    "bool": set(),
    "none": set(),
    "literal": {"expected"},
    "nullable": {"schema"},
    "list": {"items_schema", "min_length", "max_length"},
    "dict": {"keys_schema", "values_schema", "min_length", "max_length"},
    "union": {"choices", "mode"},
    "model": {
        "cls", "schema", "config", "custom_init", "root_model", "generic_origin", "post_init",
    },
}  # fmt: skip
"""The keys that are known, for each kind of node."""
_HARMLESS: Final = {"type", "ref", "metadata", "serialization", "strict", "title"}


class UngeneratableError(Exception):
    """The spec needs pydantic; the message says why."""


class TypeMaker:
    """Makes types of core schema nodes.

    Args:
        root: A model's core schema, with its definitions.
    """

    def __init__(self, root: Schema) -> None:
        found = root.get("definitions", ())
        self._definitions: dict[str, Schema] = {each["ref"]: each for each in found}

    def of(self, schema: Schema) -> Any:
        """The type of a node.

        Raises:
            UngeneratableError: No type is known to accept no more.
        """
        kind = schema["type"]
        if kind == "definition-ref":
            return self.of(self._definitions[schema["schema_ref"]])
        if kind not in _KEYS:
            raise UngeneratableError(f"{kind} needs pydantic")
        if odd := schema.keys() - _KEYS[kind] - _HARMLESS:
            raise UngeneratableError(f"{kind} with {', '.join(sorted(odd))} needs pydantic")
        make = getattr(self, f"_{kind}", None)
        return _scalar(schema) if make is None else make(schema)

    def _nullable(self, schema: Schema) -> Any:
        return self.of(schema["schema"]) | None

    def _union(self, schema: Schema) -> Any:
        return reduce(or_, self._choices(schema["choices"]))

    def _list(self, schema: Schema) -> Any:
        item = self.of(schema["items_schema"])
        return _limited(GenericAlias(list, item), schema)

    def _dict(self, schema: Schema) -> Any:
        keys, values = self.of(schema["keys_schema"]), self.of(schema["values_schema"])
        return _limited(GenericAlias(dict, (keys, values)), schema)

    def _model(self, schema: Schema) -> Any:
        return self.struct(schema["cls"].__name__, self.fields(schema))

    def fields(self, model: Schema) -> Iterator[tuple[str, str, Any, bool]]:
        """Each field of a model: name, key on the wire, type, whether it is required."""
        if model.get("custom_init") or model.get("root_model") or "post_init" in model:
            raise UngeneratableError("a model with its own code needs pydantic")
        for name, field in model_fields_of(model).items():
            schema, required = without_default(field["schema"])
            yield name, field.get("validation_alias", name), self.of(schema), required

    def holds_keys(self, schema: Schema) -> bool:
        """Return whether values of a node are objects or contain objects."""
        match schema["type"]:
            case "definition-ref":
                return self.holds_keys(self._definitions[schema["schema_ref"]])
            case "nullable":
                return self.holds_keys(schema["schema"])
            case "list":
                return self.holds_keys(schema["items_schema"])
            case kind:
                return kind in ("dict", "model")

    def struct(self, name: str, fields: Iterable[tuple[str, str, Any, bool]]) -> Any:
        """A Struct; a field that is not there is None if it may be, else `msgspec.UNSET`."""
        found = list(fields)
        defined = [_defined(name, kind, required=need) for name, _, kind, need in found]
        keys = {name: key for name, key, _, _ in found}
        return msgspec.defstruct(name, sorted(defined, key=len), rename=keys, gc=False)

    def _choices(self, choices: Iterable[Any]) -> list[Any]:
        nodes = [choice[0] if isinstance(choice, tuple) else choice for choice in choices]
        integers = any(node["type"] == "int" for node in nodes)
        return [self.of(_without_guard(node, integers=integers)) for node in nodes]


def without_default(schema: Schema) -> tuple[Schema, bool]:
    """A field's node, and whether the field is required."""
    if schema["type"] == "default":
        return schema["schema"], False
    return schema, True


def _without_guard(schema: Schema, *, integers: bool) -> Schema:
    """A choice without a function that changes nothing that JSON can hold.

    So is a float that refuses integers, beside an integer type that takes them all, and what makes
    words of floats that are not finite.
    """
    if schema["type"] != "function-before":
        return schema
    function = schema["function"]["function"]
    if function is not not_finite_word and not (integers and function is no_integer):
        return schema
    inner: Schema = schema["schema"]
    return inner


def _defined(name: str, kind: Any, *, required: bool) -> tuple[Any, ...]:
    if required:
        return (name, kind)
    if _allows_none(kind):
        return (name, kind, None)
    return (name, kind | msgspec.UnsetType, msgspec.UNSET)


def _allows_none(kind: Any) -> bool:
    return type(None) in getattr(kind, "__args__", ())


def _limited(kind: Any, schema: Mapping[str, Any]) -> Any:
    bounds = {key: schema[key] for key in ("min_length", "max_length") if key in schema}
    return Annotated[kind, msgspec.Meta(**bounds)] if bounds else kind


def _scalar(schema: Schema) -> Any:
    match schema["type"]:
        case "str" if "pattern" in schema:
            return Annotated[_limited(str, schema), msgspec.Meta(pattern=_pattern(schema))]
        case "str":
            return _limited(str, schema)
        case "int" | "float" as name:
            bounds = {key: schema[key] for key in ("ge", "le", "gt", "lt") if key in schema}
            if name == "int" and any(not INT64_MIN <= at <= INT64_MAX for at in bounds.values()):
                raise UngeneratableError("a bound beyond int64 needs pydantic")
            kind: Any = int if name == "int" else float
            return Annotated[kind, msgspec.Meta(**bounds)] if bounds else kind
        case "bool":
            return bool
        case "none":
            return type(None)
        case _:
            return _literal(schema["expected"])


def _pattern(schema: Schema) -> str:
    """Rust's ``$`` is the very end; Python's also stands before a last line break."""
    pattern = str(schema["pattern"])
    if _PORTABLE.fullmatch(pattern) is None:
        raise UngeneratableError("a pattern that engines may read differently needs pydantic")
    return pattern.removesuffix("$") + r"\Z" if pattern.endswith("$") else pattern


def _literal(expected: list[Any]) -> Any:
    if {type(value) for value in expected} not in ({str}, {int}):
        raise UngeneratableError("Literal values of several types need pydantic")
    return Literal[tuple(expected)]


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
        rules: Rules between fields.
        own: A specialised spec's own fields, as a Struct to convert its attributes to.
    """

    decode: Callable[[bytes], Any]
    flat: tuple[int, ...]
    nested: tuple[tuple[int, Callable[[Any], int]], ...]
    ids: Callable[[tuple[Any, ...]], Any]
    rules: tuple[Callable[[Any], None], ...]
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
        raise UngeneratableError("its own rules need pydantic")
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


def _is_ours(schema: Schema) -> bool:
    function = schema.get("function", {}).get("function")
    return getattr(function, "__func__", function) is _RULES


def count_keys(value: Any) -> int:
    """Count the keys of the objects in a decoded value; maps hold no objects."""
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
    """Return whether a field is a model of optional texts, as the context is."""
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
