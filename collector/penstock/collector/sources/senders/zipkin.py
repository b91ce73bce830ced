"""Zipkin's collector: ``POST /api/v2/spans`` in JSON; ``GET /health`` needs no token.

202 means that every span is durable in the spool. A refusal is text, as those of Zipkin are, and
nothing of its request is kept.
"""

from collections.abc import Mapping
from typing import Final, Literal

from pydantic import Field
from typing_extensions import override

from penstock.base.http.server import Request, Response
from penstock.collector.decode.senders.record_maker import RecordMaker
from penstock.collector.decode.senders.zipkin import span_lines
from penstock.collector.sources.network.http_receiver import (
    Handle,
    Refusal,
    content_type,
    json_response,
)
from penstock.collector.sources.network.http_source import AuthenticatedSettings, RoutedHttpSource
from penstock.collector.spool.memory_budget import Charge
from penstock.service import HostPort

_JSON: Final = "application/json"


class ZipkinSettings(AuthenticatedSettings):
    """Spans as Zipkin's reporters send them (v2, JSON); acknowledged."""

    type: Literal["zipkin"]
    listen: HostPort = "127.0.0.1:9411"
    service: str = Field(
        default="zipkin", min_length=1, description="of spans whose local endpoint names none"
    )


class ZipkinSource(RoutedHttpSource[ZipkinSettings]):
    """Listens for requests, and answers each when its records are durable."""

    settings = ZipkinSettings
    open_requests = frozenset({("GET", "/health")})

    @override
    def routes(self) -> Mapping[str, Mapping[str, Handle]]:
        return {"/api/v2/spans": {"POST": self._take}, "/health": {"GET": _say_healthy}}

    async def _take(self, request: Request, body: bytes, charge: Charge) -> Response:
        kind = content_type(request) or _JSON  # Zipkin's own default
        if kind != _JSON:
            raise Refusal(415, f"content-type {kind!r} is not {_JSON}")
        records = RecordMaker(self.resource, self.spool_writer.clock.unix_ns())
        await self.keep(span_lines(body, self.section.service, records), charge, records.notes)
        return Response(202)


async def _say_healthy(_: Request, __: bytes, ___: Charge) -> Response:
    return json_response(200, {"status": "UP"})
