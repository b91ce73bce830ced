"""Splunk's HTTP Event Collector: events, raw lines, indexer acknowledgement, health.

    POST /services/collector, /services/collector/event    JSON objects one after the other
    POST /services/collector/raw                           lines of text
    POST /services/collector/ack                           which requests are durable
    GET  /services/collector/health                        needs no token

``/1.0`` may stand behind each but the ack's. A request is answered when its records are durable, so
an acknowledgement that is asked for later says what was true already; ids count from 0 in each
channel, and a channel that was not used for longest is forgotten. Refusals are Splunk's:
``{"text": …, "code": …, "invalid-event-number": …}``, with `reason` beside it; no event of a
refused request is kept. Pressure is 503 with code 9.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import Field
from typing_extensions import override

from penstock.base.http.server import Request, Response
from penstock.collector.decode.senders.record_maker import RecordMaker, query_of, read_json
from penstock.collector.decode.senders.splunk_hec import (
    HecCode,
    HecFormatError,
    HecSettings,
    event_lines,
    raw_lines,
)
from penstock.collector.errors import RemoteProtocolError
from penstock.collector.sources.network.http_receiver import (
    Handle,
    Refusal,
    Routes,
    basic_pair,
    is_secret,
    json_response,
    shown_by,
)
from penstock.collector.sources.network.http_source import HttpListenSettings, HttpRequestSource
from penstock.collector.sources.settings import Section
from penstock.collector.spool.memory_budget import Charge
from penstock.collector.spool.writer import SpoolWriter
from penstock.service import FilePath, HostPort

_TEXTS: Final = {
    HecCode.SUCCESS: "Success",
    HecCode.TOKEN_REQUIRED: "Token is required",
    HecCode.INVALID_AUTHORIZATION: "Invalid authorization",
    HecCode.INVALID_TOKEN: "Invalid token",
    HecCode.NO_DATA: "No data",
    HecCode.INVALID_DATA_FORMAT: "Invalid data format",
    HecCode.SERVER_BUSY: "Server is busy",
    HecCode.CHANNEL_MISSING: "Data channel is missing",
    HecCode.CHANNEL_INVALID: "Invalid data channel",
    HecCode.EVENT_REQUIRED: "Event field is required",
    HecCode.EVENT_BLANK: "Event field cannot be blank",
    HecCode.ACK_DISABLED: "ACK is disabled",
    HecCode.INDEXED_FIELDS: "Error in handling indexed fields",
    HecCode.QUERY_STRING_DISABLED: "Query string authorization is not enabled",
    HecCode.HEALTHY: "HEC is healthy",
    HecCode.QUEUES_FULL: "HEC is unhealthy, queues are full",
    HecCode.TOO_LARGE: "Request entity too large",
}
_CODES: Final = {
    400: HecCode.INVALID_DATA_FORMAT,
    413: HecCode.TOO_LARGE,
    415: HecCode.INVALID_DATA_FORMAT,
    429: HecCode.SERVER_BUSY,
    503: HecCode.SERVER_BUSY,
}
"""Codes of refusals that every source makes, by their status."""
_HOME: Final = "/services/collector"
_HEALTH: Final = (f"{_HOME}/health", f"{_HOME}/health/1.0")
_EVENTS: Final = (_HOME, f"{_HOME}/event", f"{_HOME}/event/1.0")
_RAW: Final = (f"{_HOME}/raw", f"{_HOME}/raw/1.0")
_CHANNEL: Final = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_OPEN: Final = {("GET", path) for path in _HEALTH} | {("OPTIONS", path) for path in _EVENTS}


class HecAuth(Section):
    """The token that senders show, as ``Splunk TOKEN`` or as the password of Basic."""

    token_file: FilePath = Field(description="the token; read again at each request")
    query_string: bool = Field(
        default=False, description="`?token=` counts, too, which proxies write into their logs"
    )

    def check(self, request: Request) -> None:
        """Return when a request shows the token.

        Raises:
            Refusal: It does not.
            OSError: The file cannot be read now.
        """
        expected = self.token_file.read_text().strip()
        scheme, value = shown_by(request)
        if scheme == "splunk":
            shown = value
        elif scheme == "basic":
            shown = basic_pair(value).partition(":")[2]
        elif scheme:
            raise HecRefusal(401, HecCode.INVALID_AUTHORIZATION, f"the scheme {scheme[:20]!r}")
        else:
            shown = query_of(request.query).get("token", "")
            if not shown:
                raise HecRefusal(401, HecCode.TOKEN_REQUIRED, "no token", www_authenticate="Splunk")
            if not self.query_string:
                raise HecRefusal(400, HecCode.QUERY_STRING_DISABLED, "set `auth.query_string`")
        if not is_secret(shown, expected):
            raise HecRefusal(403, HecCode.INVALID_TOKEN, "another token")


class SplunkHecSettings(HttpListenSettings):
    """Events and lines as Splunk's HTTP Event Collector takes them; acknowledged."""

    type: Literal["splunk_hec"]
    listen: HostPort = "127.0.0.1:8088"
    auth: HecAuth | None = Field(default=None, description="null: every sender may send")
    service: str = Field(
        default="from_sourcetype",
        min_length=1,
        description="a name, or `from_source`, `from_sourcetype`, `from_index`",
    )
    acknowledgement: bool = Field(
        default=False, description="indexer acknowledgement: senders must name their channel"
    )
    max_channels: int = Field(
        default=10_000, ge=1, le=1_000_000, description="whose acknowledgements can be asked for"
    )

    @property
    @override
    def can_be_shared(self) -> bool:
        return not self.acknowledgement  # a channel is known to one process


class HecRefusal(Refusal):
    """A refusal with a code of Splunk's.

    Attributes:
        event: The first event that is wrong; None where none is.
    """

    def __init__(
        self,
        status: int,
        code: HecCode,
        message: str,
        event: int | None = None,
        **headers: str,
    ) -> None:
        super().__init__(status, message, **headers)
        self.code = code
        self.event = event


class SplunkHecSource(HttpRequestSource):
    """Listens for requests, and answers each when its records are durable."""

    settings = SplunkHecSettings

    def __init__(
        self, section: SplunkHecSettings, resource: Mapping[str, Any], *, spool_writer: SpoolWriter
    ) -> None:
        super().__init__(
            section, resource, spool_writer=spool_writer, auth=section.auth, open_requests=_OPEN
        )
        self._section = section
        self._next_ids: OrderedDict[str, int] = OrderedDict()
        self._routes = Routes(
            {path: {"POST": self._take_events, "OPTIONS": _say_yes} for path in _EVENTS}
            | {path: {"POST": self._take_raw} for path in _RAW}
            | {path: {"GET": self._say_health} for path in _HEALTH}
            | {f"{_HOME}/ack": {"POST": self._say_acks}}
        )

    @override
    def find(self, request: Request) -> Handle:
        return self._routes(request)

    @override
    def refuse(self, request: Request, refusal: Refusal) -> Response:
        code, event = _CODES.get(refusal.status), None
        if isinstance(refusal, HecRefusal):
            code, event = refusal.code, refusal.event
        if code is None:  # no such path or method
            return json_response(refusal.status, {"text": refusal.message, "code": refusal.status})
        said: dict[str, Any] = {"text": _TEXTS[code], "code": code}
        if event is not None:
            said["invalid-event-number"] = event
        status = 503 if code is HecCode.SERVER_BUSY else refusal.status
        return json_response(status, {**said, "reason": refusal.message})

    @override
    def unreadable(self, error: RemoteProtocolError) -> Refusal:
        counted = super().unreadable(error)
        if isinstance(error, HecFormatError):
            return HecRefusal(400, error.code, counted.message, error.event)
        return counted

    # What requests ask for.

    async def _take_events(self, request: Request, body: bytes, charge: Charge) -> Response:
        channel, asked = self._channel(request), query_of(request.query)
        records = RecordMaker(self.resource, self.spool_writer.clock.unix_ns())
        lines = event_lines(body, self._settings_of(asked), records)
        await self.keep(lines, charge, records.notes)
        return self._accept(channel)

    async def _take_raw(self, request: Request, body: bytes, charge: Charge) -> Response:
        channel, asked = self._channel(request), query_of(request.query)
        records = RecordMaker(self.resource, self.spool_writer.clock.unix_ns())
        lines = raw_lines(body, self._settings_of(asked), records, asked.get("time"))
        await self.keep(lines, charge, records.notes)
        return self._accept(channel)

    def _settings_of(self, asked: Mapping[str, str]) -> HecSettings:
        names = ("host", "source", "sourcetype", "index")
        return HecSettings(
            self._section.service, {key: asked[key] for key in names if key in asked}
        )

    def _accept(self, channel: str) -> Response:
        said: dict[str, Any] = {"text": _TEXTS[HecCode.SUCCESS], "code": HecCode.SUCCESS}
        if self._section.acknowledgement:
            said["ackId"] = self._next_ids.pop(channel, 0)
            self._next_ids[channel] = said["ackId"] + 1
            if len(self._next_ids) > self._section.max_channels:
                self._next_ids.popitem(last=False)
                self.spool_writer.note("channels_forgotten")
        return json_response(200, said)

    def _channel(self, request: Request) -> str:
        """The channel of a request, which acknowledgements need.

        Raises:
            HecRefusal: There is none, or it is no GUID.
        """
        if not self._section.acknowledgement:
            return ""
        channel = request.headers.get("x-splunk-request-channel") or query_of(request.query).get(
            "channel", ""
        )
        if not channel:
            raise HecRefusal(400, HecCode.CHANNEL_MISSING, "X-Splunk-Request-Channel is missing")
        if _CHANNEL.fullmatch(channel) is None:
            raise HecRefusal(400, HecCode.CHANNEL_INVALID, "a channel is a GUID")
        return channel.lower()

    async def _say_acks(self, request: Request, body: bytes, _: Charge) -> Response:
        if not self._section.acknowledgement:
            raise HecRefusal(400, HecCode.ACK_DISABLED, "set `acknowledgement`")
        channel, asked = self._channel(request), read_json(body)
        wanted = asked.get("acks") if isinstance(asked, dict) else None
        if not isinstance(wanted, list) or not all(type(one) is int for one in wanted):
            raise HecRefusal(400, HecCode.INVALID_DATA_FORMAT, '{"acks": [0, 1]} is expected')
        end = self._next_ids.get(channel, 0)
        return json_response(200, {"acks": {str(one): 0 <= one < end for one in wanted}})

    async def _say_health(self, _: Request, __: bytes, ___: Charge) -> Response:
        is_free = self.spool_writer.share.is_within
        code = HecCode.HEALTHY if is_free else HecCode.QUEUES_FULL
        return json_response(200 if is_free else 503, {"text": _TEXTS[code], "code": code})


async def _say_yes(_: Request, __: bytes, ___: Charge) -> Response:
    """Docker's driver asks so whether there is a collector, before it sends."""
    return Response(200)
