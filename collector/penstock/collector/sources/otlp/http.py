"""OTLP over HTTP: ``POST /v1/logs``, ``/v1/traces``, ``/v1/metrics``, answered in kind.

A slash may stand behind the path. The body may be compressed with any of `INFLATE`. Pages of the
origins that `cors` allows may send, too: their browser asks first, by OPTIONS.

200  taken, perhaps in part         400  not such a request: never send it again
404  another path                   405  another method
413  larger than allowed            415  a content type or encoding that is not known
429  too much is being received     503  no room in the spool

After the last two it is to be sent again, `Retry-After` so many seconds.
"""

import asyncio
from functools import partial
from typing import Final

from penstock.base.http.server import (
    MalformedRequestError,
    Request,
    RequestLimits,
    Response,
    Unread,
    serve_http,
)
from penstock.collector.decode.otlp.messages import SIGNALS, Encoding, encode_status
from penstock.collector.decompression import ExpandsTooFarError
from penstock.collector.errors import UndecodableError
from penstock.collector.limits import HTTP_HEAD_BYTES_MAX, HTTP_LINGER_S, REQUEST_TIMEOUT_S
from penstock.collector.sources.network.http_receiver import CODINGS, INFLATE
from penstock.collector.sources.otlp.response import Answer, Code, Take, come_again
from penstock.collector.sources.otlp.settings import CorsSection
from penstock.collector.spool.memory_budget import Charge
from penstock.collector.spool.writer import SpoolWriter

_PATHS: Final = {f"/v1/{signal.name}": signal for signal in SIGNALS}
_STATUS: Final = {
    Code.OK: 200,
    Code.INVALID_ARGUMENT: 400,
    Code.RESOURCE_EXHAUSTED: 413,
    Code.UNAVAILABLE: 503,
}


class OtlpHttp:
    """Serves connections for one source.

    Args:
        take: Makes a request's records durable, or says why not.
        body_bytes_max: Bound of a request's body, before and after decompression.
        cors: Whose pages may send; None: nobody's.
    """

    def __init__(
        self,
        take: Take,
        spool_writer: SpoolWriter,
        *,
        body_bytes_max: int,
        cors: CorsSection | None = None,
    ) -> None:
        self._take = take
        self._spool_writer = spool_writer
        self._body_bytes_max = body_bytes_max
        self._cors = cors
        self._limits = RequestLimits(
            body_bytes_max,
            HTTP_HEAD_BYTES_MAX,
            request_s=REQUEST_TIMEOUT_S,
            first_byte_s=REQUEST_TIMEOUT_S,
            linger_s=HTTP_LINGER_S,
        )

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        try:
            account = partial(Charge, self._spool_writer.share)
            await serve_http(reader, writer, self.answer, self._limits, account)
        except MalformedRequestError as error:
            self._spool_writer.note("protocol_errors")
            self._spool_writer.log.warning("protocol_error", error=str(error))

    async def answer(self, request: Request, charge: Charge) -> Response:
        """Take one request, which holds a charge, or say what its browser may send."""
        origin = request.headers.get("origin")
        if self._cors is None or origin is None or not self._cors.allows(origin):
            return await self._take_request(request, charge)
        if request.method == "OPTIONS":
            asked = request.headers.get("access-control-request-headers", "")
            response = Response(204, b"", self._cors.preflight(asked))
        else:
            response = await self._take_request(request, charge)
        own = {"access-control-allow-origin": origin, "vary": "Origin"}
        return Response(response.status, response.body, {**response.headers, **own})

    async def _take_request(self, request: Request, charge: Charge) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        known = kind in (encoding.value for encoding in Encoding)
        encoding = Encoding(kind) if known else Encoding.JSON
        signal = _PATHS.get(request.path.rstrip("/"))
        if signal is None:
            text = f"there is {', '.join(_PATHS)}"
            return _refuse(404, Code.UNIMPLEMENTED, text, encoding=encoding)
        if request.method != "POST":
            return _refuse(405, Code.UNIMPLEMENTED, "use POST", encoding=encoding, allow="POST")
        if not known:
            return _refuse(415, Code.INVALID_ARGUMENT, f"content-type {kind!r} is not OTLP's")
        body = self._inflate(request, charge, encoding)
        if isinstance(body, Response):
            return body
        until_s = asyncio.get_running_loop().time() + self._spool_writer.limits.otlp_room_wait_s
        answer = await self._take(signal, body, encoding, charge, until_s)
        return _respond(answer, encoding)

    def _inflate(self, request: Request, charge: Charge, encoding: Encoding) -> bytes | Response:
        """The body, decompressed, or what to answer instead."""
        if isinstance(request.body, Unread):
            return self._unread(request.body, encoding)
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        inflate = INFLATE.get(coding)
        if inflate is None:
            text = f"content-encoding {coding!r} is none of {CODINGS}, identity"
            accepted = {"accept-encoding": CODINGS}
            return _refuse(415, Code.INVALID_ARGUMENT, text, encoding=encoding, **accepted)
        try:
            body = inflate(request.body, self._body_bytes_max)
        except UndecodableError as error:
            if isinstance(error, ExpandsTooFarError):
                return self._too_large(encoding, str(error))
            self._spool_writer.note("requests_malformed")
            return _refuse(400, Code.INVALID_ARGUMENT, str(error), encoding=encoding)
        if not charge.take(max(0, len(body) - len(request.body))):
            return self._unread(Unread.NO_ROOM, encoding)
        return body

    def _unread(self, why: Unread, encoding: Encoding) -> Response:
        if why is Unread.TOO_LARGE:
            return self._too_large(encoding, f"the body is above {self._body_bytes_max} bytes")
        self._spool_writer.note("requests_deferred")
        return _respond(come_again(encoding, Code.RESOURCE_EXHAUSTED, why.value), encoding)

    def _too_large(self, encoding: Encoding, message: str) -> Response:
        self._spool_writer.note("requests_too_large")
        return _refuse(413, Code.RESOURCE_EXHAUSTED, message, encoding=encoding)


def _respond(answer: Answer, encoding: Encoding) -> Response:
    headers = {"content-type": encoding.value}
    status = _STATUS[answer.code]
    if answer.retry_after_s is not None:
        headers["retry-after"] = str(answer.retry_after_s)
        status = 429 if answer.code is Code.RESOURCE_EXHAUSTED else status
    return Response(status, answer.body, headers)


def _refuse(
    status: int, code: Code, message: str, *, encoding: Encoding = Encoding.JSON, **headers: str
) -> Response:
    body = encode_status(encoding, code, message)
    return Response(status, body, {"content-type": encoding.value, **headers})
