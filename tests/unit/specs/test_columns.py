"""Columns and JSON Schema say the same as the models."""

import json
import types
from typing import Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from penstock.specs.formats.schemas import fields, json_schema
from penstock.specs.models.kinds import BASE_MODELS, WIRE_REQUIRED
from penstock.specs.subjects import KINDS
from tests.unit.specs import records


def plain(annotation: Any) -> Any:
    """The annotation without None and Annotated."""
    while hasattr(annotation, "__metadata__"):
        annotation = annotation.__origin__
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [plain(arg) for arg in get_args(annotation) if arg is not type(None)]
        return rest[0] if len(set(map(str, rest))) == 1 else tuple(rest)
    return annotation


def neutral_type(annotation: Any) -> set[str]:
    """The column types that can hold an annotation's values."""
    found = plain(annotation)
    origin = get_origin(found)
    if origin is dict:
        return {"map<string,string>"}
    if origin is list:
        (item,) = get_args(found)
        item = plain(item)
        if isinstance(item, type) and issubclass(item, BaseModel):
            return {"json"}
        return {f"array<{kind}>" for kind in neutral_type(item)}
    if isinstance(found, tuple):
        return {"double"}
    if isinstance(found, type) and issubclass(found, BaseModel):
        return {"json"}
    names = {bool: {"boolean"}, int: {"int", "long"}, float: {"double"}}
    return names.get(found, {"string"})


@pytest.mark.parametrize("kind", KINDS)
def test_columns_have_the_types_of_the_models(kind: str) -> None:
    model = BASE_MODELS[kind]
    by_key = {field.alias or name: field for name, field in model.model_fields.items()}
    for column in fields(kind):
        if len(column.path) == 1 and column.name != "resource":
            assert column.type in neutral_type(by_key[column.path[0]].annotation), column
    covered = {column.path[0] for column in fields(kind)}
    assert covered == set(by_key)


@pytest.mark.parametrize("kind", KINDS)
def test_column_names_are_unique_and_fit_for_sql(kind: str) -> None:
    names = [column.name for column in fields(kind)]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)


def test_required_columns_stand_on_every_line() -> None:
    for kind in KINDS:
        whole = {column.path[0] for column in fields(kind) if column.required}
        assert whole == WIRE_REQUIRED[kind]


def test_columns_find_their_values_in_a_record() -> None:
    record = records.log()
    found = {}
    for column in fields("log"):
        value: Any = record
        for key in column.path:
            value = value.get(key) if isinstance(value, dict) else None
        found[column.name] = value
    assert found["service_name"] == "checkout"
    assert found["user_id"] == "u-17"
    assert found["body"] == "order placed"
    assert found["deployment_environment_name"] == "test"


@pytest.mark.parametrize("kind", KINDS)
def test_json_schema_requires_what_the_gate_requires(kind: str) -> None:
    schema = json_schema(BASE_MODELS[kind])
    assert set(schema["required"]) == WIRE_REQUIRED[kind]
    assert schema["$id"] == f"penstock:{BASE_MODELS[kind].spec}"
    assert schema["properties"]["kind"]["const"] == kind
    assert "default" not in schema["properties"]["schema"]
    json.dumps(schema)
