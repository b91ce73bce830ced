"""The admin endpoint where callers must be known: TLS, and what strangers see."""

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from penstock.service import AdminServer, Authorization, Health, Requester, Status
from penstock.service.admin import CONNECTIONS_MAX
from tests.support.certificates import Authority
from tests.support.waiting import wait_until

STATUS = Status("logd", "logd-1", "0.1.0", Health.READY, ("a secret reason",))


def admit(visitor: Requester) -> Authorization:
    if visitor.authorization == "Bearer other":
        return Authorization.FORBIDDEN
    known = visitor.authorization == "Bearer good" or visitor.certificate is not None
    return Authorization.ALL if known else Authorization.UNKNOWN


@contextmanager
def serving(
    tls: ssl.SSLContext | None = None, *, closed: bool = True, whole_s: float = 30
) -> Iterator[tuple[str, int]]:
    server = AdminServer(
        lambda: STATUS,
        CollectorRegistry(),
        tls=None if tls is None else lambda: tls,
        admit=admit if closed else None,
        whole_s=whole_s,
    )
    host, _, port = server.start("127.0.0.1:0").partition(":")
    try:
        yield host, int(port)
    finally:
        server.close()


def get(
    at: tuple[str, int], path: str, authorization: str = "", tls: ssl.SSLContext | None = None
) -> tuple[int, bytes]:
    lines = [f"GET {path} HTTP/1.0"]
    if authorization:
        lines.append(f"Authorization: {authorization}")
    with socket.create_connection(at, timeout=60) as plain:
        connection = tls.wrap_socket(plain, server_hostname="localhost") if tls else plain
        with connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def test_strangers_see_the_health_and_nothing_else() -> None:
    with serving() as at:
        for wrong in ("", "Bearer bad", "Basic Z29vZDo=", "good"):
            code, body = get(at, "/healthz", wrong)
            assert (code, json.loads(body)) == (200, {"component": "logd", "health": "ready"})
            for path in ("/status", "/metrics", "/", "/nothing", "/healthz/", "//status"):
                code, body = get(at, path, wrong)
                assert code == 401
                assert b"logd-1" not in body


def test_whoever_is_known_and_may_not_is_told_so() -> None:
    with serving() as at:
        code, body = get(at, "/healthz", "Bearer other")
        assert (code, json.loads(body)) == (200, {"component": "logd", "health": "ready"})
        for path in ("/status", "/metrics"):
            code, body = get(at, path, "Bearer other")
            assert code == 403
            assert b"logd-1" not in body


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.0\r\nX: "], ids=["silent", "slow"])
def test_connections_that_ask_for_nothing_make_room(sent: bytes) -> None:
    with serving() as at:
        idle = [socket.create_connection(at, timeout=60) for _ in range(2 * CONNECTIONS_MAX)]
        for connection in idle:
            connection.sendall(sent)
        assert get(at, "/healthz")[0] == 200
        assert _rest(idle[0]) == b""
        for connection in idle:
            connection.close()


def test_whoever_is_known_sees_everything() -> None:
    with serving() as at:
        assert json.loads(get(at, "/status", "Bearer good")[1])["name"] == "logd-1"
        assert json.loads(get(at, "/healthz", "Bearer good")[1])["reasons"] == ["a secret reason"]
        assert get(at, "/metrics", "Bearer good")[0] == 200


def test_certificates_are_shown_to_the_process_and_slow_handshakes_hold_up_nobody(
    tmp_path: Path,
) -> None:
    servers, clients = Authority(tmp_path / "servers"), Authority(tmp_path / "clients")
    own, shown = servers.sign("logd", "DNS:localhost"), clients.sign("prometheus")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.cert, own.key)
    context.load_verify_locations(clients.cert)
    context.verify_mode = ssl.CERT_OPTIONAL
    anybody = ssl.create_default_context(cafile=servers.cert)
    known = ssl.create_default_context(cafile=servers.cert)
    known.load_cert_chain(shown.cert, shown.key)
    with serving(context) as at, socket.create_connection(at):  # it says nothing
        assert get(at, "/healthz", tls=anybody)[0] == 200
        assert get(at, "/status", tls=anybody)[0] == 401
        assert get(at, "/status", tls=known)[0] == 200
        with socket.create_connection(at, timeout=60) as plain:
            plain.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert b"ready" not in _rest(plain)


def test_connections_are_few_and_do_not_last() -> None:
    with serving(closed=False, whole_s=0.5) as at:
        slow = [socket.create_connection(at, timeout=60) for _ in range(CONNECTIONS_MAX + 8)]
        for connection in slow:
            connection.sendall(b"GET /healthz HTTP/1.0\r\nX: ")
        closed = [_rest(connection) for connection in slow]
        assert closed == [b""] * len(slow)
        for connection in slow:
            connection.close()
        wait_until(lambda: _health(at) == 200)


def _health(at: tuple[str, int]) -> int:
    try:
        return get(at, "/healthz")[0]
    except (OSError, IndexError):  # the last of the slow ones are just leaving
        return 0


def _rest(connection: socket.socket) -> bytes:
    try:
        return b"".join(iter(lambda: connection.recv(65_536), b""))
    except ConnectionError:
        return b""
