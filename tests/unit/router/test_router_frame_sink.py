"""`format("penstock")`: rows of any frame as records, to a sink, without Spark around them."""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from penstock.router.columns.frame_records import FrameRecords, FrameShape, Naming
from penstock.router.errors import BadOptionError
from penstock.router.spark.frame_sink import FrameSink, NotDeliveredError, Returned
from tests.support.http_sink import HttpDestination

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
RETRY = "{initial_backoff_s: 0.01, max_backoff_s: 0.02, rejected_after: 0}"


@pytest.fixture
def destination() -> Iterator[HttpDestination]:
    made = HttpDestination()
    made.open()
    yield made
    made.close()


def frame_sink(destination: HttpDestination, **options: str) -> FrameSink:
    sink = f"{{type: http, url: '{destination.url}', retry: {RETRY}}}"
    return FrameSink({"sink": sink, **options})


def written(sink: FrameSink, rows: pa.Table) -> Returned:
    """What one task of a write returns; its rows come in batches of two."""
    fields = [{"name": name, "type": "string", "nullable": True, "metadata": {}}
              for name in rows.column_names]  # fmt: skip
    schema = StructType.fromJson({"type": "struct", "fields": fields})
    writer = sink.writer(schema, overwrite=False)
    returned = writer.write(iter(rows.to_batches(max_chunksize=2)))
    writer.commit([returned, None])
    return returned


def records_of(rows: pa.Table, **naming: Any) -> list[dict[str, Any]]:
    names = Naming(**{"stream": "spark", "partition": 3, "first": 10, "service": "shop",
                      "time_ns": 7000, **naming})  # fmt: skip
    found = FrameRecords(FrameShape.of(rows.column_names), names)
    made = []
    for batch in rows.to_batches():
        for span, log in found.log_rows(batch):
            where = {"span": (span.stream, span.partition)}
            made += [row | where for row in log.to_pylist()]
    return made


def test_a_row_is_a_log_record_and_other_columns_are_its_attributes() -> None:
    rows = pa.table(
        {
            "time": pa.array([NOON, None], pa.timestamp("us", tz="UTC")),
            "severity_number": pa.array([17, None], pa.int32()),
            "body": ["it failed", None],
            "service": ["checkout", None],
            "attributes": pa.array([[("a", "b")], None], pa.map_(pa.string(), pa.string())),
            "errors": [3, None],
            "price": pa.array([Decimal("1.50"), Decimal("2.00")], pa.decimal128(10, 2)),
            "share": [0.5, float("nan")],
            "day": [date(2026, 11, 21), None],
            "raw": [b"\xff", None],
            "more": [{"x": [1, 2]}, None],
        }
    )
    first, second = records_of(rows)
    assert json.loads(first["value"]) == {
        "schema": "log/1.0", "kind": "log", "time_unix_nano": 1795262400 * 10**9,
        "severity_number": 17, "body": "it failed",
        "attributes": {"errors": 3, "price": "1.50", "share": 0.5, "day": "2026-11-21",
                       "raw": "/w==", "more": {"x": [1, 2]}, "a": "b"},
        "resource": {"service.name": "checkout"},
    }  # fmt: skip
    record = json.loads(second["value"])
    assert record["attributes"] == {"price": "2.00", "share": "NaN"}
    assert (record["time_unix_nano"], record["severity_number"]) == (7000, 9)
    assert json.loads(record["body"]) == record["attributes"], "of a row without a text"
    assert record["resource"] == {"service.name": "shop"}
    assert [(it["span"], it["offset"]) for it in (first, second)] == [
        (("spark", 3), 10), (("spark", 3), 11)
    ]  # fmt: skip


def test_records_of_the_log_stay_as_they_are_and_keep_their_positions() -> None:
    rows = pa.table(
        {
            "stream": ["logs", "logs", "traces"],
            "partition": pa.array([0, 0, 1], pa.int32()),
            "offset": [5, 9, 7],
            "value": [b'{"a":1}', b"no json", b'{"a":2}'],
        }
    )
    found = records_of(rows)
    assert [(*it["span"], it["offset"], it["value"]) for it in found] == [
        ("logs", 0, 5, b'{"a":1}'), ("logs", 0, 9, b"no json"), ("traces", 1, 7, b'{"a":2}')
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["offset", "body"], "has offset and not stream, partition"),
        (["value", "body"], "value, which is the whole record, and body"),
    ],
)
def test_columns_that_would_be_taken_for_something_else_are_refused(
    names: list[str], told: str
) -> None:
    with pytest.raises(BadOptionError, match=told):
        FrameShape.of(names)


def test_all_rows_arrive_and_a_task_that_runs_again_has_the_same_keys(
    destination: HttpDestination,
) -> None:
    rows = pa.table({"body": [f"number {number}" for number in range(5)]})
    assert written(frame_sink(destination, run="today"), rows).dead_letters == []
    bodies = [record["body"] for record in destination.records]
    assert bodies == [f"number {number}" for number in range(5)]
    written(frame_sink(destination, run="today"), rows)
    assert len(destination.requests) == 2 * len(set(destination.requests)), "the same requests"
    written(frame_sink(destination), rows)
    assert len(destination.records) == 10, "another run is another write"


def test_refused_records_fail_the_write_unless_they_have_a_directory(
    destination: HttpDestination, tmp_path: Path
) -> None:
    destination.status = 400
    rows = pa.table({"body": ["one", "two"]})
    with pytest.raises(NotDeliveredError, match=r"2 records refused.*http_400"):
        written(frame_sink(destination), rows)
    options = {"deadLetters": str(tmp_path), "run": "today", "name": "report"}
    assert len(written(frame_sink(destination, **options), rows).dead_letters) == 2
    lines = (tmp_path / "report" / "today.ndjson").read_text().splitlines()
    assert [json.loads(json.loads(line)["value"])["body"] for line in lines] == ["one", "two"]


def test_what_is_no_record_is_a_dead_letter_with_its_reason(destination: HttpDestination) -> None:
    rows = pa.table({"value": [b'{"schema":"log/1.0","kind":"log"}', b"no json"]})
    with pytest.raises(NotDeliveredError, match=r"1 record refused.*malformed: not a JSON object"):
        written(frame_sink(destination), rows)
    assert len(destination.records) == 1


def test_a_destination_that_is_away_fails_the_task_in_time(destination: HttpDestination) -> None:
    destination.status = 503
    rows = pa.table({"body": ["one"]})
    with pytest.raises(
        NotDeliveredError, match=r"has not taken all rows of a task in 0\.3 s: .*503"
    ):
        written(frame_sink(destination, timeoutSeconds="0.3"), rows)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "sink"),
        ({"sink": "{type: parquet, path: /lake}"}, r"Spark has frame\.write\.parquet"),
        ({"sink": "{type: http, url: 'http://x', nonsense: 1}"}, "nonsense"),
        (
            {"sink": "{type: http, url: 'http://x'}", "colour": "red"},
            "colour is unknown.*deadLetters",
        ),
        ({"sink": "{"}, "neither YAML nor JSON"),
        (
            {"sink": "{type: http, url: 'http://x', rate_limit: {records_per_s: 5}}"},
            "rate_limit is for jobs",
        ),
    ],
)
def test_options_that_are_wrong_are_refused(options: dict[str, str], told: str) -> None:
    with pytest.raises(BadOptionError, match=told):
        FrameSink(options).writer(StructType().add("body", "string"), overwrite=False)


def test_a_sink_is_not_overwritten(destination: HttpDestination) -> None:
    with pytest.raises(BadOptionError, match="append"):
        frame_sink(destination).writer(StructType().add("body", "string"), overwrite=True)
