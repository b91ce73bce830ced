"""Which NATS server is tried next, and what a cluster adds to the list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.nats.protocol import ErrorKind, understand
from penstock.logd.nats.servers import (
    SERVERS_MAX,
    NatsServer,
    ServerPool,
    hide_credentials,
    parse_servers,
)


def pool(*urls: str) -> ServerPool:
    return ServerPool(parse_servers(list(urls)), lambda _: None)


def shown(found: ServerPool) -> list[str]:
    return [server.shown() for server in found.servers]


@pytest.mark.parametrize(
    "url",
    [
        "",
        ",",
        "h:1",
        "http://h",
        "nats://",
        "nats://h:0",
        "nats://h:x",
        "nats://h:99999",
        "nats://h/x",
    ],
)
def test_a_wrong_url_is_refused_without_its_credentials(url: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_servers(url)
    with pytest.raises(ValueError, match="must be") as raised:
        parse_servers("nats://tom:s3cret@h:x")
    assert "s3cret" not in str(raised.value)


def test_urls_are_read_with_their_credentials_and_shown_without() -> None:
    plain, secure = parse_servers("nats://tom:p%40ss@h , tls://[::1]:7")
    assert plain == NatsServer("h", 4222, user="tom", password="p@ss")
    assert secure == NatsServer("::1", 7, tls=True)
    assert secure.shown() == "[::1]:7"
    assert hide_credentials("nats://a:b@c@h:1") == "nats://**********@h:1"
    assert hide_credentials("nats://h:1") == "nats://h:1"


@pytest.mark.parametrize(
    "urls",
    [
        "tom:s3cret@h:1",
        "s3cret@h:1",
        "nats://tom:s3cret,s3cret@h:1/x",
        "nats://tom:s3cret@h:1,tom:s3cret@g:1",
        "nats:/tom:s3cret@h",
        "nats://tom:s3cret://s3cret@h:x",
    ],
)
def test_what_is_no_url_is_refused_without_its_credentials_too(urls: str) -> None:
    with pytest.raises(ValueError, match="must be") as raised:
        parse_servers(urls)
    assert "s3cret" not in str(raised.value)


def test_credentials_are_in_no_representation() -> None:
    (server,) = parse_servers("nats://tom:s3cret@h:1")
    assert "s3cret" not in repr(server)
    assert "tom" not in repr(server)


def test_servers_are_tried_in_turn_and_the_pause_comes_after_a_round() -> None:
    found = pool("nats://a", "nats://b", "nats://c")
    taken, pauses = [], []
    for _ in range(9):
        taken.append(found.take().host)
        pauses.append(found.failed(draw=1.0))
    assert "".join(taken) == "abcabcabc"
    assert pauses == [0, 0, 0.05, 0, 0, 0.1, 0, 0, 0.2]
    found.connected()
    assert [found.failed(draw=1.0) for _ in range(3)] == [0, 0, 0.05]


def test_the_pause_grows_to_a_bound() -> None:
    found = pool("nats://a")
    assert [found.failed(draw=1.0) for _ in range(2000)][5:] == [1.6] + [2.0] * 1994


def test_what_a_cluster_names_is_tried_before_the_present_one_and_forgotten_with_it() -> None:
    found = pool("tls://tom:pw@a", "nats://b")
    via = found.take()
    found.learn(
        ["10.0.0.1:4222", "c.example:1", "a:4222", "[::1]:2", "bad", 7, "x:0", "y:70000"], via
    )
    assert shown(found) == ["b:4222", "10.0.0.1:4222", "c.example:1", "[::1]:2", "a:4222"]
    learned = found.servers[1]
    assert (learned.tls, learned.user, learned.password) == (True, "tom", "pw")
    assert [server.tls_name for server in found.servers[1:4]] == ["a", "", "a"]
    found.learn(["c.example:1"], via)
    assert shown(found) == ["b:4222", "c.example:1", "a:4222"]
    found.learn([], via)
    assert shown(found) == ["b:4222", "a:4222"]


def test_a_cluster_cannot_name_servers_without_bound() -> None:
    found = pool("nats://a")
    found.learn([f"h{number}:1" for number in range(10_000)], found.take())
    assert len(found.servers) == SERVERS_MAX


@given(st.lists(st.text(max_size=12) | st.integers() | st.none(), max_size=20))
def test_whatever_a_server_names_the_configured_ones_stay(urls: list[object]) -> None:
    found = pool("nats://a", "nats://b")
    found.learn(urls, found.take())
    assert {"a:4222", "b:4222"} <= set(shown(found))
    assert all(0 < server.port < 65_536 for server in found.servers)


@pytest.mark.parametrize(
    ("text", "kind", "sid"),
    [
        ("Authorization Violation", ErrorKind.LOGIN, None),
        ("User Authentication Expired", ErrorKind.LOGIN, None),
        ("Account Authentication Expired", ErrorKind.LOGIN, None),
        ("Authentication Timeout", ErrorKind.LOGIN, None),
        ('Permissions Violation for Publish to "a"', ErrorKind.PUBLISH, None),
        ('Permissions Violation for Subscription to "a"', ErrorKind.SUBSCRIPTION, None),
        ('Permissions Violation for Subscription to "a" (sid "7")', ErrorKind.SUBSCRIPTION, b"7"),
        ("maximum subscriptions exceeded", ErrorKind.SUBSCRIPTION, None),
        ("Stale Connection", ErrorKind.FATAL, None),
        ("Maximum Payload Violation", ErrorKind.FATAL, None),
        ("maximum account active connections exceeded", ErrorKind.FATAL, None),
        ("something new", ErrorKind.FATAL, None),
    ],
)
def test_what_the_server_says_is_understood(text: str, kind: ErrorKind, sid: bytes | None) -> None:
    assert (understand(text).kind, understand(text).sid) == (kind, sid)
