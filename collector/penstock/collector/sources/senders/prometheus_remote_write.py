"""Prometheus remote write, 1.0 and 2.0: ``POST /api/v1/write``, protobuf with Snappy.

    204  every sample is durable in the spool
    400  no such request; or some of its samples cannot be taken, and the others are durable

The headers ``X-Prometheus-Remote-Write-{Samples,Histograms,Exemplars}-Written`` say how many are,
in either case. After any other answer nothing of the request is kept.
"""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Final, Literal

from pydantic import Field
from typing_extensions import override

from penstock.base.http.server import Request, Response
from penstock.collector.decode.senders.record_maker import RecordMaker
from penstock.collector.decode.senders.remote_write import Written, point_lines
from penstock.collector.sources.network.http_receiver import (
    Handle,
    Refusal,
    RequestPath,
    check_post,
    coding_of,
    content_type,
)
from penstock.collector.sources.network.http_source import (
    AuthenticatedHttpSource,
    AuthenticatedSettings,
)
from penstock.collector.sources.network.records import RequestRecords
from penstock.collector.spool.memory_budget import Charge
from penstock.service import HostPort

_TEXT: Final = {"content-type": "text/plain; charset=utf-8"}
_PROTOBUF: Final = "application/x-protobuf"
_VERSIONS: Final = {
    "": 1,
    "prometheus.WriteRequest": 1,
    "io.prometheus.write.v2.Request": 2,
}
"""Versions by the message that the content type names."""
_PARTS: Final = ("samples", "histograms", "exemplars")


class PrometheusRemoteWriteSettings(AuthenticatedSettings):
    """Metrics as Prometheus and its agents write them to remote storage; acknowledged."""

    type: Literal["prometheus_remote_write"]
    listen: HostPort = "127.0.0.1:9201"
    path: RequestPath = Field(default="/api/v1/write", description="of requests; no other")
    service: str = Field(
        default="prometheus", min_length=1, description="of series without any of `service_labels`"
    )
    service_labels: list[str] = Field(
        default=["job"],
        max_length=32,
        description="labels that name the service; the first that a series has does",
    )


class PrometheusRemoteWriteSource(AuthenticatedHttpSource[PrometheusRemoteWriteSettings]):
    """Listens for requests, and answers each when its records are durable."""

    settings = PrometheusRemoteWriteSettings

    @override
    def find(self, request: Request) -> Handle:
        check_post(request, self.section.path, "samples")
        version = _VERSIONS.get(_message_of(request))
        if content_type(request) != _PROTOBUF or version is None:
            kinds = " or ".join(f"{_PROTOBUF};proto={name}" for name in _VERSIONS if name)
            raise Refusal(415, f"the content type is not {kinds}")
        return partial(self._take, version)

    @override
    def refuse(self, request: Request, refusal: Refusal) -> Response:
        headers = {**_TEXT, **_written(Counter())}
        return Response(refusal.status, f"{refusal.message}\n".encode(), headers)

    async def _take(self, version: int, request: Request, body: bytes, charge: Charge) -> Response:
        if "content-encoding" not in request.headers:  # both versions ask for Snappy
            body = self.receiver.inflate("snappy", body, charge)
        elif coding_of(request) == "identity":
            raise Refusal(415, "the content encoding is not snappy")
        section, written = self.section, Written()
        records = RecordMaker(self.resource, self.spool_writer.clock.unix_ns())
        lines = point_lines(
            body, version, section.service_labels, section.service, records, written
        )
        kept = await self.keep(lines, charge, records.notes)
        self.spool_writer.note("samples_refused", written.refused)
        return _answer(kept, written)


def _message_of(request: Request) -> str:
    """The message that the content type names; empty where it names none."""
    for parameter in request.headers.get("content-type", "").split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "proto":
            return value.strip().strip('"')
    return ""


def _answer(kept: RequestRecords, written: Written) -> Response:
    counts: Counter[str] = Counter()
    for index, (part, exemplars) in enumerate(written.parts):
        if index not in kept.rejected:
            counts[part] += 1
            counts["exemplars"] += exemplars
    headers = _written(counts)
    refused = written.refused + len(kept.rejected)
    if not refused:
        return Response(204, b"", headers)
    reason = written.reason or f"in quarantine: {next(iter(kept.rejected.values()))}"
    total = written.refused + len(written.parts)
    message = f"{refused} of {total} samples and histograms are refused, the first: {reason}\n"
    return Response(400, message.encode(), {**_TEXT, **headers})


def _written(counts: Mapping[str, int]) -> dict[str, str]:
    return {f"x-prometheus-remote-write-{part}-written": str(counts[part]) for part in _PARTS}
