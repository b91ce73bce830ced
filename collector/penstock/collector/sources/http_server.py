"""HTTP/1.1 as sources need it: whole requests of bounded size, one answer each (RFC 9112, by h11).

A connection is kept for further requests. One that takes longer than `REQUEST_TIMEOUT_S` to bring a
request or to take an answer, or is idle for so long, is closed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import h11

from penstock.collector.errors import RemoteProtocolError
from penstock.collector.limits import HTTP_HEAD_BYTES_MAX, READ_BYTES, REQUEST_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Request:
    """A request.

    Attributes:
        path: Without the query.
        headers: By lower-case name; of a repeated one the last.
        body: As it came, still compressed; None when it was larger than allowed.
        query: What stands behind the path's question mark.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None
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
) -> None:
    """Answer the requests of one connection until it ends.

    Raises:
        RemoteProtocolError: What came is not HTTP; it was answered as far as it can be.
        TimeoutError: A request took too long.
    """
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HTTP_HEAD_BYTES_MAX)
    try:
        while True:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = await _read(connection, reader, writer, body_bytes_max)
            if request is None:
                return
            response = await handle(request)
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await _answer(connection, writer, response)
            if connection.our_state is h11.MUST_CLOSE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()
    except h11.RemoteProtocolError as error:
        if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            hint = Response(error.error_status_hint, str(error).encode())
            await _answer(connection, writer, hint)
        raise RemoteProtocolError(f"http: {error}") from None


async def _read(
    connection: h11.Connection,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    body_bytes_max: int,
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
            body += event.data
            if len(body) > body_bytes_max:
                assert head is not None
                return _request(head, None)
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            return _request(head, bytes(body))
        else:  # the peer closed, or we wait for it to do so
            return None


def _request(head: h11.Request, body: bytes | None) -> Request:
    path, _, query = head.target.decode("latin-1").partition("?")
    return Request(
        method=head.method.decode("ascii"),
        path=path,
        headers={name.decode("ascii"): value.decode("latin-1") for name, value in head.headers},
        body=body,
        query=query,
    )


async def _answer(
    connection: h11.Connection, writer: asyncio.StreamWriter, response: Response
) -> None:
    headers = {"content-length": str(len(response.body)), **response.headers}
    if connection.their_state is h11.SEND_BODY:  # the rest of the request is not read
        headers["connection"] = "close"
    events = (
        h11.Response(status_code=response.status, headers=list(headers.items())),
        h11.Data(data=response.body),
        h11.EndOfMessage(),
    )
    writer.write(b"".join(connection.send(event) or b"" for event in events))
    await writer.drain()
