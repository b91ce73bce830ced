"""Records by HTTP: a JSON value, lines of JSON, or lines of text; acknowledged.

``POST`` to `path`; the content type says what the body is:

application/json                            an object is a record, an array has one an element
application/x-ndjson, -jsonl, application/ndjson   each line is a JSON value and a record
text/plain                                  each line is a record

200 ``{"accepted": 3}`` means that all records are durable in the spool. Any other status means that
none of them is kept, and its body is ``{"error": "…"}``.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final, Literal

import orjson
from pydantic import Field
from typing_extensions import override

from penstock.base.http.server import Request, Response
from penstock.collector.limits import LINE_BYTES_MAX
from penstock.collector.sources.line_framing import Line
from penstock.collector.sources.network.http_receiver import (
    Handle,
    Refusal,
    RequestPath,
    check_post,
    content_type,
)
from penstock.collector.sources.network.http_source import (
    AuthenticatedHttpSource,
    AuthenticatedSettings,
    count_query,
)
from penstock.collector.sources.settings import LinesSettings
from penstock.collector.spool.memory_budget import Charge
from penstock.collector.spool.writer import payload_of_lines
from penstock.service import HostPort

_JSON: Final = {"content-type": "application/json"}
_CHARSETS: Final = ("utf-8", "utf8", "us-ascii")


class HttpSettings(AuthenticatedSettings, LinesSettings):
    """Records as JSON, lines of JSON or text, sent by HTTP; acknowledged."""

    type: Literal["http"]
    listen: HostPort = "127.0.0.1:8080"
    path: RequestPath = Field(default="/", description="of requests; no other")
    service: str = Field(default="http", min_length=1)


class HttpSource(AuthenticatedHttpSource[HttpSettings]):
    """Listens for requests, and answers each when its records are durable."""

    settings = HttpSettings

    @override
    def find(self, request: Request) -> Handle:
        check_post(request, self.section.path, "records")
        return self._take

    @override
    def refuse(self, request: Request, refusal: Refusal) -> Response:
        return Response(refusal.status, orjson.dumps({"error": refusal.message}), _JSON)

    async def _take(self, request: Request, body: bytes, charge: Charge) -> Response:
        lines = self._lines(content_type(request), body)
        if lines:
            payload = payload_of_lines(
                [Line(line, 0) for line in lines],
                service=self.section.service,
                rules=self.section.line_options(),
            )
            await self.receiver.persist(payload, charge)
        notes = Counter[str]()
        count_query(request, notes)
        notes["charsets_ignored"] += _names_other_charset(request)
        self.count(notes)
        return Response(200, orjson.dumps({"accepted": len(lines)}), _JSON)

    def _lines(self, kind: str, body: bytes) -> list[bytes]:
        """The records of a body, one a line.

        Raises:
            Refusal: It is not of its content type, or a record is too large.
        """
        decode = _DECODERS.get(kind)
        if decode is None:
            raise Refusal(415, f"content-type {kind!r} is none of {', '.join(_DECODERS)}")
        try:
            lines = decode(body)
        except ValueError as error:
            raise self.receiver.malformed(str(error)) from None
        for index, line in enumerate(lines):
            if len(line) > LINE_BYTES_MAX:
                text = f"record {index} is above {LINE_BYTES_MAX} bytes"
                raise self.receiver.malformed(text, 413)
        return lines


def _names_other_charset(request: Request) -> bool:
    """Return whether a content type names a character set other than the one that is read."""
    for parameter in request.headers.get("content-type", "").split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip('"').lower() not in _CHARSETS
    return False


def _values(body: bytes) -> list[bytes]:
    value = orjson.loads(body)
    return [orjson.dumps(one) for one in (value if isinstance(value, list) else [value])]


def _json_lines(body: bytes) -> list[bytes]:
    lines = _text_lines(body)
    for index, line in enumerate(lines):
        try:
            orjson.loads(line)
        except ValueError as error:
            msg = f"record {index}: {error}"
            raise ValueError(msg) from None
    return lines


def _text_lines(body: bytes) -> list[bytes]:
    return [line for line in (one.removesuffix(b"\r") for one in body.split(b"\n")) if line]


_DECODERS: Final[dict[str, Callable[[bytes], list[bytes]]]] = {
    "application/json": _values,
    "application/ndjson": _json_lines,
    "application/x-ndjson": _json_lines,
    "application/jsonl": _json_lines,
    "text/plain": _text_lines,
}
