"""The shared-key handshake of Fluent forward v1, the server's side.

    server  ["HELO", {"nonce": bytes, "auth": salt or "", "keepalive": true}]
    client  ["PING", its host name, its salt, digest of the key, user name, digest of the password]
    server  ["PONG", true, "", own host name, digest of the key], or
            ["PONG", false, reason, "", ""], and the connection ends

A digest is SHA-512 in hex: of the sender's salt, the sender's host name, the nonce and the shared
key; that of a password is of the auth salt, the user's name and the password.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgpack

NONCE_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Secrets:
    """What a sender must know.

    Attributes:
        users: Passwords by name; with none the shared key is enough.
    """

    shared_key: str
    users: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a PING; `refusal` is empty when the sender may go on."""

    frame: bytes
    refusal: str = ""


class Handshake:
    """One connection's handshake.

    Args:
        secrets: What the sender must know.
        host: Our name. Senders refuse one that is their own host's.
        nonce: `NONCE_BYTES` of randomness.
        auth_salt: As many, for passwords.
    """

    def __init__(self, secrets: Secrets, host: str, *, nonce: bytes, auth_salt: bytes) -> None:
        self._secrets = secrets
        self._host = host
        self._nonce = nonce
        self._auth_salt = auth_salt if secrets.users else b""

    def hello(self) -> bytes:
        """What the server says first."""
        options = {"nonce": self._nonce, "auth": self._auth_salt, "keepalive": True}
        return _pack(["HELO", options])

    def answer(self, ping: bytes) -> Pong:
        """Judge the client's message, whatever it is."""
        fields = _fields(ping)
        if fields is None:
            return _refuse("a PING of six elements is expected")
        host, salt, digest, user, password_digest = fields
        key = self._secrets.shared_key.encode()
        if not hmac.compare_digest(digest, _digest(salt, host, self._nonce, key)):
            return _refuse("shared_key mismatch")
        if self._secrets.users:
            password = self._secrets.users.get(user.decode("utf-8", "replace"))
            right = _digest(self._auth_salt, user, (password or "").encode())
            # The comparison is made for an unknown user, too: its time must tell nothing.
            if not hmac.compare_digest(password_digest, right) or password is None:
                return _refuse("username/password mismatch")
        own = self._host.encode()
        proof = _digest(salt, own, self._nonce, key).decode()
        return Pong(_pack(["PONG", True, "", self._host, proof]))


def _fields(ping: bytes) -> list[bytes] | None:
    try:
        message = msgpack.unpackb(ping, raw=True)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException):
        return None
    if not isinstance(message, list) or len(message) != 6 or message[0] != b"PING":
        return None
    return message[1:] if all(isinstance(field, bytes) for field in message) else None


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha512(b"".join(parts)).hexdigest().encode()


def _refuse(reason: str) -> Pong:
    return Pong(_pack(["PONG", False, reason, "", ""]), reason)


def _pack(message: list[Any]) -> bytes:
    packed: bytes = msgpack.packb(message)
    return packed
