"""The one HTTP server: what its connections and requests may take."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.base.http.client import Request as Asked
from penstock.base.http.client import client_tls, fetch
from penstock.base.http.server import (
    HttpServer,
    MalformedRequestError,
    Peer,
    Request,
    RequestLimits,
    Response,
    ServerLimits,
    Unaccounted,
    Unread,
    serve_http,
)
from tests.support.certificates import Authority
from tests.support.waiting import wait_until_async

REQUEST: Final = RequestLimits(
    body_bytes_max=100, head_bytes_max=2000, request_s=60, first_byte_s=60, linger_s=0.1
)
LIMITS: Final = ServerLimits(4, connection_s=60, handshake_s=60, request=REQUEST)
GET: Final = b"GET /a?b HTTP/1.1\r\nhost: x\r\n\r\n"
LATE: Final = 0.1

Answer = Callable[[Request, Peer], Awaitable[Response]]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def repeat(request: Request, _: Peer) -> Response:
    """Says what was asked."""
    body = request.body.value.encode() if isinstance(request.body, Unread) else request.body
    said = f"{request.method} {request.path} {request.query} ".encode()
    return Response(413 if isinstance(request.body, Unread) else 200, said + body)


@asynccontextmanager
async def serving(
    limits: ServerLimits = LIMITS, answer: Answer = repeat, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[HttpServer, int]]:
    server = HttpServer(answer, limits, tls=None if tls is None else lambda: tls)
    port = await server.listen("127.0.0.1", 0, family=socket.AF_INET)
    try:
        yield server, port
    finally:
        await server.close()


async def connect(port: int) -> Streams:
    return await asyncio.open_connection("127.0.0.1", port)


async def leave(*connections: Streams) -> None:
    for _, writer in connections:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def rest(connection: Streams) -> bytes:
    """What comes until the connection ends."""
    async with asyncio.timeout(20):
        try:
            return await connection[0].read()
        except ConnectionError:
            return b""


async def say(port: int, *said: bytes) -> bytes:
    """What is answered until the connection ends."""
    connection = await connect(port)
    for part in said:
        connection[1].write(part)
    answer = await rest(connection)
    await leave(connection)
    return answer


async def test_requests_of_a_connection_are_answered_one_after_the_other() -> None:
    close = b"POST /c HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi"
    async with serving() as (_, port):
        answer = await say(port, GET, GET + close)
    first, second, third = answer.split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert first == second
    assert first.endswith(b"\r\n\r\nGET /a b ")
    assert third.endswith(b"\r\n\r\nPOST /c  hi")


async def test_an_answer_to_head_has_no_body() -> None:
    async with serving() as (_, port):
        answer = await say(port, b"HEAD / HTTP/1.0\r\n\r\n")
    assert b"content-length: 8\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


async def test_a_body_that_is_announced_is_asked_for() -> None:
    head = b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
    async with serving() as (_, port):
        connection = reader, writer = await connect(port)
        writer.write(head)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        writer.write(b"hi")
        assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")
        await leave(connection)


@pytest.mark.parametrize("size", [101, 10_000_000])
async def test_a_body_that_is_too_large_is_refused_and_the_refusal_is_read(size: int) -> None:
    """Though the rest of it comes: a reset would take the answer away."""
    head = f"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n".encode()
    async with serving() as (_, port):
        answer = await say(port, head, bytes(size))
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"\x16\x03\x01 hello\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"x" * 3000, 431),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
    ],
)
async def test_what_is_not_http_is_told_so_and_ends(said: bytes, status: int) -> None:
    async with serving() as (_, port):
        assert (await say(port, said)).startswith(f"HTTP/1.1 {status} ".encode())


async def test_whoever_accepted_the_connection_is_told_that_it_spoke_no_http() -> None:
    reader, peer = asyncio.StreamReader(), _Deaf()
    reader.feed_data(b"nonsense\r\n\r\n")

    async def handle(_: Request, __: Unaccounted) -> Response:
        raise AssertionError("nothing was asked")

    writer: Any = peer
    with pytest.raises(MalformedRequestError, match="http: illegal request line"):
        await serve_http(reader, writer, handle, REQUEST, Unaccounted)


class _Deaf:
    """A peer that does not read; `drain` waits when it is told to."""

    def __init__(self, *, stalls: bool = False) -> None:
        self._stalls = stalls

    def write(self, data: bytes) -> None:
        """Into a buffer that nobody empties."""

    async def drain(self) -> None:
        if self._stalls:
            await asyncio.Event().wait()


async def test_who_does_not_read_its_answers_is_not_waited_for_for_ever() -> None:
    async def handle(_: Request, __: Unaccounted) -> Response:
        return Response(200)

    reader = asyncio.StreamReader()
    reader.feed_data(GET)
    writer: Any = _Deaf(stalls=True)
    limits = replace(REQUEST, request_s=LATE, first_byte_s=LATE)
    async with asyncio.timeout(20):
        with pytest.raises(TimeoutError):
            await serve_http(reader, writer, handle, limits, Unaccounted)


class _Full:
    """An account without room; counts those that were not given back."""

    open = 0

    def __init__(self) -> None:
        _Full.open += 1

    def take(self, size: int) -> bool:
        return size == 0

    def close(self) -> None:
        _Full.open -= 1


async def test_a_body_that_there_is_no_room_for_is_not_read() -> None:
    seen: list[Request] = []

    async def handle(request: Request, _: _Full) -> Response:
        seen.append(request)
        return Response(429)

    reader = asyncio.StreamReader()
    reader.feed_data(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n1")
    reader.feed_eof()
    writer: Any = _Deaf()
    writer.can_write_eof = lambda: False
    await serve_http(reader, writer, handle, REQUEST, _Full)
    assert [request.body for request in seen] == [Unread.NO_ROOM]
    assert _Full.open == 0


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (replace(LIMITS, request=replace(REQUEST, first_byte_s=LATE)), b""),
        (replace(LIMITS, request=replace(REQUEST, first_byte_s=LATE)), GET),
        (replace(LIMITS, request=replace(REQUEST, request_s=LATE)), b"GET / HT"),
        (replace(LIMITS, connection_s=LATE), b"GET / HT"),
        (replace(LIMITS, connection_s=LATE), GET),
    ],
    ids=["silent", "silent after an answer", "slow", "whole", "whole, asked"],
)
async def test_a_connection_that_takes_too_long_ends(limits: ServerLimits, said: bytes) -> None:
    async with serving(limits) as (server, port):
        answer = await say(port, said)
        assert answer.startswith(b"HTTP/1.1 200") == (said == GET)
        await wait_until_async(lambda: server.connections == 0)


async def test_a_request_that_began_in_time_may_go_on_after_its_first_byte() -> None:
    limits = replace(LIMITS, request=replace(REQUEST, first_byte_s=LATE))
    async with serving(limits) as (_, port):
        connection = reader, writer = await connect(port)
        writer.write(GET[:5])
        other = await connect(port)
        assert await rest(other) == b"", "it has said nothing for so long"
        writer.write(GET[5:])
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await leave(connection, other)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nx: "], ids=["silent", "slow"])
async def test_connections_that_have_asked_for_nothing_make_room(said: bytes) -> None:
    async with serving() as (server, port):
        idle = [await connect(port) for _ in range(LIMITS.max_connections)]
        for _, writer in idle:
            writer.write(said)
        await wait_until_async(lambda: server.connections == LIMITS.max_connections)
        assert (await say(port, GET.replace(b"host", b"connection: close\r\nhost"))).startswith(
            b"HTTP/1.1 200"
        )
        assert await rest(idle[0]) == b""
        assert server.connections_refused == 1
        await leave(*idle)
        await wait_until_async(lambda: server.connections == 0)


async def test_one_more_than_all_that_have_asked_is_closed() -> None:
    go_on = asyncio.Event()
    asked = 0

    async def wait(_: Request, __: Peer) -> Response:
        nonlocal asked
        asked += 1
        await go_on.wait()
        return Response(200, headers={"connection": "close"})

    async with serving(answer=wait) as (server, port):
        busy = [await connect(port) for _ in range(LIMITS.max_connections)]
        for _, writer in busy:
            writer.write(GET)
        await wait_until_async(lambda: asked == len(busy))
        assert await say(port, GET) == b""
        assert server.connections_refused == 1
        go_on.set()
        assert [(await rest(one))[:12] for one in busy] == [b"HTTP/1.1 200"] * len(busy)
        await leave(*busy)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def server_tls(authority: Authority) -> ssl.SSLContext:
    own = authority.sign("server", "DNS:localhost,IP:127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.cert)
    context.load_cert_chain(own.cert, own.key)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


async def test_a_peers_certificate_is_shown(authority: Authority) -> None:
    shown = authority.sign("client")

    async def tell(_: Request, peer: Peer) -> Response:
        return Response(200, peer.certificate or b"", {"x-from": peer.address[0]})

    async with serving(answer=tell, tls=server_tls(authority)) as (_, port):
        url = f"https://localhost:{port}/"
        for tls, certificate in (
            (client_tls(authority.cert, shown.cert, shown.key), shown.der),
            (client_tls(authority.cert), b""),
        ):
            found = await fetch(url, Asked("/"), timeout_s=20, body_bytes_max=9999, tls=tls)
            assert (found.body, found.headers["x-from"]) == (certificate, "127.0.0.1")


async def test_connections_that_shake_no_hands_hold_up_nobody_and_make_room(
    authority: Authority,
) -> None:
    async with serving(tls=server_tls(authority)) as (server, port):
        silent = [await connect(port) for _ in range(LIMITS.max_connections + 2)]
        for _, writer in silent[::2]:
            writer.write(b"\x16\x03\x01")  # a handshake has begun
        url, tls = f"https://localhost:{port}/", client_tls(authority.cert)
        found = await fetch(url, Asked("/"), timeout_s=20, body_bytes_max=99, tls=tls)
        assert found.status == 200
        assert [await rest(one) for one in silent[:3]] == [b""] * 3, "they made room"
        await leave(*silent)
        await wait_until_async(lambda: server.connections == 0)


async def test_a_handshake_that_takes_too_long_ends(authority: Authority) -> None:
    tls = server_tls(authority)
    async with serving(replace(LIMITS, handshake_s=LATE), tls=tls) as (server, port):
        assert await say(port, b"\x16\x03\x01") == b""
        assert not (await say(port, GET)).startswith(b"HTTP/1.1")
        await wait_until_async(lambda: server.connections == 0)


async def test_closing_lets_an_answer_under_way_go_out_and_ends_the_others() -> None:
    closing, asked = asyncio.Event(), asyncio.Event()

    async def wait(_: Request, __: Peer) -> Response:
        asked.set()
        await closing.wait()
        return Response(200, b"done", {"connection": "close"})

    server = HttpServer(wait, LIMITS)
    port = await server.listen("127.0.0.1", 0)
    silent, busy = await connect(port), await connect(port)
    busy[1].write(GET)
    await asked.wait()
    ended = asyncio.ensure_future(server.close())
    assert await rest(silent) == b""
    closing.set()
    assert (await rest(busy)).endswith(b"done")
    await ended
    assert server.connections == 0
    with pytest.raises(ConnectionRefusedError):
        await connect(port)
    await server.close()
    await leave(silent, busy)


async def test_closing_ends_an_answer_that_does_not_come() -> None:
    asked = asyncio.Event()

    async def wait(_: Request, __: Peer) -> Response:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(answer=wait) as (server, port):
        busy = await connect(port)
        busy[1].write(GET)
        await asked.wait()
        async with asyncio.timeout(20):
            await server.close()
        assert await rest(busy) == b""
        await leave(busy)


async def test_head_with_a_body_that_is_not_http_is_answered_without_a_body() -> None:
    head = b"HEAD / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    async with serving() as (_, port):
        answer = await say(port, head + b"no chunk\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.endswith(b"\r\n\r\n")
