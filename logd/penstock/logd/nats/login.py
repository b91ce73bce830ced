"""Who logd is to a NATS server: password, token, NKEY seed or JWT credentials.

Files are read at each connection, so that renewed credentials need no restart. Of a seed only the
signature of the server's nonce leaves this process.
"""

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import nkeys
import orjson

from penstock.logd.core.servers import NatsServer
from penstock.logd.nats.errors import NatsSetupError
from penstock.service.secret import Secret

_FILE_SIZE_MAX: Final = 64 * 1024
"""Bytes of a seed or credentials file; a JWT with many permissions has some thousands."""

_BLOCK: Final = re.compile(
    rb"-{3,}BEGIN ([A-Z ]+?)-{3,}\s+(\S+)\s+-{3,}END [A-Z ]+?-{3,}", re.MULTILINE
)
_NS_PER_S: Final = 1_000_000_000
_CREDENTIALS_KEY: Final = "nats.credentials_file"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Login:
    """What the configuration says; at most one way, and it goes before what a URL says.

    Attributes:
        user: With `password`.
        nkey_seed_file: Holds a user's seed (`SU...`).
        credentials_file: Holds a user's JWT and seed, as `nsc` writes them (`.creds`).
    """

    user: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    nkey_seed_file: Path | None = None
    credentials_file: Path | None = None

    def fields(self, server: NatsServer, nonce: str, now_ns: int) -> dict[str, str]:
        """The fields of CONNECT. Reads files.

        Args:
            server: Whose URL may hold credentials.
            nonce: From the server's INFO; may be empty.
            now_ns: Unix time, to see whether a JWT has expired.

        Raises:
            NatsSetupError: A file is missing, malformed or out of date.
        """
        if self.credentials_file is not None:
            return _with_credentials(self.credentials_file, nonce, now_ns)
        if self.nkey_seed_file is not None:
            return _with_seed(self.nkey_seed_file, nonce)
        if self.token is not None:
            return {"auth_token": _secret(self.token, "nats.token")}
        if self.user is not None:
            password = "" if self.password is None else _secret(self.password, "nats.password")
            return {"user": self.user, "pass": password}
        return _of_url(server)


def _secret(secret: Secret, key: str) -> str:
    try:
        return secret.read()
    except OSError as error:
        fix = "name a file that logd may read"
        raise NatsSetupError(key, f"cannot be read: {error}", fix=fix) from None


def _of_url(server: NatsServer) -> dict[str, str]:
    if not server.user:
        return {}
    if server.password is None:
        return {"auth_token": server.user}
    return {"user": server.user, "pass": server.password}


def _with_seed(path: Path, nonce: str) -> dict[str, str]:
    key = "nats.nkey_seed_file"
    lines = [line.strip() for line in _read(path, key).splitlines()]
    seeds = [line for line in lines if line and not line.startswith(b"#")]
    if len(seeds) != 1:
        raise _bad_file(key, path, "holds no seed in a line of its own")
    public_key, sign = _load_seed(seeds[0], key, path)
    return {"nkey": public_key, "sig": sign(nonce)}


def _with_credentials(path: Path, nonce: str, now_ns: int) -> dict[str, str]:
    found = credentials(path)
    expires = found.claims.get("exp")
    if isinstance(expires, int) and 0 < expires * _NS_PER_S <= now_ns:
        raise NatsSetupError(
            _CREDENTIALS_KEY,
            f"{path}: the credentials have expired",
            fix="get new credentials for this user",
        )
    return {"jwt": found.jwt, "sig": found.sign(nonce)}


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """What a `.creds` file holds.

    Attributes:
        jwt: Of the user.
        claims: That the JWT makes; nobody has looked at its signature.
        sign: Signs a server's nonce with the user's seed.
    """

    jwt: str
    claims: dict[str, Any]
    sign: Callable[[str], str]


def credentials(path: Path) -> Credentials:
    """Read a `.creds` file.

    Raises:
        NatsSetupError: It is missing or malformed.
    """
    key = _CREDENTIALS_KEY
    blocks = dict(_BLOCK.findall(_read(path, key)))
    jwt, seed = blocks.get(b"NATS USER JWT"), blocks.get(b"USER NKEY SEED")
    if jwt is None or seed is None:
        raise _bad_file(key, path, "lacks a block NATS USER JWT or USER NKEY SEED")
    claims = _claims(jwt, key, path)
    public_key, sign = _load_seed(seed, key, path)
    if claims.get("sub") != public_key:
        raise _bad_file(key, path, "its seed is not that of the user its JWT names")
    return Credentials(jwt.decode("ascii", "replace"), claims, sign)


def _load_seed(seed: bytes, key: str, path: Path) -> tuple[str, Callable[[str], str]]:
    """A user's public key, and what signs a nonce."""
    try:
        prefix, raw = nkeys.decode_seed(seed)
        # The library does not look at the checksum: a seed with a typing error is another user.
        intact = prefix == nkeys.PREFIX_BYTE_USER and nkeys.encode_seed(bytes(raw), prefix) == seed
        pair = nkeys.from_seed(seed) if intact else None
    except (nkeys.NkeysError, binascii.Error, ValueError, IndexError):
        pair = None
    if pair is None:
        raise _bad_file(key, path, "its seed is not that of a user (SU...), or is mistyped")

    def sign(nonce: str) -> str:
        return base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()

    return pair.public_key.decode(), sign


def _claims(jwt: bytes, key: str, path: Path) -> dict[str, Any]:
    parts = jwt.split(b".")
    try:
        claims = orjson.loads(base64.urlsafe_b64decode(parts[1] + b"=" * (-len(parts[1]) % 4)))
    except (IndexError, ValueError):
        claims = None
    if len(parts) != 3 or not isinstance(claims, dict):
        raise _bad_file(key, path, "its JWT is malformed")
    return claims


def _read(path: Path, key: str) -> bytes:
    try:
        with path.open("rb") as file:
            text = file.read(_FILE_SIZE_MAX + 1)
    except OSError as error:
        reason = f"{path}: cannot be read: {error.strerror or error}"
        raise NatsSetupError(key, reason, fix="name an existing, readable file") from None
    if len(text) > _FILE_SIZE_MAX:
        raise _bad_file(key, path, f"has more than {_FILE_SIZE_MAX} bytes")
    return text


def _bad_file(key: str, path: Path, reason: str) -> NatsSetupError:
    return NatsSetupError(key, f"{path}: {reason}", fix="name the right file, or have it made anew")
