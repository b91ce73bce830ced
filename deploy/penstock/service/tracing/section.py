"""The section `tracing`, the ids of a batch's spans, and the metrics of spans."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from penstock.base.lazy_module import LazyModule
from penstock.service.config_types import FilePath, Form

if TYPE_CHECKING:
    from prometheus_client import core
else:
    core = LazyModule("prometheus_client.core")  # only a scrape needs it

OUTCOMES: Final = ("sent", "failed")
"""Ends of spans: the collector took them, or the SDK gave up after its own retries."""

SERVICES: Final = {part: f"penstock.{part}" for part in ("collector", "logd", "router", "console")}
"""`service.name` of each process's spans."""

OWN_SUBJECTS: Final = tuple(
    f"telemetry.traces.{name.replace('.', '_')}" for name in SERVICES.values()
)
"""Subjects on which a collector publishes them by default."""


def address_of(endpoint: str) -> tuple[str, int]:
    """The host and the port of an endpoint.

    Raises:
        ValueError: It has none that could be asked.
    """
    parts = urlsplit(endpoint)
    if parts.path or parts.query or parts.fragment:
        msg = f"{endpoint}: nothing may follow HOST:PORT"
        raise ValueError(msg)
    if not parts.hostname:
        msg = f"{endpoint}: there is no host; it is http://HOST:PORT or https://HOST:PORT"
        raise ValueError(msg)
    parts.hostname.encode("idna")
    port = parts.port
    if port == 0:
        msg = f"{endpoint}: Port 0 is none"
        raise ValueError(msg)
    return parts.hostname, port or (443 if parts.scheme == "https" else 80)


class TracingSection(BaseModel):
    """The section `tracing` of a part's configuration.

    Attributes:
        enabled: False switches tracing off, as without the section.
        endpoint: OTLP over HTTP: a collector's source `otlp`, as in http://127.0.0.1:4318.
        ca_file: PEM file with the authorities to trust instead of the system's.
        sample: The share of the work that is traced.
        max_queue_size: Ended spans that may wait to be sent; more are dropped.
        own_subjects: Subjects on which the collectors publish Penstock's own spans.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = True
    endpoint: Annotated[
        str, Form(r"^https?://[^\s/@]+$", "a URL without path and user, as http://HOST:PORT")
    ]
    ca_file: FilePath | None = None
    sample: Annotated[float, Field(ge=0, le=1)] = 0.01
    max_queue_size: Annotated[int, Field(ge=1, le=65_536)] = 2048
    own_subjects: tuple[Annotated[str, Field(min_length=1, max_length=512)], ...] = OWN_SUBJECTS

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str) -> str:
        address_of(endpoint)
        return endpoint


def trace_of(producer: bytes, sequence: int) -> int:
    """The id of a batch's trace, the same in each process that knows its producer and sequence."""
    digest = hashlib.blake2b(producer + sequence.to_bytes(8, "big"), digest_size=16).digest()
    return int.from_bytes(digest, "big") or 1


def span_of(trace_id: int) -> int:
    """The id of the span with which a batch's trace begins."""
    return trace_id >> 64 or 1


def span_metrics(process: str, counts: Mapping[str, int]) -> Iterable["core.Metric"]:
    """Return Prometheus counts of a process's spans; without `counts`, nothing is traced."""
    spans = core.CounterMetricFamily(
        f"penstock_{process}_spans",
        "Spans of the process's own work that ended, by outcome.",
        labels=["outcome"],
    )
    unsent = core.GaugeMetricFamily(
        f"penstock_{process}_spans_unsent",
        "Ended spans that wait to be sent or that the full queue dropped.",
    )
    for name in OUTCOMES if counts else ():
        spans.add_metric([name], counts.get(name, 0))
    if counts:
        unsent.add_metric([], counts.get("unsent", 0))
    return spans, unsent
