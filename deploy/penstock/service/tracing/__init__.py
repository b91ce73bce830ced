"""Tracing of a process's own work: which spans there are, and where they go.

Off unless the section `tracing` is there. On, OpenTelemetry's SDK makes the spans, samples them at
their start, and sends them as OTLP over HTTP to a collector's source `otlp`: through Penstock's own
pipeline. The module `spans` holds what needs the SDK, so that only a process that traces
loads it.

What is traced is what is handled at once, never a record: a batch up to its ack (collector), a turn
up to its commit and a fetch (logd), a micro-batch (router). A batch's trace id is a hash of its
producer and sequence, which every frame carries, so logd's span links to the collector's with
nothing added to the format.

Work that only moves Penstock's own spans makes no spans: `own_subjects` names the subjects that
these travel on. Where it names the wrong ones, spans of spans come: each round traces the share
`sample` of the round before, and waits for the SDK's next batch.
"""

from penstock.service.tracing.process import Tracing
from penstock.service.tracing.section import (
    OUTCOMES,
    OWN_SUBJECTS,
    SERVICES,
    TracingSection,
    address_of,
    span_metrics,
    span_of,
    trace_of,
)

__all__ = [
    "OUTCOMES",
    "OWN_SUBJECTS",
    "SERVICES",
    "Tracing",
    "TracingSection",
    "address_of",
    "span_metrics",
    "span_of",
    "trace_of",
]
