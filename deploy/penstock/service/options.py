"""The keys of a configuration model as lines for people: name, type with bounds, default."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel


def option_lines(model: type[BaseModel]) -> Iterator[str]:
    """What the model is, under its `type`, then a line for each key and those of its blocks."""
    schema = model.model_json_schema()
    yield f"{schema['properties']['type']['const']}: {schema['description']}"
    yield from _keys(schema, schema, "")


def _keys(node: dict[str, Any], schema: dict[str, Any], prefix: str) -> Iterator[str]:
    for key, facts in node["properties"].items():
        if prefix == "" and key == "type":
            continue
        needed = key in node.get("required", ())
        default = "required" if needed else f"default {_shown(facts.get('default'))}"
        more = facts.get("description", "")
        line = f"    {prefix + key:24} {_kind(facts, schema):24} {default}"
        yield f"{line}  {more}".rstrip()
        inner = next((s for s in _variants(facts, schema) if "properties" in s), None)
        if inner is not None:
            yield from _keys(inner, schema, f"{prefix}{key}.")


def _kind(facts: dict[str, Any], schema: dict[str, Any]) -> str:
    return " or ".join(dict.fromkeys(_kind_of(one) for one in _variants(facts, schema)))


def _kind_of(facts: dict[str, Any]) -> str:
    if "enum" in facts:
        return " or ".join(map(str, facts["enum"]))
    if facts.get("type") == "array":
        return "list"
    if facts.get("type") == "null":
        return "none"
    if "const" in facts:
        return str(facts["const"])
    low, high = facts.get("minimum"), facts.get("maximum")
    limits = f" {low if low is not None else ''}..{high if high is not None else ''}"
    return str(facts.get("type", "value")) + (limits if (low, high) != (None, None) else "")


def _variants(facts: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    if "$ref" in facts:
        return [schema["$defs"][facts["$ref"].rsplit("/", 1)[1]]]
    return (
        [one for given in facts["anyOf"] for one in _variants(given, schema)]
        if ("anyOf" in facts)
        else [facts]
    )


def _shown(default: Any) -> str:
    return "none" if default is None else str(default)
