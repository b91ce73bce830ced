"""The shared-key handshake, against what a client computes by the protocol's text."""

import hashlib
from typing import Any

import msgpack
import pytest

from penstock.collector.sources.forward.protocol import Handshake, Pong, Secrets

NONCE, AUTH, SALT = b"n" * 16, b"a" * 16, b"client salt"
USERS = {"anna": "pass"}


def digest(*parts: bytes) -> str:
    return hashlib.sha512(b"".join(parts)).hexdigest()


def handshake(**users: str) -> Handshake:
    return Handshake(Secrets("key", users), "collector", nonce=NONCE, auth_salt=AUTH)


def ping(key: bytes = b"key", user: str = "", password: bytes = b"", *, size: int = 6) -> bytes:
    fields: list[Any] = ["PING", "web-1", SALT, digest(SALT, b"web-1", NONCE, key), user]
    fields.append(digest(AUTH, user.encode(), password) if user else "")
    packed: bytes = msgpack.packb(fields[:size])
    return packed


def read(pong: Pong) -> Any:
    return msgpack.unpackb(pong.frame)


def test_hello_asks_for_a_password_only_where_there_are_users() -> None:
    assert msgpack.unpackb(handshake().hello()) == [
        "HELO", {"nonce": NONCE, "auth": b"", "keepalive": True},
    ]  # fmt: skip
    assert msgpack.unpackb(handshake(**USERS).hello())[1]["auth"] == AUTH


def test_who_knows_the_key_is_let_in_and_hears_that_the_server_does_too() -> None:
    pong = handshake().answer(ping())
    proof = digest(SALT, b"collector", NONCE, b"key")
    assert (pong.refusal, read(pong)) == ("", ["PONG", True, "", "collector", proof])


def test_a_user_needs_the_right_password() -> None:
    assert handshake(**USERS).answer(ping(user="anna", password=b"pass")).refusal == ""
    for wrong in (ping(user="anna", password=b"no"), ping(user="eve", password=b""), ping()):
        assert handshake(**USERS).answer(wrong).refusal == "username/password mismatch"


@pytest.mark.parametrize(
    "data",
    [
        ping(b"other key"),
        ping(size=5),
        b"\xc0",
        b"\xc1",
        b"",
        msgpack.packb(["PING", 1, 2, 3, 4, 5]),
    ],
)
def test_everything_else_is_refused_by_a_pong(data: bytes) -> None:
    pong = handshake().answer(data)
    assert pong.refusal
    assert read(pong) == ["PONG", False, pong.refusal, "", ""]
