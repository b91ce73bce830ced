"""The keys of a configuration model as lines for people: name, type with bounds, default."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

OCTAL: Final = "octal integer"
"""The `format` of a number in a schema that people write in octal digits, as a file's mode."""


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
        default = "required" if needed else f"default {shown(facts.get('default'), facts)}"
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
    ends = ("" if end is None else shown(end, facts) for end in (low, high))
    limits = f" {'..'.join(ends)}"
    return str(facts.get("type", "value")) + (limits if (low, high) != (None, None) else "")


def _variants(facts: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    if "$ref" in facts:
        return [schema["$defs"][facts["$ref"].rsplit("/", 1)[1]]]
    return (
        [one for given in facts["anyOf"] for one in _variants(given, schema)]
        if ("anyOf" in facts)
        else [facts]
    )


def shown(value: Any, facts: Mapping[str, Any]) -> str:
    """A default or a bound as people write it, by what a schema says of its key."""
    if facts.get("format") == OCTAL and value:
        return f"0{value:o}"
    return "none" if value is None else str(value)
