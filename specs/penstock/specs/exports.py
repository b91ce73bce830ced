"""Specs for readers that are not Python: tables for people, schemas for engines and registries.

All are made of the models alone. Spark and Arrow get the flat columns of `penstock.specs.columns`
with a spec's own fields behind them; OpenTelemetry Weaver gets them as attributes of an event,
metric, span or group.
"""

from collections.abc import Iterator
from typing import Any, Final

from penstock.specs.columns import columns_of
from penstock.specs.envelope import Record
from penstock.specs.evolution import inlined
from penstock.specs.schema_export import json_schema

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
