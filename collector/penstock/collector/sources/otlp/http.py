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

from typing_extensions import override

from penstock.base.http.server import Request, Response
from penstock.collector.decode.otlp.messages import SIGNALS, Encoding, Signal, encode_status
from penstock.collector.sources.network.http_receiver import (
    Handle,
    HttpReceiver,
    Refusal,
    content_type,
)
from penstock.collector.sources.otlp.response import Answer, Code, Take
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
_CODES: Final = {
    404: Code.UNIMPLEMENTED,
    405: Code.UNIMPLEMENTED,
    413: Code.RESOURCE_EXHAUSTED,
    429: Code.RESOURCE_EXHAUSTED,
    503: Code.UNAVAILABLE,
}
"""Codes of refusals by their status; of others `Code.INVALID_ARGUMENT`."""


class OtlpHttp(HttpReceiver):
    """Serves connections for one source.

    Args:
        take: Makes a request's records durable, or says why not.
        body_bytes_max: Bound of a request's body, before and after decompression.
        cors: Origins whose pages may send; None: there are none.
    """

    def __init__(
        self,
        take: Take,
        spool_writer: SpoolWriter,
        *,
        body_bytes_max: int,
        cors: CorsSection | None = None,
    ) -> None:
        super().__init__(self._find, _refuse, spool_writer, body_bytes_max=body_bytes_max)
        self._take = take
        self._room_wait_s = spool_writer.limits.request_room_wait_s
        self._cors = cors

    @override
    async def answer(self, request: Request, charge: Charge) -> Response:
        """Answer one request, which holds a charge, or say what its browser may send."""
        origin = request.headers.get("origin")
        if self._cors is None or origin is None or not self._cors.allows(origin):
            return await super().answer(request, charge)
        if request.method == "OPTIONS":
            asked = request.headers.get("access-control-request-headers", "")
            response = Response(204, b"", self._cors.preflight(asked))
        else:
            response = await super().answer(request, charge)
        own = {"access-control-allow-origin": origin, "vary": "Origin"}
        return Response(response.status, response.body, {**response.headers, **own})

    def _find(self, request: Request) -> Handle:
        signal = _PATHS.get(request.path.rstrip("/"))
        if signal is None:
            raise Refusal(404, f"there is {', '.join(_PATHS)}")
        if request.method != "POST":
            raise Refusal(405, "use POST", allow="POST")
        encoding = _encoding_of(request)
        if encoding is None:
            raise Refusal(415, f"content-type {content_type(request)!r} is not OTLP's")
        return partial(self._export, signal, encoding)

    async def _export(
        self, signal: Signal, encoding: Encoding, _: Request, body: bytes, charge: Charge
    ) -> Response:
        until_s = asyncio.get_running_loop().time() + self._room_wait_s
        answer = await self._take(signal, body, encoding, charge, until_s)
        return _respond(answer, encoding)


def _encoding_of(request: Request) -> Encoding | None:
    kind = content_type(request)
    known = kind in (encoding.value for encoding in Encoding)
    return Encoding(kind) if known else None


def _respond(answer: Answer, encoding: Encoding) -> Response:
    headers = {"content-type": encoding.value}
    status = _STATUS[answer.code]
    if answer.retry_after_s is not None:
        headers["retry-after"] = str(answer.retry_after_s)
        status = 429 if answer.code is Code.RESOURCE_EXHAUSTED else status
    return Response(status, answer.body, headers)


def _refuse(request: Request, refusal: Refusal) -> Response:
    """A refusal in the encoding of its request."""
    encoding = _encoding_of(request) or Encoding.JSON
    code = _CODES.get(refusal.status, Code.INVALID_ARGUMENT)
    after_s = refusal.headers.get("retry-after")
    body = encode_status(
        encoding, code, refusal.message, retry_after_s=int(after_s) if after_s else None
    )
    return Response(refusal.status, body, {"content-type": encoding.value})
