"""Specs as others read them."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner, Result
from pydantic import Field
from pyspark.sql.types import StructType

from penstock.specs import Event, LogRecord, Sensitive
from penstock.specs.cli import cli
from penstock.specs.formats import schemas
from penstock.specs.formats.schemas import columns_of, fields
from penstock.specs.models.kinds import BASE_MODELS
from tests.unit.specs import records


class Sold(Event, spec="exports_test.sold/1.0"):
    """Something was sold | for money."""

    order: Annotated[str, Field(description="Which one.", examples=["o-1"])]
    state: Literal["new", "paid"]
    total: float
    items: int = 1
    gift: bool | None = None
    tags: list[str] | None = None
    email: Annotated[str | None, Sensitive("pii")] = None


OWN = {
    "exports_test_order": "string",
    "exports_test_state": "string",
    "exports_test_total": "double",
    "exports_test_items": "long",
    "exports_test_gift": "boolean",
    "exports_test_tags": "array<string>",
    "exports_test_email": "string",
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ("export", *arguments))


def test_own_fields_are_columns_behind_those_of_the_kind() -> None:
    columns = columns_of(Sold)
    assert columns[: len(fields("event"))] == fields("event")
    own = columns[len(fields("event")) :]
    assert {column.name: column.type for column in own} == OWN
    assert own[0].path == ("attributes", "exports_test.order")
    assert [column.name for column in own if column.required] == [
        "exports_test_order", "exports_test_state", "exports_test_total",
    ]  # fmt: skip


@pytest.mark.parametrize("model", [*BASE_MODELS.values(), Sold], ids=lambda model: model.spec)
def test_spark_and_arrow_have_the_columns(model: Any) -> None:
    spark = StructType.fromJson(schemas.spark(model))
    arrow = schemas.arrow(model)
    columns = columns_of(model)
    assert spark.fieldNames() == arrow.names == [column.name for column in columns]
    for column, field in zip(columns, spark.fields, strict=True):
        assert field.dataType.simpleString() == column.type.replace("long", "bigint").replace(
            "json", "string"
        )
        assert field.nullable == arrow.field(column.name).nullable == (not column.required)


def test_arrow_holds_a_records_values() -> None:
    record = records.log()
    names = {"body": record["body"], "severity_number": 9, "service_name": "checkout"}
    schema = pa.schema([schemas.arrow(LogRecord).field(name) for name in names])
    assert pa.Table.from_pylist([names], schema=schema).to_pylist() == [names]


def test_markdown_has_a_row_for_each_field_its_own_first() -> None:
    rows = schemas.markdown(Sold).splitlines()
    assert rows[0] == "## exports_test.sold/1.0"
    assert rows[2] == r"Something was sold \| for money."
    assert rows[6] == "| `exports_test.order` | string | yes |  | Which one. |"
    assert "| `exports_test.state` | `new`, `paid` | yes |  |  |" in rows
    assert "| `exports_test.email` | string |  | pii, drop |  |" in rows
    assert len(rows) == 6 + len(Sold.model_fields)


def test_weaver_registry_has_an_event_with_its_attributes() -> None:
    result = run("weaver", "exports_test.sold/1.0", "log/1.0")
    sold, log = yaml.safe_load(result.output)["groups"]
    assert (sold["id"], sold["type"]) == ("event.exports_test.sold", "event")
    assert sold["name"] == "exports_test.sold"
    by_id = {attribute["id"]: attribute for attribute in sold["attributes"]}
    assert by_id["exports_test.order"]["requirement_level"] == "required"
    assert by_id["exports_test.total"]["type"] == "double"
    assert by_id["exports_test.tags"]["type"] == "string[]"
    assert [m["value"] for m in by_id["exports_test.state"]["type"]["members"]] == ["new", "paid"]
    assert by_id["exports_test.email"]["annotations"] == {"sensitivity": "pii, drop"}
    assert log["type"] == "attribute_group"
    assert "user.id" in {attribute["id"] for attribute in log["attributes"]}


def test_export_writes_files(tmp_path: Path) -> None:
    file = tmp_path / "schema.arrow"
    assert run("arrow", "log/1.0", "--out", str(file)).exit_code == 0
    assert pa.ipc.read_schema(pa.py_buffer(file.read_bytes())) == schemas.arrow(LogRecord)
    assert '"x-kind": "log"' in run("json-schema", "log/1.0").output
    assert '"type": "struct"' in run("spark", "log/1.0").output
    assert "## span/1.0" in run("markdown", "log/1.0", "span/1.0").output
    assert run("spark", "log/1.0", "span/1.0").exit_code == 2
    assert "no spec" in run("spark", "nothing/1.0").stderr
