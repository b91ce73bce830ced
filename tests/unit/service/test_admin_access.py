"""Who sees more of a part than its health."""

import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from penstock.service import ConfigError, Health, Status
from penstock.service.admin_access import AdminAccess, admin_server, ask_admin
from tests.support.certificates import Authority

TOKEN = "0123456789abcdef"


def status() -> Status:
    return Status("collector", "host-1", "1.0", Health.DEGRADED, reasons=("the disk",))


def code_of(url: str, token: str = "", tls: ssl.SSLContext | None = None) -> int:
    headers = {"Authorization": token} if token else {}
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20, context=tls) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.fixture
def access(tmp_path: Path) -> AdminAccess:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    return AdminAccess(token_file=path)


@pytest.fixture
def address(access: AdminAccess) -> Iterator[str]:
    server = admin_server(status, CollectorRegistry(), access)
    yield server.start("127.0.0.1:0")
    server.close()


def test_strangers_see_the_health_and_nothing_more(address: str, access: AdminAccess) -> None:
    for path in ("/status", "/metrics", "/", "/other"):
        for token in ("", TOKEN, "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"bearer {TOKEN}"):
            assert code_of(f"http://{address}{path}", token) == 401, (path, token)
    with urllib.request.urlopen(f"http://{address}/healthz", timeout=20) as answer:
        assert json.load(answer) == {"component": "collector", "health": "degraded"}
    for path in ("/status", "/metrics", "/healthz"):
        assert code_of(f"http://{address}{path}", f"Bearer {TOKEN}") == 200
    assert json.loads(ask_admin(address, "/status", access, timeout_s=20))["name"] == "host-1"
    with pytest.raises(OSError, match="401"):
        ask_admin(address, "/status", None, timeout_s=20)


def test_a_query_is_answered_to_whoever_may_see_the_status(access: AdminAccess) -> None:
    queries = {"/ask": lambda _, body: ("200 OK", {"asked": body.decode()})}
    server = admin_server(status, CollectorRegistry(), access, queries=queries)
    url = f"http://{server.start('127.0.0.1:0')}/ask"
    for token in ("", "Bearer ", f"Bearer {TOKEN}x"):
        assert code_of(url, token) == 401
    assert code_of(url, f"Bearer {TOKEN}") == 405, "only by a POST"
    request = urllib.request.Request(url, b"x", {"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert json.load(answer) == {"asked": "x"}
    server.close(quietly=True)


def test_the_token_is_not_shown_to_a_proxy_of_the_environment(
    address: str, access: AdminAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.setblocking(False)
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        assert json.loads(ask_admin(address, "/status", access, timeout_s=5))["name"] == "host-1"
        with pytest.raises(BlockingIOError):
            proxy.accept()


def test_a_token_that_changes_is_followed_and_one_that_goes_is_kept(
    address: str, access: AdminAccess
) -> None:
    url = f"http://{address}/status"
    access.token_file.write_text("another one that is long\n")
    assert code_of(url, f"Bearer {TOKEN}") == 401
    assert code_of(url, "Bearer another one that is long") == 200
    for text in ("", "short"):
        access.token_file.write_text(text)
        assert code_of(url, f"Bearer {text}") == 401
    access.token_file.unlink()
    assert code_of(url, "Bearer another one that is long") == 200


def test_with_a_certificate_only_tls_is_served(tmp_path: Path, access: AdminAccess) -> None:
    authority = Authority(tmp_path / "authority")
    own = authority.sign("collector", "DNS:collector")
    secured = access.model_copy(update={"cert_file": own.cert, "key_file": own.key})
    server = admin_server(status, CollectorRegistry(), secured)
    address = server.start("127.0.0.1:0")
    try:
        with pytest.raises(OSError):  # noqa: PT011 - however it is cut off
            code_of(f"http://{address}/healthz")
        assert json.loads(ask_admin(address, "/status", secured, timeout_s=20))["name"] == "host-1"
        other = authority.sign("other", "DNS:collector")
        posing = secured.model_copy(update={"cert_file": other.cert})
        with pytest.raises(OSError, match="certificate"):
            ask_admin(address, "/status", posing, timeout_s=20)
    finally:
        server.close()


@pytest.mark.parametrize("text", [None, "", "short", "two lines that are\nlong enough"])
def test_a_token_that_is_none_is_refused_at_the_start(
    text: str | None, access: AdminAccess
) -> None:
    if text is None:
        access.token_file.unlink()
    else:
        access.token_file.write_text(text)
    with pytest.raises(ConfigError, match="admin_access") as error:
        admin_server(status, CollectorRegistry(), access)
    assert "short" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "No such file"),
        (b"short", "at least 16"),
        (b"long enough, but\rtwo lines", "one line"),
        (b"long enough, and hush \xff", "one line"),
    ],
)
def test_whoever_asks_is_told_which_file_cannot_be_used(
    address: str, access: AdminAccess, text: bytes | None, why: str
) -> None:
    """And not that nobody answers; nor any of what it holds."""
    if text is None:
        access.token_file.unlink()
    else:
        access.token_file.write_bytes(text)
    with pytest.raises(ConfigError, match=r"admin_access\.token_file: .*token cannot") as error:
        ask_admin(address, "/status", access, timeout_s=20)
    assert why in str(error.value)
    assert "may read it" in error.value.fix
    assert not any(it in str(error.value) for it in ("hush", "0xff", "short", "two lines"))


def test_whoever_asks_is_told_of_a_certificate_that_is_none(
    address: str, access: AdminAccess
) -> None:
    posing = access.model_copy(update={"cert_file": access.token_file})
    with pytest.raises(ConfigError, match=r"admin_access\.cert_file: .*token cannot"):
        ask_admin(address, "/status", posing, timeout_s=20)


def test_a_token_of_any_letters_is_shown_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("žluťoučký kůň úpěl")
    access = AdminAccess(token_file=path)
    server = admin_server(status, CollectorRegistry(), access)
    try:
        address = server.start("127.0.0.1:0")
        assert json.loads(ask_admin(address, "/status", access, timeout_s=20))["name"] == "host-1"
    finally:
        server.close()
