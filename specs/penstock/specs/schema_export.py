"""Specs as JSON Schema (2020-12), for readers in other languages."""

from typing import Any

from penstock.specs.envelope import Record
from penstock.specs.kinds import WIRE_REQUIRED


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
