"""Records by HTTP: a JSON value, lines of JSON, or lines of text; acknowledged.

``POST`` to `path`; the content type says what the body is:

application/json                            an object is a record, an array has one an element
application/x-ndjson, -jsonl, application/ndjson   each line is a JSON value and a record
text/plain                                  each line is a record

200 ``{"accepted": 3}`` means that all records are durable in the spool. Any other status means that
none of them is kept, and its body is ``{"error": "…"}``.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Literal, Self

import orjson
from pydantic import Field
from typing_extensions import override

from penstock.base.http.server import Request, Response
from penstock.collector.limits import KIB, LINE_BYTES_MAX, MIB
from penstock.collector.sources.line_framing import Line
from penstock.collector.sources.network.http_receiver import HttpReceiver, Refusal, SenderAuth
from penstock.collector.sources.network.listener import Listener
from penstock.collector.sources.network.tls import ServerTls
from penstock.collector.sources.settings import (
    REUSE_PORT,
    LinesSettings,
    ListeningSettings,
    TlsSection,
)
from penstock.collector.sources.source import Source, SourceContext
from penstock.collector.spool.memory_budget import Charge
from penstock.collector.spool.writer import SpoolWriter, payload_of_lines
from penstock.service import HostPort

_JSON: Final = {"content-type": "application/json"}


class HttpSettings(ListeningSettings, LinesSettings):
    """Records as JSON, lines of JSON or text, sent by HTTP; acknowledged."""

    type: Literal["http"]
    listen: HostPort = "127.0.0.1:8080"
    path: str = Field(default="/", pattern=r"^/[^?#\s]*$", description="of requests; no other")
    service: str = Field(default="http", min_length=1)
    reuse_port: bool = Field(default=False, description=REUSE_PORT)
    tls: TlsSection | None = None
    auth: SenderAuth | None = Field(default=None, description="null: every sender may send")
    max_message_bytes: int = Field(
        default=4 * MIB, ge=KIB, le=64 * MIB, description="a body, also after decompression"
    )

    @property
    @override
    def can_be_shared(self) -> bool:
        return True

    @property
    @override
    def max_request_bytes(self) -> int:
        return self.max_message_bytes


class HttpSource(Source):
    """Listens for requests, and answers each when its records are durable."""

    settings = HttpSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: SourceContext) -> Self:
        return cls(settings, spool_writer=context.spool_writer())

    def __init__(self, section: HttpSettings, *, spool_writer: SpoolWriter) -> None:
        self.name = spool_writer.source
        self._section = section
        self._spool_writer = spool_writer
        self._receiver = HttpReceiver(
            self._take,
            _refused,
            spool_writer,
            body_bytes_max=section.max_message_bytes,
            auth=section.auth,
        )
        self._listener = Listener(
            self.name,
            self._receiver.serve,
            max_connections=section.max_connections,
            note=spool_writer.note,
            descriptors=spool_writer.share.descriptors,
        )

    # Decoding.

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
            raise self._receiver.malformed(str(error)) from None
        for index, line in enumerate(lines):
            if len(line) > LINE_BYTES_MAX:
                text = f"record {index} is above {LINE_BYTES_MAX} bytes"
                raise self._receiver.malformed(text, 413)
        return lines

    # Running.

    @property
    @override
    def endpoint(self) -> str | None:
        return self._listener.endpoint

    @override
    async def start(self) -> None:
        section = self._section
        tls = ServerTls.of(section.tls, self.name, self._spool_writer.note)
        await self._listener.listen_tcp(
            section.listen,
            tls.context if tls else None,
            key="listen",
            reuse_port=section.reuse_port,
        )

    @override
    async def run(self) -> None:
        await asyncio.Event().wait()

    @override
    async def stop(self) -> None:
        await self._listener.close()

    async def _take(self, request: Request, body: bytes, charge: Charge) -> Response:
        if request.path != self._section.path:
            raise Refusal(404, f"records are taken at {self._section.path}")
        if request.method != "POST":
            raise Refusal(405, "use POST", allow="POST")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        lines = self._lines(kind, body)
        if lines:
            payload = payload_of_lines(
                [Line(line, 0) for line in lines],
                service=self._section.service,
                rules=self._section.line_options(),
            )
            await self._receiver.persist(payload, charge)
        return Response(200, orjson.dumps({"accepted": len(lines)}), _JSON)


def _refused(refusal: Refusal) -> Response:
    return Response(refusal.status, orjson.dumps({"error": refusal.message}), _JSON)


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
