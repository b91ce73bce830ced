"""Keys of tokens from a real https server, which may be slow or false."""

import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from penstock.logd.errors import CorruptError, UnavailableError
from penstock.logd.security.jwt import jwks_fetch
from tests.support.certificates import Authority
from tests.support.identities import HOST
from tests.support.tokens import Issuer

pytestmark = pytest.mark.live

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@contextmanager
def serving(authority: Authority, answer: Answer) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        @override
        def log_message(self, *_: Any) -> None:
            """Not here."""

    made = authority.sign("keys", HOST)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.cert, made.key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign] # clients hang up on it
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"https://localhost:{server.server_port}/keys?v=1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def body(data: bytes, status: int = 200, **headers: str) -> Answer:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)

    return answer


def get(url: str, trusted: ssl.SSLContext, *, timeout_s: float = 10.0) -> object:
    return jwks_fetch(url, lambda: trusted, timeout_s=timeout_s)()


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.cert)


def test_keys_are_fetched(authority: Authority) -> None:
    keys = Issuer().key_set()
    with serving(authority, body(keys)) as url:
        assert get(url, trusting(authority)) == json.loads(keys)


@pytest.mark.parametrize("status", [301, 404, 500])
def test_another_status_is_no_answer_and_redirections_lead_nowhere(
    authority: Authority, status: int
) -> None:
    elsewhere = body(b"{}", status, Location="https://elsewhere.example/")
    with (
        serving(authority, elsewhere) as url,
        pytest.raises(UnavailableError, match=str(status)),
    ):
        get(url, trusting(authority))


@pytest.mark.parametrize("data", [b"", b"rubbish", b"[]", b"\xff"])
def test_an_answer_that_is_no_document_is_refused(authority: Authority, data: bytes) -> None:
    with (
        serving(authority, body(data)) as url,
        pytest.raises(CorruptError, match="is not a JWKS document"),
    ):
        get(url, trusting(authority))


def test_an_answer_that_breaks_off_is_none(authority: Authority) -> None:
    def broken(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b'{"keys": [')

    with serving(authority, broken) as url, pytest.raises((UnavailableError, CorruptError)):
        get(url, trusting(authority))


def test_an_answer_that_does_not_come_is_given_up(authority: Authority) -> None:
    stop = threading.Event()

    def silent(_: http.server.BaseHTTPRequestHandler) -> None:
        stop.wait(60)

    with serving(authority, silent) as url:
        with pytest.raises(UnavailableError, match="timed out"):
            get(url, trusting(authority), timeout_s=0.3)
        stop.set()


def test_a_server_of_another_authority_is_not_believed(
    authority: Authority, tmp_path: Path
) -> None:
    other = trusting(Authority(tmp_path / "other"))
    with (
        serving(authority, body(Issuer().key_set())) as url,
        pytest.raises(UnavailableError, match="certificate verify failed"),
    ):
        get(url, other)
