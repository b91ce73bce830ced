"""The spec as flat columns, for whoever stores records in tables.

Types are neutral names: ``string``, ``long``, ``int``, ``double``, ``boolean``,
``map<string,string>``, ``array<long>``, ``array<double>``, ``array<string>``, ``array<boolean>``,
and ``json`` for a nested value that a table keeps as its JSON text.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from penstock.specs.envelope import Context, Record
from penstock.specs.evolution import inlined
from penstock.specs.kinds import BASE_MODELS, WIRE_REQUIRED
from penstock.specs.resource import Resource
from penstock.specs.schema_export import json_schema


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        name: Unique within the kind, fit for SQL.
        type: A neutral type name.
        path: Keys from the record's root to the value; the last may contain dots.
        required: Whether every stored record has it.
    """

    name: str
    type: str
    path: tuple[str, ...]
    required: bool


def fields(kind: str) -> list[Column]:
    """The columns of a kind, in the order of its model; `context` and `resource` are laid out.

    `resource` and `attributes` also come whole, as maps.

    Raises:
        KeyError: The kind is not one of the five.
    """
    return list(_columns(BASE_MODELS[kind], WIRE_REQUIRED[kind]))


def columns_of(model: type[Record]) -> list[Column]:
    """The columns of a spec: those of its kind, then one for each field of its own."""
    schema = json_schema(model)
    whole = inlined(schema, schema)["properties"]
    own = [
        Column(
            key.replace(".", "_"),
            _neutral(whole[name]),
            ("attributes", key),
            name in schema["required"],
        )
        for name, key in model.own_fields.items()
    ]
    return [*fields(str(model.model_fields["kind"].default)), *own]


def _neutral(schema: Any) -> str:
    """The column type of an own field, which is a scalar or a list of such."""
    found = {_neutral_one(each) for each in schema.get("anyOf", [schema])} - {""}
    if found == {"long", "double"}:
        return "double"
    return found.pop() if len(found) == 1 else "string"


def _neutral_one(schema: Any) -> str:
    if schema.get("type") == "array":
        item = _neutral(schema.get("items", {}))
        return f"array<{item}>"
    if "type" not in schema and "enum" in schema:
        return "string"
    return _OF_JSON.get(str(schema.get("type")), "string")


_OF_JSON: Final = {
    "string": "string",
    "integer": "long",
    "number": "double",
    "boolean": "boolean",
    "null": "",
}


def _columns(model: type[Record], required: frozenset[str]) -> Iterator[Column]:
    for name, field in model.model_fields.items():
        key = field.alias or name
        if name == "context":
            yield from _nested(Context, key)
        elif name == "resource":
            yield from _nested(Resource, key)
            yield Column("resource", "map<string,string>", (key,), required=True)
        else:
            yield Column(
                key.replace(".", "_"), _BY_NAME.get(name, "string"), (key,), key in required
            )


def _nested(model: type[Context] | type[Resource], key: str) -> Iterator[Column]:
    for name, field in model.model_fields.items():
        inner = field.alias or name
        yield Column(name, "string", (key, inner), model is Resource and field.is_required())


_BY_NAME: Final[dict[str, str]] = {
    **dict.fromkeys(
        (
            "time_unix_nano", "observed_time_unix_nano", "end_time_unix_nano",
            "start_time_unix_nano", "dropped_attributes_count", "dropped_links_count",
            "dropped_events_count", "count", "zero_count", "chain_seq", "flags",
        ),
        "long",
    ),
    **dict.fromkeys(("trace_flags", "severity_number", "scale"), "int"),
    **dict.fromkeys(("sample_weight", "value", "sum", "min", "max", "zero_threshold"), "double"),
    "is_monotonic": "boolean",
    "attributes": "map<string,string>",
    "bucket_counts": "array<long>",
    "explicit_bounds": "array<double>",
    "changed_fields": "array<string>",
    **dict.fromkeys(
        ("links", "events", "exemplars", "positive", "negative", "actor", "target"), "json"
    ),
}  # fmt: skip
"""Fields that are not plain text. A test compares this table with the models' annotations."""
