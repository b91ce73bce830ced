"""The step `sql`: its statement taken apart, and what its columns do to a record."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import TypeAdapter, ValidationError

from penstock.router.columns.passthrough import PASSTHROUGH, Unpacking, pack
from penstock.router.errors import RepeatedRowError
from penstock.router.job.route_task import ROUTE_COLUMN, RouteSteps
from penstock.router.transforms import Chain
from penstock.router.transforms.settings import Steps
from penstock.router.transforms.sql import SQL_COLUMN, Lookup, Select, parse_select

STEPS: TypeAdapter[Any] = TypeAdapter(Steps)


@pytest.mark.parametrize(
    ("statement", "select"),
    [
        ("SELECT 1 AS one FROM records", Select(("1 AS one",), (), None)),
        (
            """select lower(service) as service, concat(body, ', from ', 'a' || ',') AS body
            FROM records WHERE body IS NOT NULL AND (kind = 'FROM' OR offset > 3);""",
            Select(
                ("lower(service) as service", "concat(body, ', from ', 'a' || ',') AS body"),
                (),
                "body IS NOT NULL AND (kind = 'FROM' OR offset > 3)",
            ),
        ),
        (
            """SELECT *, t.owner FROM records LEFT JOIN teams AS t ON t.service = records.service
            LEFT OUTER JOIN hosts ON left(hosts.name, 3) = right(resource['host'], 3)
            WHERE t.owner IS DISTINCT FROM 'nobody' -- GROUP BY""",
            Select(
                ("*", "t.owner"),
                (
                    Lookup("teams", "t", "t.service = records.service"),
                    Lookup("hosts", "hosts", "left(hosts.name, 3) = right(resource['host'], 3)"),
                ),
                "t.owner IS DISTINCT FROM 'nobody' -- GROUP BY",
            ),
        ),
    ],
)
def test_a_statement_is_columns_lookups_and_a_condition(statement: str, select: Select) -> None:
    assert parse_select(statement) == select


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("DELETE FROM records", "is a SELECT"),
        ("SELECT 1", "needs FROM records"),
        ("SELECT 1 FROM others", "it is records, without another name, not 'others'"),
        ("SELECT 1 FROM records r", "without another name"),
        ("SELECT 1 FROM records, teams", "without another name"),
        ("SELECT 1 FROM records JOIN teams ON true", "write LEFT JOIN"),
        ("SELECT 1 FROM records INNER JOIN teams ON true", "write LEFT JOIN"),
        ("SELECT 1 FROM records LEFT JOIN teams USING (service)", "USING"),
        ("SELECT 1 FROM records LEFT JOIN teams", "LEFT JOIN TABLE ON"),
        ("SELECT count(*) FROM records GROUP BY service", "GROUP: groups need rows"),
        ("SELECT DISTINCT service FROM records", "DISTINCT"),
        ("SELECT service FROM records ORDER BY service", "ORDER"),
        ("SELECT service FROM records LIMIT 5", "LIMIT"),
        ("SELECT service FROM records LIMIT 5 OFFSET 3", "LIMIT"),
        ("SELECT service FROM records UNION SELECT 1", "UNION"),
        ("SELECT * EXCEPT (body) FROM records", "NULL AS NAME"),
        ("SELECT a, FROM records", "a column is empty"),
        ("SELECT (a FROM records", "parentheses"),
        ("SELECT a FROM records WHERE", "condition is missing"),
    ],
)
def test_a_statement_of_another_shape_is_refused(statement: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse_select(statement)


def test_the_step_comes_first_and_its_errors_have_its_place() -> None:
    STEPS.validate_python([{"sql": "SELECT 1 AS one FROM records"}, {"drop": ["body"]}])
    with pytest.raises(ValidationError, match="sql must be the first step"):
        STEPS.validate_python([{"drop": ["body"]}, {"sql": "SELECT 1 AS one FROM records"}])
    with pytest.raises(ValidationError, match="LIMIT"):
        STEPS.validate_python([{"sql": "SELECT 1 AS one FROM records LIMIT 1"}])


def rows(*sets: dict[str, Any] | None, value: bytes | None = None) -> pa.Table:
    """Rows of one record each, with what the SELECT sets."""
    record = {"schema": "log/1.0", "kind": "log", "time_unix_nano": 1_795_000_000 * 10**9,
              "severity_number": 9, "body": "hello", "attributes": {"big": 2**70, "n": 1},
              "resource": {"service.name": "Shop"}}  # fmt: skip
    text = json.dumps(record).encode() if value is None else value
    count = len(sets)
    return pa.table(
        {
            "stream": ["logs"] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "offset": list(range(count)),
            "subject": ["s"] * count,
            "timestamp_ns": [5000] * count,
            "value": pa.array([text] * count, pa.binary()),
            "service": ["Shop"] * count,
            "severity_number": pa.array([9] * count, pa.int32()),
            SQL_COLUMN: [None if it is None else json.dumps(it) for it in sets],
            ROUTE_COLUMN: pa.array([0] * count, pa.int32()),
        }
    )


def steps(*more: dict[str, Any]) -> RouteSteps:
    chain = Chain(
        STEPS.validate_python([{"sql": "SELECT 1 AS one FROM records"}, *more]),
        Path(),
        key_path="routes.0.transforms",
    )
    columns = ["stream", "partition", "offset", "value", "service", "severity_number"]
    return RouteSteps(columns, {0: chain}, gets_every=False, sends_malformed_to_dlq=False)


def test_columns_become_fields_and_the_rest_of_the_record_stays() -> None:
    assert SQL_COLUMN in steps().columns
    sets = {"service": "shop", "severity_number": 17, "body": None, "owner": {"team": "a"}}
    done = steps({"mask": {"fields": ["attributes.owner"]}}).prepare(rows(sets, None), 0)
    first, second = done.rows.to_pylist()
    assert (first["service"], first["severity_number"]) == ("shop", 17)
    record = json.loads(first["value"])
    assert "body" not in record
    assert record["attributes"] == {"big": 2**70, "n": 1, "owner": "***"}
    assert record["resource"] == {"service.name": "shop"}
    assert (second["service"], json.loads(second["value"])["body"]) == ("Shop", "hello")
    assert SQL_COLUMN not in done.rows.column_names


def test_what_is_no_record_is_a_dead_letter_unchanged() -> None:
    done = steps().prepare(rows({"one": 1}, value=b"no json"), 0)
    assert (done.rows.num_rows, done.refused.column("value").to_pylist()) == (0, [b"no json"])


def test_a_record_that_a_join_has_made_two_of_is_an_error() -> None:
    carried = pa.record_batch({"offset": [5, 6], "value": [b"a", b"b"]})
    packed = pa.Table.from_batches([pack(carried.select(["offset"]), carried)])
    said = packed.append_column(ROUTE_COLUMN, pa.array([0, 0], pa.int32()))
    said = said.append_column(SQL_COLUMN, pa.array(["{}", None]))
    unpacking = Unpacking(
        ROUTE_COLUMN, carried.schema, ("value", SQL_COLUMN), (SQL_COLUMN,), "offset"
    )
    assert unpacking.collected(said).to_pylist() == [
        {"value": b"a", SQL_COLUMN: "{}"}, {"value": b"b", SQL_COLUMN: None}
    ]  # fmt: skip
    assert PASSTHROUGH in said.column_names
    first, second = said.slice(0, 1), said.slice(1)
    for doubled in ([first, first, second], [first, second, second]):
        whole = pa.concat_tables(doubled).combine_chunks()
        for table in (whole, pa.concat_tables(doubled)):  # in one batch of Spark's, and in three
            with pytest.raises(RepeatedRowError, match="several rows of its table for one record"):
                unpacking.collected(table)
            with pytest.raises(RepeatedRowError):
                list(unpacking.tables(table.to_batches()))
