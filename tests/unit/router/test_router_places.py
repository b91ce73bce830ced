"""The place of a delivered row at its destination, as each sink names it."""

from pathlib import Path
from typing import Any

import pytest

from penstock.router.sinks import make_sink
from penstock.router.sinks.registry import known_types, sink_kind
from tests.support.recorded_sink import sent
from tests.support.sink_batches import NOW_NS, batch, context, gauge_record, log_record, span_record

URL = {"url": "http://127.0.0.1:1"}
ID = "logs.5f2c19aa/0/4711"
KEY = "stream logs, incarnation STREAM_ID, partition 0, offset 4711"

PLACES: dict[str, tuple[dict[str, Any], str]] = {
    "bigquery": ({"table": "p-1.telemetry.records"}, f"p-1.telemetry.records: {KEY}"),
    "clickhouse": (URL, f"penstock: {KEY}"),
    "datadog": ({"api_key": "k"}, f'@penstock_id:"{ID}"'),
    "delta": ({"table": "/srv/table"}, f"/srv/table: {KEY}, sink job.sink"),
    "elasticsearch": (URL, "logs-penstock-default/_doc/logs.5f2c19aa-0-4711"),
    "google_cloud_logging": (
        {"project": "p-12345", "url": "http://127.0.0.1:1"},
        'logName="projects/p-12345/logs/penstock-log" insertId="logs.5f2c19aa-0-4711"',
    ),
    "http": (
        URL,
        "the request whose Idempotency-Key job/sink/logs.5f2c19aa/0/FIRST-LAST spans 4711",
    ),
    "iceberg": ({"table": "a.b", "catalog": {"type": "sql"}}, f"a.b: {KEY}, sink job.sink"),
    "jdbc": ({"url": "jdbc:h2:mem:x", "jars": ["/x.jar"]}, f"penstock: {KEY}"),
    "kafka": (
        {"bootstrap_servers": "127.0.0.1:1", "topic": "t", "key": "service"},
        f"topic t: key checkout, penstock_id {ID}",
    ),
    "loki": (
        URL,
        f'{{service_name="checkout", kind="log"}} | penstock_id="{ID}"',
    ),
    "nats": ({"subject": "out.{kind}"}, f"subject out.log: Nats-Msg-Id job/sink/{ID}"),
    "postgres": ({"dsn": "postgresql://127.0.0.1:1/x"}, f"penstock: {KEY}"),
    "splunk_hec": (
        URL | {"token": "t", "index": "main"},
        f'index=main sourcetype="penstock:log" penstock_id="{ID}"',
    ),
}


def place(kind: str, directory: Path, record: dict[str, Any], **keys: Any) -> object:
    config = sink_kind(kind).config.model_validate({"type": kind, **keys})
    (found,) = make_sink(config, context(directory)).locate(batch([record], first=4711))
    return found


@pytest.mark.parametrize("kind", sorted(PLACES))
def test_a_sink_names_the_key_of_a_delivered_row(tmp_path: Path, kind: str) -> None:
    keys, expected = PLACES[kind]
    stream_id = context(tmp_path).stream_ids["logs"]
    expected = expected.replace("STREAM_ID", stream_id)
    assert place(kind, tmp_path, log_record(1), **keys) == expected


def test_each_sink_of_the_router_but_those_without_a_key_names_one() -> None:
    without = {"console", "otlp", "parquet", "prometheus", "s3"}  # tested below, and by their files
    assert {*PLACES} == {*known_types()} - without


def test_ids_that_records_have_by_themselves_are_named(tmp_path: Path) -> None:
    span = span_record(1)
    found = place("otlp", tmp_path, span, **URL)
    assert found == f"trace {span['trace_id']}, span {span['span_id']}"
    assert place("otlp", tmp_path, log_record(1, record_id="r1"), **URL) == "log.record.uid r1"
    assert place("otlp", tmp_path, log_record(1), **URL) is None
    gauge = place("prometheus", tmp_path, gauge_record(3), **URL)
    assert str(gauge).startswith("queue_depth_bytes{")
    assert str(gauge).endswith(f"at {NOW_NS // 10**6} ms")


@pytest.mark.parametrize(
    ("kind", "key", "keys"),
    [
        ("clickhouse", b'"offset":0', {}),
        ("elasticsearch", b'"_id":"logs.5f2c19aa-0-0"', {}),
        ("loki", b'"penstock_id":"logs.5f2c19aa/0/0"', {}),
        ("splunk_hec", b'"penstock_id":"logs.5f2c19aa/0/0"', {"token": "t"}),
    ],
)
def test_the_key_is_in_what_was_sent(
    tmp_path: Path, kind: str, key: bytes, keys: dict[str, Any]
) -> None:
    assert key in b"".join(sent(kind, tmp_path, [log_record(0)], **keys).bodies)
