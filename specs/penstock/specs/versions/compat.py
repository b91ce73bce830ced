"""Compatibility of a spec's schemas: can records of one be read by another?

Every earlier minor version of a major must be able to read a minor version, and the other way
round; then producers, collectors and consumers can be upgraded in any order. Anything else is a new
major. The one exception is a field that is marked `penstock.specs.models.scalars.ReadersFirst`: it
may become wider.

The comparison takes JSON Schemas, so a published version needs no class. Readers are as strict
about types as the validator is, and tolerate unknown fields. A writer never writes fields that its
schema does not have, except where the schema is open (maps).

A consumer states what it reads as a small model. `contract` turns that into a file for the
producer's registry, ``contracts/<consumer>.json``, and the producer's check fails before a change
takes a needed field away:

    class Billing(View, of="shop.order_placed", major=1):
        order_id: str
        total: float

Fields are named as in the spec; a nested need (``context``) is its own model. A field without
a default must stand on every record.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict
from typing_extensions import override

from penstock.specs.errors import RefusedSpecError
from penstock.specs.redact.sensitivity import ACTIONS, SENSITIVITIES

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Break:
    """A value that one schema allows to be written and another cannot read.

    Attributes:
        field: Path with dots; ``[]`` is a list's item, ``*`` a map's value.
        rule: JSON Schema's keyword, or one of ours: ``enum``, ``open``, ``sensitivity``.
        detail: Value that the writer may write and the reader does not allow.
    """

    field: str
    rule: str
    detail: str


@dataclass(frozen=True, slots=True)
class Incompatible:
    """Why a version is not a minor one.

    Attributes:
        breaks: ``old readers`` cannot read new records, or ``new readers`` cannot read old ones.
        earlier: The version that it was compared with.
    """

    broken: Break
    breaks: str
    earlier: str

    @property
    def problem(self) -> str:
        """The reader that fails, and the field."""
        if self.breaks == OLD_READERS:
            return f"those who know {self.earlier} cannot read it"
        return f"it cannot read records of {self.earlier}"

    @property
    def fix(self) -> str:
        """The change that would be a minor one."""
        return _FIXES.get((self.broken.rule, self.breaks), _FIXES_ANY[self.breaks])


OLD_READERS: Final = "old readers"
NEW_READERS: Final = "new readers"
_FIXES: Final = {
    ("required", NEW_READERS): "give the field a default, or make it optional",
    ("required", OLD_READERS): "keep the field, and keep it required",
    ("enum", OLD_READERS): "add no values to a closed enumeration (`Literal[…] | str` is open)",
    ("enum", NEW_READERS): "keep every value that was ever allowed",
    ("type", NEW_READERS): "keep the type, and add a new field for the new one",
    ("type", OLD_READERS): "keep the type, and add a new field for the new one",
    ("sensitivity", NEW_READERS): "keep the marker as strict as it was",
}  # fmt: skip
_FIXES_ANY: Final = {
    NEW_READERS: "keep the bound as wide as it was, or check it in the application",
    OLD_READERS: "keep the bound as narrow as it was",
}


def incompatible(new: Schema, earlier: Mapping[str, Schema]) -> Iterator[Incompatible]:
    """Why `new` is not fully compatible with each earlier minor version of its major.

    Args:
        new: A spec's JSON Schema.
        earlier: The others by version, as in ``1.0``.
    """
    widened = set(_readers_first(inlined(new, new), ""))
    for version, old in earlier.items():
        for broken in unreadable(new, old):
            if broken.field not in widened:
                yield Incompatible(broken, OLD_READERS, version)
        for broken in chain(unreadable(old, new), _weakened(shape(old), shape(new))):
            if broken.field not in widened or not _is_implied(broken, old):
                yield Incompatible(broken, NEW_READERS, version)


def unreadable(writer: Schema, reader: Schema) -> list[Break]:
    """Return what records of one schema may hold that readers of another cannot read."""
    mine, theirs = inlined(writer, writer), inlined(reader, reader)
    for schema in (mine, theirs):
        schema.get("properties", {}).pop("schema", None)  # names the version itself
    return [*_object(mine, theirs, ""), *_moved(writer, reader)]


def shape(schema: Schema) -> Any:
    """A schema without what only people read; equal shapes accept the same records."""
    return _stripped(inlined(schema, schema))


def _is_implied(broken: Break, old: Schema) -> bool:
    """Return whether a bound of length replaces a pattern, which may have implied it.

    Patterns are not compared by meaning: the golden records must show that the bound is wide
    enough.
    """
    found = inlined(old, old).get("properties", {}).get(broken.field, {})
    return broken.rule in ("minLength", "maxLength") and "pattern" in found


def _readers_first(schema: Any, path: str) -> Iterator[str]:
    """Paths of the fields that readers must know before they are written wider."""
    for node in _nodes(schema):
        if _READERS_FIRST in node:
            yield path
        for name, inner in node.get("properties", {}).items():
            yield from _readers_first(inner, _join(path, name))
        if "items" in node:
            yield from _readers_first(node["items"], f"{path}[]")


def _moved(writer: Schema, reader: Schema) -> Iterator[Break]:
    """Own fields that travel as other attributes than before."""
    mine, theirs = writer.get("x-attributes", {}), reader.get("x-attributes", {})
    for name in sorted(mine.keys() & theirs.keys()):
        if mine[name] != theirs[name]:
            yield Break(name, "attribute", f"travels as {mine[name]}, not as {theirs[name]}")


def _weakened(old: Any, new: Any, path: str = "") -> Iterator[Break]:
    """Markers that are less strict than before on fields that both have."""
    before, after = old.get("properties", {}), new.get("properties", {})
    for name in sorted(before.keys() & after.keys()):
        inner, marked = _join(path, name), _mark(before[name])
        if marked is not None:
            now = _mark(after[name]) or ("public", "keep")
            if any(
                order.index(n) < order.index(m)
                for order, n, m in zip(_ORDERS, now, marked, strict=True)
            ):
                yield Break(inner, "sensitivity", f"was {', '.join(marked)}")
        for one, other in zip(_nodes(before[name]), _nodes(after[name]), strict=False):
            yield from _weakened(one, other, inner)


def _mark(schema: Schema) -> tuple[str, str] | None:
    found = (node for node in _nodes(schema) if "x-sensitivity" in node)
    return next(((node["x-sensitivity"], node["x-action"]) for node in found), None)


def _nodes(schema: Schema) -> list[Schema]:
    """A schema, its alternatives and the items of its lists."""
    inner = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())]
    return [schema, *chain.from_iterable(map(_nodes, inner))]


def _value(writer: Schema, reader: Schema, path: str) -> list[Break]:
    """Breaks of one value; none when each of the writer's alternatives has one that reads it."""
    breaks: list[Break] = []
    readers = _alternatives(reader)
    for mine in _alternatives(writer):
        if "enum" in mine:
            odd = [value for value in mine["enum"] if not any(_holds(r, value) for r in readers)]
            breaks += [Break(path, "enum", f"{value!r} is not allowed") for value in odd]
            continue
        found = [list(_alternative(mine, theirs, path)) for theirs in readers]
        if all(found):
            same = [f for r, f in zip(readers, found, strict=True) if _same_type(mine, r)]
            breaks += same[0] if len(same) == 1 else [_no_type(mine, readers, path)]
    return breaks


def _no_type(mine: Schema, readers: Sequence[Schema], path: str) -> Break:
    types = " or ".join(sorted({str(reader.get("type", "anything")) for reader in readers}))
    return Break(path, "type", f"{mine.get('type', 'anything')} is written, {types} is read")


def _same_type(mine: Schema, theirs: Schema) -> bool:
    pair = (mine.get("type"), theirs.get("type"))
    return pair[0] == pair[1] or pair == ("integer", "number")


def _alternatives(schema: Schema) -> list[dict[str, Any]]:
    rest = {key: value for key, value in schema.items() if key not in ("anyOf", "const")}
    if "const" in schema:
        return [{**rest, "enum": [schema["const"]]}]
    if "anyOf" in schema:
        return [inner for each in schema["anyOf"] for inner in _alternatives({**rest, **each})]
    return [rest]


def _alternative(mine: Schema, theirs: Schema, path: str) -> Iterator[Break]:
    """Breaks between two schemas without alternatives; `mine` is not an enumeration."""
    if "enum" in theirs:
        yield Break(path, "enum", "any value is written, only some are read")
    elif not theirs.keys() - _ANNOTATIONS:
        return
    elif not _same_type(mine, theirs):
        yield _no_type(mine, [theirs], path)
    else:
        yield from _bounds(mine, theirs, path)
        if mine.get("type") == "object":
            yield from _object(mine, theirs, path)
        elif mine.get("type") == "array" and "items" in theirs:
            yield from _value(mine.get("items", {}), theirs["items"], f"{path}[]")


def _bounds(mine: Schema, theirs: Schema, path: str) -> Iterator[Break]:
    for rule in _LEAST:
        if rule in theirs and mine.get(rule, float("-inf")) < theirs[rule]:
            yield Break(path, rule, f"{mine.get(rule, 'anything')} is below {theirs[rule]}")
    for rule in _MOST:
        if rule in theirs and mine.get(rule, float("inf")) > theirs[rule]:
            yield Break(path, rule, f"{mine.get(rule, 'anything')} is above {theirs[rule]}")
    for rule in sorted(theirs.keys() - _KNOWN):
        if mine.get(rule) != theirs[rule]:
            yield Break(path, rule, "is not the same")


def _object(mine: Schema, theirs: Schema, path: str) -> Iterator[Break]:
    written, read = mine.get("properties", {}), theirs.get("properties", {})
    for name in theirs.get("required", ()):
        if name not in mine.get("required", ()):
            how = "may be left out" if name in written else "is never written"
            yield Break(_join(path, name), "required", how)
    more_written = mine.get("additionalProperties", not written)
    more_read = theirs.get("additionalProperties", True)
    for name in written.keys() | read.keys():
        writer = written.get(name, more_written)
        reader = read.get(name, more_read)
        if not isinstance(writer, bool) and not isinstance(reader, bool):
            yield from _value(writer, reader, _join(path, name))
        elif writer is True and not isinstance(reader, bool) and reader:
            yield Break(_join(path, name), "open", "anything is written")
    if isinstance(more_read, Mapping) and more_written is not False:
        writer = {} if more_written is True else more_written
        yield from _value(writer, more_read, _join(path, "*"))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _holds(schema: Schema, value: Any) -> bool:
    """Return whether a schema without alternatives allows a scalar value."""
    if "enum" in schema:
        return any(value == other and type(value) is type(other) for other in schema["enum"])
    if "type" not in schema:
        return True
    if _TYPE_NAMES[type(value)] not in _READ_AS[schema["type"]]:
        return False
    length = len(value) if isinstance(value, str) else None
    exact: dict[str, Any] = {
        "type": _TYPE_NAMES[type(value)],
        **({"minimum": value, "maximum": value} if isinstance(value, (int, float)) else {}),
        **({} if length is None else {"minLength": length, "maxLength": length}),
    }
    if isinstance(value, str) and "pattern" in schema:
        if re.search(schema["pattern"], value) is None:
            return False
        exact["pattern"] = schema["pattern"]
    return not list(_bounds(exact, schema, ""))


_ORDERS: Final[tuple[tuple[str, ...], ...]] = (SENSITIVITIES, ACTIONS)
_OPEN_BOUNDS: Final = {"exclusiveMinimum": ("minimum", 1), "exclusiveMaximum": ("maximum", -1)}
_TYPE_NAMES: Final[dict[type, str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}
_READ_AS: Final = {
    **{name: (name,) for name in ("string", "boolean", "integer", "null", "object", "array")},
    "number": ("number", "integer"),
}
_ANNOTATIONS: Final = frozenset(
    {"title", "description", "default", "examples", "deprecated", "$schema", "$id", "$defs"}
    | {"x-superseded-by", "x-until"}
)
"""Keys of a schema that only people read."""
_READERS_FIRST: Final = "x-readers-first"
_MARKS: Final = frozenset(
    {"x-sensitivity", "x-action", "x-max-cardinality", "x-kind", _READERS_FIRST}
)
_LEAST: Final = ("minimum", "minLength", "minItems", "minProperties")
_MOST: Final = ("maximum", "maxLength", "maxItems", "maxProperties")
_KNOWN: Final = (
    _ANNOTATIONS
    | _MARKS
    | frozenset((*_LEAST, *_MOST))
    | {"type", "enum", "anyOf", "items", "properties", "required", "additionalProperties"}
    | {"x-attributes"}
)


def inlined(schema: Any, root: Schema) -> Any:
    """References replaced by what they refer to, integers' open bounds by closed ones."""
    if isinstance(schema, list):
        return [inlined(member, root) for member in schema]
    if not isinstance(schema, Mapping):
        return schema
    if "$ref" in schema:
        target = root["$defs"][schema["$ref"].rpartition("/")[2]]
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return inlined({**target, **rest}, root)
    found = {key: inlined(value, root) for key, value in schema.items() if key != "$defs"}
    if found.get("type") == "integer":
        for rule, (closed, step) in _OPEN_BOUNDS.items():
            if isinstance(found.get(rule), int):
                found[closed] = found.pop(rule) + step
    return found


def _stripped(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_stripped(member) for member in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {k: _stripped(v) for k, v in schema.items() if k not in _ANNOTATIONS}
    if "properties" in schema:
        found["properties"] = {k: _stripped(v) for k, v in schema["properties"].items()}
        found["required"] = sorted(schema.get("required", ()))
    return found


class View(BaseModel):
    """The fields of a spec that a consumer reads."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    of: ClassVar[str]
    major: ClassVar[int]

    @override
    def __init_subclass__(cls, *, of: str, major: int, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.of, cls.major = of, major

    @classmethod
    def contract(cls, consumer: str) -> dict[str, Any]:
        """Return the part of a schema that the producer's registry keeps."""
        schema = cls.model_json_schema(by_alias=True)
        return {"consumer": consumer, "of": cls.of, "major": cls.major, "needs": schema}


def unmet(contract: dict[str, Any], spec: Schema) -> list[Break]:
    """The needs that records of a spec's schema do not fill.

    Raises:
        RefusedSpecError: It is no contract.
    """
    needs = contract.get("needs")
    if not isinstance(needs, dict) or "properties" not in needs:
        raise RefusedSpecError("a contract has consumer, of, major and needs (a JSON Schema)")
    return unreadable(spec, needs)
