"""Spans and metrics by OpenTelemetry's own API, records by Penstock; `setup` connects them.

Logs within a span carry its ids. Printed, shortened:

    {"schema":"log/1.0",…,"trace_id":"4bf9…","span_id":"00f0…",…,"body":"working",…}
    {"schema":"span/1.0",…,"name":"work",…}
    {"schema":"metric/1.1",…,"name":"jobs",…}
"""

from opentelemetry import metrics, trace

from penstock import specs
from penstock.specs.otel import exporter

specs.setup("worker", version="1.0.0", environment="example")
jobs = metrics.get_meter("example").create_counter("jobs", "{job}")

with trace.get_tracer("example").start_as_current_span("work"):
    specs.log().info("working")
    jobs.add(1, {"job.kind": "demo"})

exporter.shutdown()
