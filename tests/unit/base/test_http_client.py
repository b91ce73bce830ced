"""The one HTTP client, blocking and on an event loop, over the loopback interface."""

import asyncio
import random
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.base.http.client import (
    CONNECTION_AGE_S,
    AnswerTooLargeError,
    HttpClient,
    HttpError,
    NoAnswerError,
    NotHttpError,
    Request,
    Response,
    client_tls,
    fetch,
    open_stream,
    target_of,
)
from tests.support.certificates import Authority
from tests.support.fault_door import Answered, Asked, Backend, FaultDoor

OK: Final = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
BODY_BYTES_MAX: Final = 1000

Ask = Callable[..., Response]
Serve = Callable[[socket.socket], None]


def ask_blocking(url: str, request: Request, **options: Any) -> Response:
    with HttpClient(url, **options) as client:
        return client.send(request)


def ask_on_a_loop(url: str, request: Request, **options: Any) -> Response:
    return asyncio.run(fetch(url, request, **options))


@pytest.fixture(params=[ask_blocking, ask_on_a_loop])
def ask(request: pytest.FixtureRequest) -> Ask:
    def asked(url: str, made: Request | None = None, **options: Any) -> Response:
        options = {"timeout_s": 20.0, "body_bytes_max": BODY_BYTES_MAX, **options}
        found: Response = request.param(url, made or Request(target_of(url)), **options)
        return found

    return asked


def head_of(connection: socket.socket) -> bytes:
    """A request's head; empty at the connection's end."""
    head = b""
    while not head.endswith(b"\r\n\r\n") and (byte := connection.recv(1)):
        head += byte
    return head


def says(answer: bytes, heard: list[bytes] | None = None) -> Serve:
    """Answers one request so, and closes."""

    def serve(connection: socket.socket) -> None:
        head = head_of(connection)
        if heard is not None:
            heard.append(head)
        connection.sendall(answer)

    return serve


@contextmanager
def serving(*each: Serve, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The URL of something that serves one connection after the other, the last for ever."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def run() -> None:
            for number in range(1000):
                try:
                    plain, _ = listening.accept()
                    with tls.wrap_socket(plain, server_side=True) if tls else plain as connection:
                        each[min(number, len(each) - 1)](connection)
                except OSError:
                    if listening.fileno() < 0:
                        return

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        scheme = "http" if tls is None else "https"
        yield f"{scheme}://localhost:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
    thread.join(20)


def test_what_is_asked_and_answered(ask: Ask) -> None:
    heard: list[bytes] = []
    answer = b"HTTP/1.1 404 Not here\r\nX-A: 1\r\nx-a: \xe9\r\nContent-Length: 2\r\n\r\nno"
    with serving(says(answer, heard)) as url:
        asked = f"{url}/a/b?c=d"
        found = ask(asked.replace("//", "//user:hush@"), Request(target_of(asked), {"X-B": " 2 "}))
    assert (found.status, found.reason, found.body) == (404, "Not here", b"no")
    assert found.headers["x-a"] == "\xe9"
    first, *lines = heard[0].decode().split("\r\n")
    assert first == "GET /a/b?c=d HTTP/1.1"
    assert f"Host: {url.partition('//')[2]}" in lines
    assert {"X-B: 2", "Accept-Encoding: identity"} <= set(lines)
    assert "hush" not in heard[0].decode()
    assert "content-length" not in heard[0].decode().lower()


def test_a_body_has_its_length_also_when_it_is_empty(ask: Ask) -> None:
    heard: list[bytes] = []
    with serving(says(OK, heard)) as url:
        for body in (b"", b"x" * 70_000):
            ask(url, Request("/", method="POST", body=body))
    assert [f"Content-Length: {size}".encode() in head for size, head in
            zip((0, 70_000), heard, strict=True)] == [True, True]  # fmt: skip


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nok",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 \r\nlink: x\r\n\r\n" + OK,
    ],
    ids=["chunked", "until the end", "after others"],
)
def test_bodies_of_every_form_are_read(ask: Ask, answer: bytes) -> None:
    with serving(says(answer)) as url:
        assert ask(url).body == b"ok"


@pytest.mark.parametrize("begun", [b"H", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_the_time_limit_is_on_the_whole(ask: Ask, begun: bytes) -> None:
    """A byte each few milliseconds passes any limit on one read."""
    stop = threading.Event()

    def drip(connection: socket.socket) -> None:
        head_of(connection)
        connection.sendall(begun)
        while not stop.wait(0.01):
            connection.sendall(b" ")

    with serving(drip) as url:
        with pytest.raises(TimeoutError, match=r"no answer within 0\.3 s"):
            ask(url, timeout_s=0.3, body_bytes_max=1_000_000)
        stop.set()


def test_a_server_that_takes_no_request_is_given_up(ask: Ask) -> None:
    stop = threading.Event()

    def take_nothing(_: socket.socket) -> None:
        stop.wait(60)

    with serving(take_nothing) as url:
        with pytest.raises(TimeoutError, match="no answer within"):
            ask(url, Request("/", method="POST", body=bytes(30_000_000)), timeout_s=0.3)
        stop.set()


def test_an_answer_that_is_too_large_is_not_read_on(ask: Ask) -> None:
    def endless(connection: socket.socket) -> None:
        head_of(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65_536)

    with serving(endless) as url, pytest.raises(AnswerTooLargeError, match="above 1000") as error:
        ask(url)
    assert (error.value.response.status, error.value.response.body) == (200, b"x" * 1000)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"", NoAnswerError),
        (b"SSH-2.0-OpenSSH_9.2\r\n", NotHttpError),
        (b"nonsense\r\n\r\n", NotHttpError),
        (b"HTTP/1.1 200 OK\r\nx: ", NotHttpError),
        (b"HTTP/1.1 200 OK\r\nx: " + b"x" * 100_000, NotHttpError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nok", HttpError),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz", HttpError),
    ],
)
def test_what_is_no_whole_answer_is_an_error(
    ask: Ask, answer: bytes, kind: type[HttpError]
) -> None:
    with serving(says(answer)) as url, pytest.raises(HttpError) as error:
        ask(url)
    assert type(error.value) is kind


@pytest.mark.parametrize("name", ["x-key", "x key", "", "x-key\r\ny"])
@pytest.mark.parametrize("value", ["hush\nhush", "hush\r\n x: hush", "hush\0", "hush\u017e"])
def test_a_header_that_cannot_be_sent_is_not_shown(ask: Ask, name: str, value: str) -> None:
    with serving(says(OK)) as url, pytest.raises(ValueError, match="HTTP forbids") as error:
        ask(url, Request("/", {name: value}))
    assert "hush" not in str(error.value)


@pytest.mark.parametrize("target", ["/a b", "/a\r\nx: y", "/\xe9"])
def test_a_target_that_cannot_be_sent_is_refused(ask: Ask, target: str) -> None:
    with serving(says(OK)) as url, pytest.raises(ValueError, match="HTTP forbids"):
        ask(url, Request(target))


def test_https_takes_no_certificate_of_another_authority(ask: Ask, tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "one"), Authority(tmp_path / "other")
    own = authority.sign("server", "DNS:localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(own.cert, own.key)
    with serving(says(OK), tls=context) as url:
        assert ask(url, tls=client_tls(authority.cert)).body == b"ok"
        with pytest.raises(ssl.SSLError, match="certificate verify failed"):
            ask(url, tls=client_tls(other.cert))
        with pytest.raises(ssl.SSLError, match="certificate verify failed"):
            ask(url)


def test_a_proxy_of_the_environment_is_not_used(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serving(says(OK)) as url:
        assert ask(url).body == b"ok"


def test_one_address_of_a_name_can_be_asked() -> None:
    heard: list[bytes] = []
    with serving(says(OK, heard)) as url:
        elsewhere = url.replace("localhost", "destination.test")
        made = Request("/", {})
        found = asyncio.run(
            fetch(elsewhere, made, timeout_s=20, body_bytes_max=9, address="127.0.0.1")
        )
    assert found.body == b"ok"
    assert b"Host: destination.test:" in heard[0]


def client_of(url: str, **options: Any) -> HttpClient:
    options = {"timeout_s": 20.0, "body_bytes_max": BODY_BYTES_MAX, **options}
    return HttpClient(url, **options)


POST: Final = Request("/", method="POST", body=b"x")


def test_an_answer_that_comes_before_the_request_is_through_counts() -> None:
    """As 413 does; and the connection is of no more use."""

    def refuse(connection: socket.socket) -> None:
        head_of(connection)
        connection.sendall(b"HTTP/1.1 413 No\r\ncontent-length: 0\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 20):
            pass

    with serving(refuse, says(OK)) as url, client_of(url) as client:
        large = Request("/", method="POST", body=bytes(30_000_000))
        assert client.send(large).status == 413


class Connections:
    """Answers as it is told, one answer a request, and counts connections."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.count = 0

    def __call__(self, connection: socket.socket) -> None:
        self.count += 1
        while (head := head_of(connection)) and self.answers:
            if b"Content-Length: 1" in head:
                connection.recv(1)
            if (answer := self.answers.pop(0)) == b"end":
                return
            connection.sendall(answer)


def test_a_connection_is_kept() -> None:
    server = Connections(OK, OK, OK)
    with serving(server) as url, client_of(url) as client:
        assert [client.send(POST).status for _ in range(3)] == [200] * 3
        assert server.count == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n",
        OK + b"more",
    ],
    ids=["5xx", "close", "old", "more than was asked for"],
)
def test_a_connection_is_left(answer: bytes) -> None:
    server = Connections(answer, OK)
    with serving(server) as url, client_of(url) as client:
        client.send(POST)
        assert client.send(POST).body == b"ok"
        assert server.count == 2


@pytest.mark.parametrize("connected", [False, True])
def test_a_kept_connection_that_ended_is_made_again(*, connected: bool) -> None:
    server = Connections(OK, b"end", OK)
    with serving(server) as url, client_of(url) as client:
        repeated = []
        for _ in range(2):
            if connected:
                client.connect()
            assert client.send(POST).body == b"ok"
            repeated.append(client.repeated)
        assert repeated == [False, True]
        assert server.count == 2


@pytest.mark.parametrize("connected", [False, True])
def test_a_new_connection_that_ends_is_not_made_again(*, connected: bool) -> None:
    server = Connections(b"end", OK)
    with serving(server) as url, client_of(url) as client:
        if connected:
            client.connect()
        with pytest.raises(NoAnswerError):
            client.send(POST)
        assert not client.repeated


def test_a_request_that_was_cut_short_does_not_go_again() -> None:
    """Some of it may have been taken, unlike one that found its connection ended."""

    def answer_one_and_break(connection: socket.socket) -> None:
        for answer in (OK, b""):
            if b"Content-Length: 1\r" in head_of(connection):
                connection.recv(1)
            connection.sendall(answer)

    with serving(answer_one_and_break, says(OK)) as url, client_of(url) as client:
        client.send(POST)
        with pytest.raises(ConnectionError) as error:
            client.send(Request("/", method="POST", body=bytes(30_000_000)))
        assert type(error.value) in (BrokenPipeError, ConnectionResetError)
        assert not client.repeated


def test_what_went_over_a_kept_connection_may_have_been_taken() -> None:
    """Though there is no other to ask over: the server ended when it had the request."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve_one_and_go() -> None:
            connection, _ = listening.accept()
            with connection:
                Connections(OK, b"end")(connection)
                listening.close()

        thread = threading.Thread(target=serve_one_and_go, daemon=True)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.start()
        with client_of(url) as client:
            client.send(POST)
            with pytest.raises(NoAnswerError):
                client.send(POST)
        thread.join(20)


def test_nobody_there_is_told_when_connecting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with client_of(url) as client, pytest.raises(ConnectionRefusedError):
        client.connect()


class Skipping(SystemClock):
    """The machine's time, and on top of it what a test skips."""

    skipped_ns = 0

    @override
    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.skipped_ns


class Nothing(Backend):
    """Takes whatever comes."""

    @override
    def handle(self, asked: Asked) -> Answered:
        return Answered(200)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[FaultDoor], list[str]]]:
    """A name with two addresses: its URL, the doors behind it, and the addresses, to be changed."""
    first = FaultDoor(Nothing())
    port = int(first.url.rpartition(":")[2])
    doors = [first, FaultDoor(Nothing(), host="127.0.0.2", port=port)]
    addresses = ["127.0.0.1", "127.0.0.2"]
    real = socket.getaddrinfo

    def resolve(host: Any, *args: Any, **options: Any) -> Any:
        if host != "destination.test":
            return real(host, *args, **options)
        return [found for each in addresses for found in real(each, *args, **options)]

    # No name server of a test gives a name two addresses of this machine, and changes them.
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    yield f"http://destination.test:{port}", doors, addresses
    for door in doors:
        door.close()


def test_connections_are_spread_over_the_addresses_of_a_name(
    pair: tuple[str, list[FaultDoor], list[str]],
) -> None:
    url, doors, _ = pair
    for seed in range(20):
        with client_of(url, rng=random.Random(seed)) as client:
            client.send(POST)
    assert min(len(door.asked) for door in doors) >= 3


def test_the_address_that_failed_is_left_for_another(
    pair: tuple[str, list[FaultDoor], list[str]],
) -> None:
    url, doors, _ = pair
    with client_of(url) as client:
        client.send(POST)
        used, other = sorted(doors, key=lambda door: -len(door.asked))
        used.rule = lambda _: Answered(503)
        client.send(POST)
        assert [client.send(POST).status for _ in range(3)] == [200] * 3
        assert (len(used.asked), len(other.asked)) == (2, 3), "and stays while that is well"
        other.close()
        used.rule = lambda _: None
        client.close()
        client.send(POST)
        assert len(used.asked) == 3, "one that refuses connections costs no request"


def test_a_name_that_changes_is_followed_though_the_connection_is_well(
    pair: tuple[str, list[FaultDoor], list[str]],
) -> None:
    url, doors, addresses = pair
    clock = Skipping()
    del addresses[1]
    with client_of(url, clock=clock) as client:
        client.send(POST)
        addresses[:] = ["127.0.0.2"]
        client.send(POST)
        assert [len(door.asked) for door in doors] == [2, 0]
        clock.skipped_ns += int((CONNECTION_AGE_S + 1) * 1e9)
        client.send(POST)
    assert [len(door.asked) for door in doors] == [2, 1]


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


STREAMED: Final = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


async def parts_of(url: str) -> list[bytes]:
    found = []
    async with open_stream(url, Request("/watch"), timeout_s=20) as stream:
        assert stream.head.status == 200
        while part := await stream.read():
            found.append(part)
    return found


async def test_a_stream_hands_out_what_came_before_the_answer_has_ended() -> None:
    read = threading.Event()

    def serve(connection: socket.socket) -> None:
        head_of(connection)
        connection.sendall(STREAMED + chunked(b"one"))
        read.wait(20)
        connection.sendall(chunked(b"two", b""))

    with serving(serve) as url:
        async with open_stream(url, Request("/watch"), timeout_s=20) as stream:
            assert await stream.read() == b"one"
            read.set()
            assert await stream.read() == b"two"
            assert await stream.read() == b""
            assert await stream.read() == b"", "and stays there"


async def test_a_stream_that_is_cut_short_is_an_error() -> None:
    with serving(says(STREAMED + chunked(b"one"))) as url, pytest.raises(HttpError, match="whole"):
        await parts_of(url)
    with serving(says(b"")) as url, pytest.raises(NoAnswerError):
        await parts_of(url)


async def test_a_stream_has_a_time_limit_until_its_head_is_there() -> None:
    ended = threading.Event()
    with serving(lambda connection: (head_of(connection), ended.wait(20), None)[2]) as url:
        with pytest.raises(TimeoutError, match=r"0\.2 s"):
            async with open_stream(url, Request("/"), timeout_s=0.2):
                pass
        ended.set()


async def test_a_server_may_listen_on_a_unix_socket(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        writer.close()

    async with await asyncio.start_unix_server(serve, tmp_path / "socket"):
        options: dict[str, Any] = {"timeout_s": 20.0, "body_bytes_max": BODY_BYTES_MAX}
        found = await fetch("http://x", Request("/"), address=tmp_path / "socket", **options)
    assert found.body == b"ok"
