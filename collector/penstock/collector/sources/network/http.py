"""One GET of an HTTP server; its answer is bounded before and after decompression."""

import ssl
from collections.abc import Mapping
from dataclasses import replace

from penstock.base.http.client import NotHttpError, Request, Response, fetch, target_of
from penstock.collector.decompression import gunzip
from penstock.collector.errors import RemoteProtocolError, UndecodableError


async def get(
    url: str,
    headers: Mapping[str, str],
    *,
    timeout_s: float,
    body_bytes_max: int,
    context: ssl.SSLContext | None,
) -> Response:
    """Fetch a URL on a new connection.

    Args:
        url: ``http`` or ``https``; credentials in it are not used.
        headers: Besides `host` and what concerns the connection.
        timeout_s: Maximum seconds of the request.
        body_bytes_max: Bound of the body, before and after decompression.
        context: TLS context of ``https``.

    Raises:
        RemoteProtocolError: The answer is not HTTP, or becomes too large.
        TimeoutError: It is not whole in time.
        OSError: It cannot be connected to, or the answer is too large.
    """
    request = Request(target_of(url), {"Accept-Encoding": "gzip", **headers})
    try:
        answer = await fetch(
            url, request, timeout_s=timeout_s, body_bytes_max=body_bytes_max, tls=context
        )
    except NotHttpError as error:
        raise RemoteProtocolError(f"http: {error.reason}") from None
    if answer.headers.get("content-encoding") != "gzip":
        return answer
    try:
        return replace(answer, body=gunzip(answer.body, body_bytes_max))
    except UndecodableError as error:
        raise RemoteProtocolError(str(error)) from None
