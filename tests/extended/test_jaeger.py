"""Spans of the OTLP sink, read back from a real Jaeger."""

import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from penstock.router.sinks import make_sink
from penstock.router.sinks.registry import sink_kind
from tests.support.real_products import JAEGER_URL, jaeger_traces
from tests.support.sink_batches import NOW_NS, batch, context, dead_letters, span_record

pytestmark = pytest.mark.live

COUNT = 300


def sent(records: list[dict[str, Any]], directory: Path, protocol: str) -> None:
    """Bring all records there; none may become a dead letter."""
    url = os.environ["PENSTOCK_TEST_OTLP_URL"]
    if protocol == "grpc":
        url = f"http://{os.environ['PENSTOCK_TEST_OTLP_GRPC']}"
    settings = {"type": "otlp", "url": url, "protocol": protocol, "batch": {"max_records": 40}}
    made = context(directory)
    sink = make_sink(sink_kind("otlp").config.model_validate(settings), made)
    sink.open()
    sink.write(batch(records))
    sink.close()
    assert dead_letters(made) == []


def tags_of(found: dict[str, Any]) -> dict[str, Any]:
    return {tag["key"]: tag["value"] for tag in found["tags"]}


@pytest.mark.skipif(not JAEGER_URL, reason="`make test-extended` names a Jaeger")
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_jaeger_has_each_span_as_it_was(protocol: str, tmp_path: Path) -> None:
    trace, parent = uuid.uuid4().hex, f"{1:016x}"
    records = [span_record(number, trace_id=trace) for number in range(COUNT)]
    records[5] |= {
        "parent_span_id": parent,
        "attributes": {"order": 7, "http.route": "/orders", "paid": True},
        "events": [{"time_unix_nano": NOW_NS + 6, "name": "packed", "attributes": {"box": "b-1"}}],
    }
    sent(records, tmp_path, protocol)
    (found,) = jaeger_traces(trace)
    spans = {int(span["spanID"], 16) - 1: span for span in found["spans"]}
    assert len(found["spans"]) == COUNT
    assert set(spans) == set(range(COUNT))
    span = spans[5]
    assert (span["operationName"], span["startTime"]) == ("GET /orders", NOW_NS // 1000)
    assert span["references"] == [{"refType": "CHILD_OF", "traceID": trace, "spanID": parent}]
    wanted = {"span.kind": "server", "error": True, "order": 7, "http.route": "/orders"}
    assert wanted.items() <= tags_of(span).items()
    (event,) = span["logs"]
    assert {field["key"]: field["value"] for field in event["fields"]} == {
        "event": "packed", "box": "b-1",
    }  # fmt: skip
    (process,) = found["processes"].values()
    assert process["serviceName"] == "checkout"
