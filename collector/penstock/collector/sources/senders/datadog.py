"""Datadog's intake: logs, and series of metrics.

    POST /api/v2/logs, /v1/input, /v1/input/KEY    logs as JSON, or lines of text
    POST /api/v2/series                            metrics as JSON, or as protobuf
    GET  /api/v1/validate                          whether the key is the one that is asked for

202 (200 of ``/v1/input``) means that every record is durable in the spool. Refusals are Datadog's:
``{"errors": [...]}``, and nothing of the request is kept.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, Literal

from pydantic import Field
from typing_extensions import override

from penstock.base.http.server import Request, Response
from penstock.collector.decode.senders.datadog import (
    json_points,
    log_lines,
    protobuf_points,
    text_lines,
)
from penstock.collector.decode.senders.record_maker import RecordMaker, query_of
from penstock.collector.sources.network.http_receiver import (
    Handle,
    Refusal,
    Routes,
    content_type,
    is_secret,
    json_response,
)
from penstock.collector.sources.network.http_source import HttpListenSettings, HttpRequestSource
from penstock.collector.sources.settings import Section
from penstock.collector.spool.memory_budget import Charge
from penstock.collector.spool.writer import SpoolWriter
from penstock.service import FilePath, HostPort

_LOGS: Final = "/api/v2/logs"
_INPUT: Final = "/v1/input"
_JSON: Final = "application/json"
_PROTOBUF: Final = "application/x-protobuf"


class DatadogAuth(Section):
    """The API key that senders show."""

    api_key_file: FilePath = Field(description="the key; read again at each request")

    @property
    def token_file(self) -> FilePath:
        return self.api_key_file

    def check(self, request: Request) -> None:
        """Return when a request shows the key, in its header, its query or its path.

        Raises:
            Refusal: It does not.
            OSError: The file cannot be read now.
        """
        expected = self.api_key_file.read_text().strip()
        asked = query_of(request.query)
        shown = (
            request.headers.get("dd-api-key")
            or asked.get("dd-api-key")
            or asked.get("api_key")
            or _key_in(request.path)
        )
        if not is_secret(shown, expected):
            raise Refusal(403, "Forbidden")


class DatadogSettings(HttpListenSettings):
    """Logs and metrics as Datadog's agent and clients send them; acknowledged."""

    type: Literal["datadog"]
    listen: HostPort = "127.0.0.1:8282"
    auth: DatadogAuth | None = Field(default=None, description="null: every sender may send")
    service: str = Field(
        default="datadog", min_length=1, description="of logs and series that name none"
    )


class DatadogSource(HttpRequestSource):
    """Listens for requests, and answers each when its records are durable."""

    settings = DatadogSettings

    def __init__(
        self, section: DatadogSettings, resource: Mapping[str, Any], *, spool_writer: SpoolWriter
    ) -> None:
        super().__init__(section, resource, spool_writer=spool_writer, auth=section.auth)
        self._service = section.service
        self._routes = Routes(
            {
                _LOGS: {"POST": self._take_logs},
                _INPUT: {"POST": self._take_logs},
                "/api/v2/series": {"POST": self._take_series},
                "/api/v1/validate": {"GET": _say_valid},
            }
        )

    @override
    def find(self, request: Request) -> Handle:
        if request.method == "POST" and _key_in(request.path):
            return self._take_logs
        return self._routes(request)

    @override
    def refuse(self, request: Request, refusal: Refusal) -> Response:
        errors: list[Any] = [refusal.message]
        if request.path.startswith(_LOGS):
            status = HTTPStatus(refusal.status)
            title, number = status.phrase, str(status.value)
            errors = [{"status": number, "title": title, "detail": refusal.message}]
        return json_response(refusal.status, {"errors": errors})

    async def _take_logs(self, request: Request, body: bytes, charge: Charge) -> Response:
        kind, asked = content_type(request), query_of(request.query)
        decode = {_JSON: log_lines, "text/plain": text_lines}.get(kind)
        if decode is None:
            raise Refusal(415, f"content-type {kind!r} is not {_JSON} or text/plain")
        records = RecordMaker(self.resource, self.spool_writer.clock.unix_ns())
        await self.keep(decode(body, asked, self._service, records), charge, records.notes)
        return json_response(202 if request.path.startswith(_LOGS) else 200, {})

    async def _take_series(self, request: Request, body: bytes, charge: Charge) -> Response:
        kind = content_type(request)
        decode = {_JSON: json_points, _PROTOBUF: protobuf_points}.get(kind)
        if decode is None:
            raise Refusal(415, f"content-type {kind!r} is not {_JSON} or {_PROTOBUF}")
        records = RecordMaker(self.resource, self.spool_writer.clock.unix_ns())
        await self.keep(decode(body, self._service, records), charge, records.notes)
        return json_response(202, {"errors": []})


def _key_in(path: str) -> str:
    """The key that stands in a path, as old senders of logs have it."""
    return path.removeprefix(f"{_INPUT}/") if path.startswith(f"{_INPUT}/") else ""


async def _say_valid(_: Request, __: bytes, ___: Charge) -> Response:
    return json_response(200, {"valid": True})
