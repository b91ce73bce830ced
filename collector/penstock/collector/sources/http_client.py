"""One HTTP/1.1 GET with everything bounded: time by the caller, bytes here (RFC 9112, by h11)."""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import h11

from penstock.collector.core.inflate import gunzip
from penstock.collector.errors import RemoteProtocolError, UndecodableError
from penstock.collector.limits import HTTP_HEAD_BYTES_MAX, READ_BYTES

_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back; the body is decompressed, header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def get(
    url: str, headers: Mapping[str, str], *, body_bytes_max: int, context: ssl.SSLContext | None
) -> Reply:
    """Fetch a URL on a connection of its own.

    Args:
        url: ``http`` or ``https``; credentials in it are not used.
        headers: Besides `host` and what concerns the connection.
        body_bytes_max: Of the body, before and after decompression.
        context: For ``https``.

    Raises:
        RemoteProtocolError: The answer is not HTTP, or too large.
        OSError: It cannot be connected to.
    """
    parts = urlsplit(url)
    port = parts.port or _PORTS[parts.scheme]
    tls = context if parts.scheme == "https" else None
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=tls)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        fields = {
            "host": parts.netloc.rpartition("@")[2],
            "connection": "close",
            "accept-encoding": "gzip",
            **headers,
        }
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=HTTP_HEAD_BYTES_MAX)
        request = h11.Request(method="GET", target=target, headers=list(fields.items()))
        writer.write(connection.send(request) or b"")
        writer.write(connection.send(h11.EndOfMessage()) or b"")
        return await _read(connection, reader, body_bytes_max)
    except h11.RemoteProtocolError as error:
        raise RemoteProtocolError(f"http: {error}") from None
    finally:
        writer.close()


async def _read(
    connection: h11.Connection, reader: asyncio.StreamReader, body_bytes_max: int
) -> Reply:
    head: h11.Response | None = None
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(READ_BYTES))
        elif isinstance(event, h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > body_bytes_max:
                raise RemoteProtocolError(f"the answer is above {body_bytes_max} bytes")
        elif isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)):
            break
    assert head is not None, "h11 gives the end of a message after its head"
    headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
    content = bytes(body)
    if headers.get("content-encoding") == "gzip":
        try:
            content = gunzip(content, body_bytes_max)
        except UndecodableError as error:
            raise RemoteProtocolError(str(error)) from None
    return Reply(head.status_code, headers, content)
