"""The source zipkin with OpenTelemetry's exporter for it, to the log."""

from pathlib import Path

import pytest
from opentelemetry.exporter.zipkin.json import ZipkinExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode

from tests.support.collecting import collecting, endpoint, records
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live


def test_opentelemetrys_exporter_for_zipkin(tmp_path: Path, nats_url: str) -> None:
    source = {"type": "zipkin", "listen": "127.0.0.1:0"}
    with collecting(tmp_path, nats_url, source) as (logd, collector):
        exporter = ZipkinExporter(endpoint=f"http://{endpoint(collector, 'zipkin')}/api/v2/spans")
        provider = TracerProvider(resource=Resource.create({"service.name": "shop"}))
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        tracer = provider.get_tracer("till")
        with tracer.start_as_current_span("sale", kind=SpanKind.SERVER) as sale:
            with tracer.start_as_current_span("pay") as pay:
                pay.set_status(Status(StatusCode.ERROR, "declined"))
                pay.set_attribute("amount", 2.5)
            sale.add_event("refused", {"lane": 7})
        provider.shutdown()
        wait_until(lambda: len(records(logd, "traces")) == 2)
        found = {one["name"]: one for one in records(logd, "traces")}
        parent, child = found["sale"], found["pay"]
        context = sale.get_span_context()
        assert parent["trace_id"] == child["trace_id"] == f"{context.trace_id:032x}"
        assert child["parent_span_id"] == parent["span_id"] == f"{context.span_id:016x}"
        assert (parent["span_kind"], parent["status_code"]) == ("SERVER", "UNSET")
        assert (child["status_code"], child["status_message"]) == ("ERROR", "declined")
        assert child["attributes"]["amount"] == "2.5"
        assert parent["events"][0]["name"].startswith('{"refused"')
        assert {one["scope"] for one in found.values()} == {"till"}
        assert {one["resource"]["service.name"] for one in found.values()} == {"shop"}
