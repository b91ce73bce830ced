"""HTTP/1.1 as sources need it: whole requests of bounded size, one answer each (RFC 9112, by h11).

A connection is kept for further requests. One that takes longer than `REQUEST_TIMEOUT_S` to bring a
request or to take an answer, or is idle for so long, is closed.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus

import h11

from penstock.collector.budget import Charge, Share
from penstock.collector.errors import RemoteProtocolError
from penstock.collector.limits import (
    HTTP_HEAD_BYTES_MAX,
    HTTP_LINGER_S,
    READ_BYTES,
    REQUEST_TIMEOUT_S,
)


class Unread(Enum):
    """Why a request's body was not read to its end."""

    TOO_LARGE = "larger than allowed"
    NO_ROOM = "too much is being received at once"


@dataclass(frozen=True, slots=True)
class Request:
    """A request.

    Attributes:
        path: Without the query.
        headers: By lower-case name; of a repeated one the last.
        body: As it came, still compressed.
        charge: What it holds until it is answered.
        query: What stands behind the path's question mark.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | Unread
    charge: Charge
    query: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


Handle = Callable[[Request], Awaitable[Response]]


async def serve_http(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    handle: Handle,
    *,
    body_bytes_max: int,
    share: Share,
) -> None:
    """Answer the requests of one connection until it ends.

    Args:
        reader: The connection.
        writer: The connection.
        handle: Answers one request.
        body_bytes_max: Of a request.
        share: What bodies are held of from their first byte until they are answered.

    Raises:
        RemoteProtocolError: What came is not HTTP; it was answered as far as it can be.
        TimeoutError: A request took too long.
    """
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HTTP_HEAD_BYTES_MAX)
    try:
        while True:
            with Charge(share) as charge:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    request = await _read(connection, reader, writer, body_bytes_max, charge)
                if request is None:
                    return
                response = await handle(request)
                bodiless = request.method == "HEAD"
                del request  # its body is held no longer than it is charged for
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await _answer(connection, writer, response, bodiless=bodiless)
            if connection.their_state is h11.SEND_BODY:
                await _linger(reader, writer)
                return
            if connection.our_state is h11.MUST_CLOSE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()
    except h11.RemoteProtocolError as error:
        if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = {"content-type": "text/plain; charset=utf-8"}
            hint = Response(error.error_status_hint, str(error).encode(), headers)
            await _answer(connection, writer, hint)
        raise RemoteProtocolError(f"http: {error}") from None


async def _read(
    connection: h11.Connection,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    body_bytes_max: int,
    charge: Charge,
) -> Request | None:
    """The next request; None at the connection's end."""
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[])
                writer.write(connection.send(go_on) or b"")
            connection.receive_data(await reader.read(READ_BYTES))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            assert head is not None
            if len(body) + len(event.data) > body_bytes_max:
                return _request(head, Unread.TOO_LARGE, charge)
            if not charge.take(len(event.data)):
                return _request(head, Unread.NO_ROOM, charge)
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            return _request(head, bytes(body), charge)
        else:  # the peer closed, or we wait for it to do so
            return None


def _request(head: h11.Request, body: bytes | Unread, charge: Charge) -> Request:
    path, _, query = head.target.decode("latin-1").partition("?")
    return Request(
        method=head.method.decode("ascii"),
        path=path,
        headers={name.decode("ascii"): value.decode("latin-1") for name, value in head.headers},
        body=body,
        charge=charge,
        query=query,
    )


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read on for a moment what nobody wants: closing before would reset the connection.

    A reset takes away what the peer has not read yet, and that is why it was refused (RFC 9112,
    section 9.6).
    """
    if writer.can_write_eof():
        writer.write_eof()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(HTTP_LINGER_S):
            while await reader.read(READ_BYTES):
                pass


async def _answer(
    connection: h11.Connection,
    writer: asyncio.StreamWriter,
    response: Response,
    *,
    bodiless: bool = False,
) -> None:
    """Send an answer; one to HEAD has the headers of its body, and no body."""
    headers = {"content-length": str(len(response.body)), **response.headers}
    if connection.their_state is h11.SEND_BODY:  # the rest of the request is not read
        headers["connection"] = "close"
    events = (
        h11.Response(
            status_code=response.status,
            headers=list(headers.items()),
            reason=HTTPStatus(response.status).phrase.encode(),
        ),
        h11.Data(data=b"" if bodiless else response.body),
        h11.EndOfMessage(),
    )
    writer.write(b"".join(connection.send(event) or b"" for event in events))
    await writer.drain()
