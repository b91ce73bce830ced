"""Grafana Loki's push API: ``POST /loki/api/v1/push`` in JSON, or in protobuf with Snappy.

204 means that every record is durable in the spool. A refusal is text, as Loki's are, and nothing
of its request is kept. ``GET /ready`` needs no token.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal

from pydantic import Field
from typing_extensions import override

from penstock.base.http.server import Request, Response
from penstock.collector.decode.senders.loki import json_lines, protobuf_lines
from penstock.collector.decode.senders.record_maker import RecordMaker
from penstock.collector.decode.shapes import Made
from penstock.collector.sources.network.http_receiver import (
    Handle,
    Refusal,
    coding_of,
    content_type,
)
from penstock.collector.sources.network.http_source import AuthenticatedSettings, RoutedHttpSource
from penstock.collector.spool.memory_budget import Charge
from penstock.service import HostPort

_TEXT: Final = {"content-type": "text/plain; charset=utf-8"}
_PROTOBUF: Final = "application/x-protobuf"
_TENANT: Final = "x-scope-orgid"
_DECODERS: Final[Mapping[str, Callable[..., Iterator[Made]]]] = {
    "application/json": json_lines,
    _PROTOBUF: protobuf_lines,
}


class LokiSettings(AuthenticatedSettings):
    """Log lines as Grafana Loki's agents push them; acknowledged."""

    type: Literal["loki"]
    listen: HostPort = "127.0.0.1:3100"
    service: str = Field(
        default="loki", min_length=1, description="of streams without any of `service_labels`"
    )
    service_labels: list[str] = Field(
        default=["service_name", "service", "app", "job"],
        max_length=32,
        description="labels that name the service; the first that a stream has does",
    )


class LokiSource(RoutedHttpSource[LokiSettings]):
    """Listens for pushes, and answers each when its records are durable."""

    settings = LokiSettings
    open_requests = frozenset({("GET", "/ready")})

    @override
    def routes(self) -> Mapping[str, Mapping[str, Handle]]:
        return {"/loki/api/v1/push": {"POST": self._take}, "/ready": {"GET": _say_ready}}

    async def _take(self, request: Request, body: bytes, charge: Charge) -> Response:
        kind = content_type(request)
        decode = _DECODERS.get(kind)
        if decode is None:
            raise Refusal(415, f"content-type {kind!r} is not application/json or {_PROTOBUF}")
        if kind == _PROTOBUF and coding_of(request) == "identity":  # agents do not say it
            body = self.receiver.inflate("snappy", body, charge)
        records = RecordMaker(self.resource, self.spool_writer.clock.unix_ns())
        tenant = request.headers.get(_TENANT, "")
        added = {"loki.tenant": tenant} if tenant else {}
        section = self.section
        lines = decode(body, section.service_labels, section.service, added, records)
        await self.keep(lines, charge, records.notes)
        return Response(204)


async def _say_ready(_: Request, __: bytes, ___: Charge) -> Response:
    return Response(200, b"ready\n", _TEXT)
