"""What the OTLP sink sends, as the OpenTelemetry Collector understood it."""

import os
from pathlib import Path
from typing import Any

import pytest

from penstock.router.sinks import make_sink
from penstock.router.sinks.registry import sink_kind
from tests.support.real_products import OTLP_FILE, RealOtelCollector
from tests.support.sink_batches import (
    NOW_NS,
    batch,
    context,
    dead_letters,
    gauge_record,
    log_record,
    span_record,
)

pytestmark = pytest.mark.live

COUNT = 300


def records() -> list[dict[str, Any]]:
    makers = (log_record, span_record, gauge_record)
    made = [makers[number % 3](number) for number in range(COUNT)]
    made[0]["attributes"] = {"text": "☃\u0000\n", "int": -(2**62), "float": 0.1, "no": False}
    made[0] |= {"trace_id": "ab" * 16, "body": {"nested": [1, {"deep": None}], "empty": ""}}
    return made


def taken(directory: Path, way: str, compression: str) -> dict[str, list[dict[str, Any]]]:
    """What the collector has of all records; none may become a dead letter."""
    collector = RealOtelCollector()
    url = os.environ["PENSTOCK_TEST_OTLP_URL"]
    if way == "grpc":
        url = f"http://{os.environ['PENSTOCK_TEST_OTLP_GRPC']}"
    settings = {
        "type": "otlp", "url": url, "protocol": way, "compression": compression,
        "batch": {"max_records": 40},
    }  # fmt: skip
    made = context(directory)
    sink = make_sink(sink_kind("otlp").config.model_validate(settings), made)
    sink.open()
    sink.write(batch(records()))
    sink.close()
    assert dead_letters(made) == []
    return collector.members


@pytest.mark.skipif(not OTLP_FILE, reason="`make test-extended` names a collector")
@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("way", ["http", "grpc"])
def test_a_collector_has_each_record_as_it_was(way: str, compression: str, tmp_path: Path) -> None:
    found = taken(tmp_path, way, compression)
    assert {signal: len(members) for signal, members in found.items()} == dict.fromkeys(
        ("logs", "traces", "metrics"), COUNT // 3
    )
    (log,) = (it for it in found["logs"] if it["timeUnixNano"] == str(NOW_NS))
    assert log["traceId"] == "ab" * 16
    assert {it["key"]: it["value"] for it in log["attributes"]} == {
        "text": {"stringValue": "☃\u0000\n"}, "int": {"intValue": str(-(2**62))},
        "float": {"doubleValue": 0.1}, "no": {"boolValue": False},
    }  # fmt: skip
    nested = {"values": [
        {"intValue": "1"}, {"kvlistValue": {"values": [{"key": "deep", "value": {}}]}},
    ]}  # fmt: skip
    assert log["body"] == {"kvlistValue": {"values": [
        {"key": "nested", "value": {"arrayValue": nested}},
        {"key": "empty", "value": {"stringValue": ""}},
    ]}}  # fmt: skip
