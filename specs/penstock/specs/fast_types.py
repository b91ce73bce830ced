"""msgspec types that accept nothing that a pydantic model would not.

Made from pydantic's core schema, which holds all that pydantic will do. A type may refuse more than
the model does, since what is refused is judged by pydantic; it never accepts more. Whatever is not
known to be safe in this sense, a validator above all, ends the generation.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import or_
from types import GenericAlias
from typing import Annotated, Any, Final, Literal

import msgspec

from penstock.specs.definition import Schema, model_fields_of
from penstock.specs.limits import INT64_MAX, INT64_MIN
from penstock.specs.scalars import no_integer, not_finite_word

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
"""For each kind of node that is known the keys that are."""
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
            raise UngeneratableError("a model with code of its own needs pydantic")
        for name, field in model_fields_of(model).items():
            schema, required = without_default(field["schema"])
            yield name, field.get("validation_alias", name), self.of(schema), required

    def holds_keys(self, schema: Schema) -> bool:
        """Whether values of a node are objects or have objects in them."""
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
