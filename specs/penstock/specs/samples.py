"""Records made up from a spec, always the same: the golden records of a published version."""

from typing import Any, Final

from penstock.specs.envelope import Record
from penstock.specs.errors import RefusedSpecError
from penstock.specs.evolution import inlined
from penstock.specs.schema_export import json_schema

_TIME: Final = 1_700_000_000_123_456_789
_TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
_SPAN: Final = "b7ad6b7169203331"
_RECORD_ID: Final = "018bcfe5687b7cc7a3e1b9c4c0d1e2f3"
_WHO: Final = {"type": "user", "id": "u-1"}
_OF_KIND: Final[dict[str, dict[str, Any]]] = {
    "log": {"severity_number": 9, "severity_text": "INFO", "body": "order placed"},
    "span": {
        "trace_id": _TRACE,
        "span_id": _SPAN,
        "name": "checkout",
        "span_kind": "SERVER",
        "end_time_unix_nano": _TIME + 1_000_000,
        "status_code": "OK",
    },
    "metric": {"name": "shop.stock", "unit": "1", "metric_type": "gauge", "value": 17},
    "event": {"record_id": _RECORD_ID, "event_name": "shop.opened"},
    "audit": {
        "record_id": _RECORD_ID,
        "event_name": "shop.opened",
        "actor": _WHO,
        "action": "update",
        "target": _WHO,
        "outcome": "success",
    },
}
_NAMED_BY: Final = {"event": "event_name", "audit": "event_name", "metric": "name"}


def samples(model: type[Record]) -> list[dict[str, Any]]:
    """Two records in their wire form: with what a spec requires, and with all of its own fields.

    Raises:
        RefusedSpecError: A field has a pattern and no `examples`.
    """
    schema = json_schema(model)
    own = {
        name: _value(inlined(schema["properties"][name], schema), f"{model.spec}: {name}")
        for name in model.own_fields
    }
    required = {name for name in own if name in schema["required"]}
    return [_record(model, {n: own[n] for n in required}), _record(model, own)]


def _record(model: type[Record], own: dict[str, Any]) -> dict[str, Any]:
    kind = str(model.model_fields["kind"].default)
    record = {
        "schema": model.spec,
        "kind": kind,
        "time_unix_nano": _TIME,
        "resource": {"service.name": "shop", "service.version": "1.4.2"},
        **_OF_KIND[kind],
    }
    if model.own_fields and kind in _NAMED_BY:
        record[_NAMED_BY[kind]] = model.model_fields[_NAMED_BY[kind]].default
    if own:
        keys = model.own_fields
        record["attributes"] = {keys[name]: own[name] for name in keys if name in own}
    return record


def _value(schema: Any, place: str) -> Any:
    """The simplest value that a schema allows."""
    if examples := schema.get("examples"):
        return examples[0]
    if "anyOf" in schema:
        return _value(schema["anyOf"][0], place)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if "pattern" in schema:
        raise RefusedSpecError(f"{place} has a pattern; give it examples=[…]")
    if schema.get("type") == "array":
        return [_value(schema["items"], place)] * max(1, schema.get("minItems", 1))
    simple: dict[Any, Any] = {
        "string": "text"[: schema.get("maxLength")].ljust(schema.get("minLength", 0), "x"),
        "integer": _number(schema, 1),
        "number": _number(schema, 0.5),
        "boolean": True,
    }
    return simple.get(schema.get("type"))


def _number(schema: Any, step: float) -> Any:
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    most = schema.get("maximum", schema.get("exclusiveMaximum"))
    if least is not None:
        return least + step if "exclusiveMinimum" in schema or most is None else least
    return step if most is None or most > step else most - step
