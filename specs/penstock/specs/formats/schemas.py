"""Specs for readers that are not Python: columns for tables, schemas for engines and registries.

A spec becomes flat columns. Their types are neutral names: ``string``, ``long``, ``int``,
``double``, ``boolean``, ``map<string,string>``, ``array<long>``, ``array<double>``,
``array<string>``, ``array<boolean>``, and ``json`` for a nested value that a table keeps as text.

All outputs come from the models alone. Spark and Arrow get the flat columns with a spec's own
fields behind them; OpenTelemetry Weaver gets them as attributes of an event, metric, span or group.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from penstock.specs.models.envelope import Context, Record
from penstock.specs.models.kinds import BASE_MODELS, WIRE_REQUIRED
from penstock.specs.models.resource import Resource
from penstock.specs.versions.compat import inlined


def json_schema(model: type[Record]) -> dict[str, Any]:
    """The schema of a spec's stored line: resource included, a specialised spec's own fields apart.

    ``x-kind`` names the kind; ``x-attributes`` maps each own field to the attribute it travels as.
    """
    schema = model.model_json_schema(by_alias=True)
    kind = model.model_fields["kind"].default
    required = WIRE_REQUIRED[kind] | set(schema.get("required", ()))
    properties = schema["properties"]
    for name in required & properties.keys():
        properties[name].pop("default", None)
    properties["schema"]["const"] = model.spec
    properties["kind"]["const"] = kind
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"penstock:{model.spec}",
        **schema,
        "required": [name for name in properties if name in required],
        "x-kind": kind,
        "x-attributes": dict(model.own_fields),
    }


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
    """The columns of a spec: those of its kind, then one for each of the spec's own fields."""
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


Json = dict[str, Any]


def markdown(model: type[Record]) -> str:
    """The fields of a spec as a table; those of its kind follow its own."""
    schema = json_schema(model)
    whole = inlined(schema, schema)
    names = [*model.own_fields, *(n for n in whole["properties"] if n not in model.own_fields)]
    rows = [
        f"| `{model.own_fields.get(name, name)}` | {_type_text(whole['properties'][name])} | "
        f"{'yes' if name in schema['required'] else ''} | "
        f"{_sensitivity(whole['properties'][name])} | "
        f"{_line(whole['properties'][name].get('description', ''))} |"
        for name in names
    ]
    head = "| field | type | required | sensitivity | |\n|---|---|---|---|---|"
    return f"## {model.spec}\n\n{_brief(model)}\n\n{head}\n" + "\n".join(rows) + "\n"


def weaver(models: list[type[Record]]) -> Json:
    """A semantic-convention registry file as OpenTelemetry Weaver reads it (version 1)."""
    return {"groups": [_group(model) for model in models]}


def spark(model: type[Record]) -> Json:
    """A `StructType` as JSON, for ``StructType.fromJson``."""
    fields = [
        {
            "name": column.name,
            "type": _SPARK[column.type],
            "nullable": not column.required,
            "metadata": {"path": list(column.path)},
        }
        for column in columns_of(model)
    ]
    return {"type": "struct", "fields": fields}


def arrow(model: type[Record]) -> Any:
    """A `pyarrow.Schema`; each field's metadata holds its path in the record.

    Raises:
        ImportError: pyarrow is not installed.
    """
    import pyarrow as pa

    text = pa.string()
    types: dict[str, Any] = {
        "string": text,
        "json": text,
        "long": pa.int64(),
        "int": pa.int32(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "map<string,string>": pa.map_(text, text),
        "array<long>": pa.list_(pa.int64()),
        "array<double>": pa.list_(pa.float64()),
        "array<string>": pa.list_(text),
        "array<boolean>": pa.list_(pa.bool_()),
    }
    return pa.schema(
        [
            pa.field(
                column.name,
                types[column.type],
                nullable=not column.required,
                metadata={"path": "/".join(column.path)},
            )
            for column in columns_of(model)
        ],
        metadata={"spec": model.spec},
    )


def _group(model: type[Record]) -> Json:
    kind, name = str(model.model_fields["kind"].default), model.spec.partition("/")[0]
    found: Json = {"id": f"{_GROUP_PREFIX.get(kind, 'registry')}.{name}"}
    if model.own_fields and kind in ("event", "audit"):
        found |= {"type": "event", "name": name}
    elif model.own_fields and kind == "span":
        found |= {"type": "span", "span_kind": "internal"}
    else:
        found |= {"type": "attribute_group"}
    found |= {"brief": _brief(model), "stability": "development"}
    return {**found, "attributes": list(_attributes(model))}


def _attributes(model: type[Record]) -> Iterator[Json]:
    """A spec's own fields; of a base spec, the fields of its context."""
    schema = json_schema(model)
    whole = inlined(schema, schema)["properties"]
    if model.own_fields:
        fields = {key: whole[name] for name, key in model.own_fields.items()}
        needed = {model.own_fields[name] for name in model.own_fields if name in schema["required"]}
    else:
        fields, needed = whole["context"]["anyOf"][0]["properties"], set()
    for key, field in fields.items():
        yield {
            "id": key,
            "type": _weaver_type(field),
            "brief": _line(field.get("description", "")) or key,
            "stability": "development",
            "requirement_level": "required" if key in needed else "recommended",
            **({"examples": field["examples"]} if "examples" in field else {}),
            **({"annotations": {"sensitivity": mark}} if (mark := _sensitivity(field)) else {}),
        }


def _weaver_type(field: Json) -> Any:
    inner = _alternatives(field)
    if len(inner) != 1:
        return "any"
    (one,) = inner
    if values := one.get("enum", [one["const"]] if "const" in one else []):
        members = [{"id": str(v), "value": v, "stability": "development"} for v in values]
        return {"members": members}
    if one.get("type") == "array":
        item = _weaver_type(one.get("items", {}))
        return f"{item}[]" if isinstance(item, str) and item != "any" else "any"
    return _WEAVER.get(str(one.get("type")), "any")


def _alternatives(field: Json) -> list[Json]:
    return [each for each in field.get("anyOf", [field]) if each.get("type") != "null"]


def _type_text(field: Json) -> str:
    return " or ".join(dict.fromkeys(_one_type(each) for each in _alternatives(field)))


def _one_type(field: Json) -> str:
    if values := field.get("enum", [field["const"]] if "const" in field else []):
        return ", ".join(f"`{value}`" for value in values)
    if field.get("type") == "array":
        return f"list of {_type_text(field.get('items', {}))}"
    return str(field.get("type", "any"))


def _sensitivity(field: Json) -> str:
    marked = next((each for each in (field, *_alternatives(field)) if "x-sensitivity" in each), {})
    return f"{marked['x-sensitivity']}, {marked['x-action']}" if marked else ""


def _brief(model: type[Record]) -> str:
    return _line((model.__doc__ or model.spec).strip().partition("\n\n")[0])


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def _array(item: str) -> Json:
    return {"type": "array", "elementType": item, "containsNull": True}


_GROUP_PREFIX: Final = {"event": "event", "audit": "event", "metric": "metric", "span": "span"}
_WEAVER: Final = {"string": "string", "integer": "int", "number": "double", "boolean": "boolean"}
_SPARK: Final[dict[str, Any]] = {
    "string": "string",
    "json": "string",
    "long": "long",
    "int": "integer",
    "double": "double",
    "boolean": "boolean",
    "map<string,string>": {
        "type": "map",
        "keyType": "string",
        "valueType": "string",
        "valueContainsNull": True,
    },
    **{f"array<{item}>": _array(item) for item in ("long", "double", "string", "boolean")},
}
