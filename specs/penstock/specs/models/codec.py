"""Models to bytes and back; the wire form is described in `penstock.specs.models.envelope`.

A specialised spec's own fields lie in ``attributes`` on the wire and are lifted out of it when its
line is decoded.
"""

import json
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from penstock.specs.errors import BrokenRuleError, RefusedRecordError, RefusedSpecError
from penstock.specs.models.envelope import AT_EDGE, Record, resolve
from penstock.specs.redact.detectors import redact_text
from penstock.specs.versions.upcast import upcast_record

try:
    import orjson
except ImportError:  # the base install has pydantic only
    _orjson = None
else:
    _orjson = orjson


def _dumps(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


encode_json: Callable[[Any], bytes] = _dumps if _orjson is None else _orjson.dumps
"""A value as compact UTF-8 JSON on one line.

Raises:
    TypeError: It holds something that is not JSON, or text that is not Unicode.
    ValueError: The same, without orjson.
"""


def to_wire(record: Record) -> dict[str, Any]:
    """The record as the JSON object of its line; absent fields are left out."""
    fields = record.model_dump(mode="json", by_alias=True, exclude_none=True)
    if not record.own_fields:
        return fields
    attributes = fields.pop("attributes", {})
    for name, key in record.own_fields.items():
        if name in fields:
            attributes[key] = fields.pop(name)
    if attributes:
        fields["attributes"] = attributes
    return fields


def encode(record: Record) -> bytes:
    """The record's line, without a newline."""
    return encode_json(to_wire(record))


def decode(line: bytes) -> Record:
    """The record of a line, as the newest model known for it; an older major version is upcast.

    Raises:
        RefusedRecordError: It is not JSON, or breaks its spec.
    """
    try:
        fields = from_json(line, allow_inf_nan=False)
    except ValueError:
        raise RefusedRecordError("not_json") from None
    if not isinstance(fields, dict):
        raise RefusedRecordError("not_an_object")
    try:
        model = resolve(str(fields.get("schema")), str(fields.get("kind"))).model
    except (RefusedSpecError, KeyError):
        raise RefusedRecordError("bad_schema") from None
    if model is None:
        fields, model = _upcast(fields)
    try:
        return model.model_validate(lift(model, fields), context=AT_EDGE)
    except ValidationError as error:
        raise RefusedRecordError("invalid", explain(error)) from None


def _upcast(fields: dict[str, Any]) -> tuple[dict[str, Any], type[Record]]:
    try:
        record = upcast_record(fields)
    except RefusedSpecError:
        raise RefusedRecordError("unknown_major") from None
    model = resolve(str(record["schema"]), str(record.get("kind"))).model
    assert model is not None, "the nearest known version is known"
    return record, model


def lift(model: type[Record], fields: dict[str, Any]) -> dict[str, Any]:
    """Move a specialised spec's own fields out of the attributes; the argument stays as it is."""
    attributes = fields.get("attributes")
    if not model.own_fields or not isinstance(attributes, dict):
        return fields
    rest = dict(attributes)
    lifted = {k: v for k, v in fields.items() if k != "attributes"}
    for name, key in model.own_fields.items():
        if key in rest:
            lifted[name] = rest.pop(key)
    return lifted | ({"attributes": rest} if rest else {})


def explain(error: ValidationError) -> str:
    """The first broken rule and its field, without the offending value.

    A name in an open map may be a value itself; the detectors look at it. A rule between fields
    says itself what is wrong.
    """
    first = error.errors(include_input=False, include_url=False)[0]
    path = redact_text(".".join(str(part) for part in first["loc"][:2]))
    broken = first.get("ctx", {}).get("error")
    rule = str(broken) if isinstance(broken, BrokenRuleError) else first["type"]
    return f"{path or 'record'}: {rule}"
