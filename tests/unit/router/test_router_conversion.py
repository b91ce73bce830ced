"""Typed columns out of records, in the source's own process."""

import json
import math
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.router.columns.filters import Filter, filter_from_json
from penstock.router.columns.projection import Projection, Projector
from penstock.router.columns.schema import KINDS, VIEWS, View, ViewName, view
from penstock.router.columns.spec_versions import SpecVersions, known_versions
from penstock.router.errors import BadOptionError
from penstock.router.read.offsets import Span
from penstock.specs.formats import schemas
from penstock.specs.models.kinds import BASE_MODELS
from penstock.specs.versions.upcast import upcast

NOW_US = 1_795_000_000_000_000
LOG = {
    "schema": "log/1.0",
    "kind": "log",
    "time_unix_nano": NOW_US * 1000 + 999,
    "severity_number": 9,
    "body": "a ☃ b",
    "attributes": {
        "n": 7, "x": 1.5, "yes": True, "none": None, "tags": ["a", 1], "said": 'a "b"\n☃',
    },
    "context": {"user.id": "u1"},
    "resource": {"service.name": "shop", "service.version": "1"},
}  # fmt: skip
METRIC = {
    "schema": "metric/1.0", "kind": "metric", "time_unix_nano": 1, "name": "m", "unit": "s",
    "metric_type": "histogram", "bucket_counts": [1, 2], "explicit_bounds": [0.5], "value": 3,
    "positive": {"offset": 1}, "resource": {"service.name": "shop"},
}  # fmt: skip
TORN = b'{"schema":"%s","kind":"log","attributes":{"said":"\xff"},"resource":{"a":"\xff"}}'
"""Not UTF-8, but JSON to a reader that passes over the values."""
SPAN = Span("logs", 3, 100, 200)


def test_words_for_values_that_are_no_numbers_are_doubles() -> None:
    texts = [{**METRIC, "value": it, "sum": "-Infinity"} for it in (1, "NaN", "Infinity", "nan")]
    found = shaped(texts, "metric_value", "sum", "malformed", "name", name="metrics")
    assert [repr(row["metric_value"]) for row in found] == ["1.0", "nan", "inf", "None"]
    assert [row["sum"] for row in found] == [-math.inf] * 4
    assert [row["malformed"] for row in found] == [False, False, False, True]


def log_rows(values: list[bytes | None]) -> pa.RecordBatch:
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "offset": pa.array(range(100, 100 + count), pa.int64()),
            "timestamp": pa.array([NOW_US * 1000] * count, pa.timestamp("ns", tz="UTC")),
            "subject": pa.array([f"s.{n % 2}" for n in range(count)]),
            "key": pa.array([None] * count, pa.binary()),
            "headers": pa.array([None] * count, pa.map_(pa.string(), pa.binary())),
            "reply": pa.array([None] * count, pa.string()),
            "value": pa.array(values, pa.binary()),
        }
    )


def shaped(
    values: list[Any],
    *columns: str,
    name: ViewName = "records",
    only: Any = None,
    versions: SpecVersions | None = None,
) -> list[dict[str, Any]]:
    whole: View = view(name)
    condition: Filter | None = None if only is None else filter_from_json(only)
    chosen = whole.chosen(whole.struct(columns or None))
    shape = Projection(whole, chosen, condition, versions or known_versions())
    texts = [json.dumps(v).encode() if isinstance(v, dict) else v for v in values]
    found: list[dict[str, Any]] = Projector(shape).shape(SPAN, log_rows(texts)).to_pylist()
    return found


def test_each_view_has_the_columns_that_specs_export_gives() -> None:
    assert tuple(BASE_MODELS) == KINDS
    for name, kind in zip(VIEWS[2:], KINDS, strict=True):
        exported = StructType.fromJson(schemas.spark(BASE_MODELS[kind]))
        typed = [column for column in view(name).columns if column.origin == "json"]
        assert [(c.path, c.spark) for c in typed] == [
            (tuple(field.metadata["path"]), field.dataType) for field in exported
        ]


@pytest.mark.parametrize("name", VIEWS)
def test_batches_have_just_the_types_that_spark_expects(name: ViewName) -> None:
    whole = view(name, include_headers=True)
    batch = Projector(Projection(whole, whole.columns)).shape(SPAN, log_rows([b"{}", b"x", None]))
    assert batch.schema == to_arrow_schema(whole.struct(), timezone="UTC")
    assert batch.num_rows == 3


def test_a_record_has_its_columns_and_keeps_its_bytes() -> None:
    (row,) = shaped([LOG])
    assert (row["stream"], row["partition"], row["offset"]) == ("logs", 3, 100)
    assert (row["severity_number"], row["body"], row["service"]) == (9, "a ☃ b", "shop")
    assert (row["user_id"], row["account_id"], row["trace_id"]) == ("u1", None, None)
    assert int(row["time"].timestamp() * 1e6) == NOW_US
    assert dict(row["resource"]) == LOG["resource"]
    assert dict(row["attributes"]) == {
        "n": "7", "x": "1.5", "yes": "true", "none": None, "tags": '["a",1]', "said": 'a "b"\n☃',
    }  # fmt: skip
    assert json.loads(row["value"]) == LOG
    assert (row["malformed"], row["malformed_reason"]) == (False, None)


def test_a_metric_has_arrays_and_json() -> None:
    (row,) = shaped([METRIC], name="metrics")
    assert (row["bucket_counts"], row["explicit_bounds"]) == ([1, 2], [0.5])
    assert row["metric_value"] == 3.0
    assert row["positive"] == '{"offset":1}'
    assert (row["attributes"], row["negative"]) == (None, None)


@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        (b"not json", "raw", "not a JSON object"),
        (b'{"kind":"log"} {}', "raw", "not a JSON object"),
        (b"", "raw", "not a JSON object"),
        (b"[1]", "raw", "not a JSON object"),
        (b"\xff\xfe\x00", "raw", "not a JSON object"),
        (b'{"a":' + b"[" * 100_000, "raw", "not a JSON object"),
        (None, "raw", "no value"),
        (b"{}", "raw", "no kind"),
        (b'{"kind":"tale"}', "raw", "no such kind: 'tale'"),
        (LOG | {"severity_number": "high"}, "log", "severity_number: Expected `int | null`"),
        (LOG | {"severity_number": 2**40}, "log", "severity_number"),
        (LOG | {"attributes": [1]}, "log", "attributes: not an object"),
        (LOG | {"resource": 3}, "log", "resource: not an object"),
        (TORN % b"log/1.0", "raw", "not a JSON object"),
        (TORN % b"log/9.0", "raw", "not a JSON object"),
        (TORN.replace(b"attributes", b"unknown") % b"log/1.0", "raw", "not a JSON object"),
        (b'{"schema":"log/9.0","kind":"log","size":1e999}', "raw", "not a JSON object"),
        (LOG | {"schema": "log/9.0"}, "log", "log/9.0: a newer major version than 1"),
    ],
)
def test_what_is_no_record_is_kept_and_says_why(value: Any, kind: str, reason: str) -> None:
    rows = shaped([LOG, value, LOG])
    assert [row["malformed"] for row in rows] == [False, True, False]
    assert (rows[1]["kind"], rows[1]["offset"]) == (kind, 101)
    assert rows[1]["malformed_reason"].startswith(reason)
    assert [row["malformed_value"] for row in rows] == [None, rows[1]["value"], None]
    if value is not None:
        assert rows[1]["value"] == (
            json.dumps(value).encode() if isinstance(value, dict) else value
        )
    assert [rows[0]["body"], rows[2]["body"]] == [LOG["body"], LOG["body"]]
    for wanted in ((), ("service", "body"), ("attributes", "value")):
        again = shaped([LOG, value, LOG], *wanted, "malformed_reason", "malformed_value")
        for name in ("malformed_reason", "malformed_value"):
            assert [row[name] for row in again] == [row[name] for row in rows], wanted


def test_newer_minors_and_specs_of_teams_are_read_as_their_kind() -> None:
    newer = LOG | {"schema": "log/1.7", "something_new": {"a": 1}}
    team = LOG | {
        "schema": "shop.till_opened/3.2",
        "kind": "event",
        "event_name": "shop.till_opened",
    }
    rows = shaped([newer, team], "schema", "kind", "malformed", "attributes", "event_name")
    assert [row["malformed"] for row in rows] == [False, False]
    assert rows[1]["event_name"] == "shop.till_opened"
    assert dict(rows[1]["attributes"])["n"] == "7"


def test_older_majors_are_upcast(monkeypatch: pytest.MonkeyPatch) -> None:
    @upcast("shop.sale", 1)
    def _to_cents(record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "attributes": {"cents": record["attributes"]["euros"] * 100}}

    versions = SpecVersions({"shop.sale": (1, 2)}, frozenset({("shop.sale", 1)}))
    old = LOG | {"schema": "shop.sale/1.4", "kind": "event", "attributes": {"euros": 3}}
    odd = old | {"attributes": {}}
    new = old | {"schema": "shop.sale/2.0", "attributes": {"cents": 5}}
    names = ("schema", "attributes", "malformed_reason", "value")
    rows = shaped([old, odd, new], *names, name="events", versions=versions)
    assert [row["schema"] for row in rows] == ["shop.sale/2.0", "shop.sale/1.4", "shop.sale/2.0"]
    assert [dict(row["attributes"]) for row in rows] == [{"cents": "300"}, {}, {"cents": "5"}]
    assert rows[1]["malformed_reason"].startswith("shop.sale/1.4: ")
    assert json.loads(rows[0]["value"])["attributes"] == {"euros": 3}


def test_a_view_of_a_kind_leaves_out_other_kinds_and_keeps_what_has_none() -> None:
    rows = shaped([LOG, METRIC, b"odd"], "kind", "offset", name="logs")
    assert [(row["kind"], row["offset"]) for row in rows] == [("log", 100), ("raw", 102)]


@pytest.mark.parametrize(
    ("only", "offsets"),
    [
        (["=", "subject", "s.1"], [101]),
        (["and", ["=", "kind", "log"], [">=", "severity_number", 17]], [102]),
        (["not", ["=", "severity_number", 9]], [102]),  # NULL is neither, as in SQL
        (["or", ["null", "severity_number"], ["=", "severity_number", 9]], [100, 101]),
        (["in", "severity_number", [9, 17, 2**40]], [100, 102]),
        (["<=>", "name", "m"], [101]),
        (["starts", "body", "a"], [100]),
        (["contains", "body", "urn"], [102]),
        (["ends", "body", "b"], [100]),
        (["<", "time", {"timestamp_us": NOW_US}], [101]),
        (["and", [">", "offset", 100], ["=", "service", "shop"]], [101, 102]),
        (["=", "malformed", True], []),
    ],
)
def test_only_rows_that_pass_a_filter_are_made(only: Any, offsets: list[int]) -> None:
    values = [LOG, METRIC, LOG | {"severity_number": 17, "body": "burnt"}]
    assert [row["offset"] for row in shaped(values, "offset", only=only)] == offsets


@pytest.mark.parametrize(
    "document", ["x", [], ["and"], ["=", "a"], ["in", "a", 3], ["~", "a", 1], ["=", "a", None]]
)
def test_what_is_no_filter_is_refused(document: Any) -> None:
    with pytest.raises(BadOptionError):
        filter_from_json(document)


def test_executors_load_no_specs_and_no_daemon() -> None:
    """Every Python worker of Spark imports the source once, before its first record."""
    code = (
        "import sys, penstock.router.read.source; "
        "print([n for n in ('pydantic', 'structlog', 'nats', 'click') if n in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"
