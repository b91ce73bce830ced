"""A connection to a NATS server until it is accepted: TCP, INFO, TLS, credentials, CONNECT.

Order of the handshake as in the NATS client protocol: the server speaks first, in the clear, and
TLS follows its INFO; with `handshake_first` TLS comes before everything. TLS is used when the URL
or the configuration asks for it or the server demands it, and never given up once asked for.

Who logd is to a NATS server: password, token, NKEY seed or JWT credentials.

Files are read at each connection, so that renewed credentials need no restart. Of a seed only the
signature of the server's nonce leaves this process.

TLS to a NATS server: what is trusted, who we are, and what a failed handshake means.

The server's certificate is always checked, against the system's authorities or `ca_file`, and so is
the host's name.
"""

import asyncio
import base64
import binascii
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson
from msgspec import Struct

from penstock.base.clock import Clock
from penstock.base.lazy_module import LazyModule
from penstock.logd.nats.protocol import (
    ErrorKind,
    NatsRefusedError,
    NatsSetupError,
    OnMessages,
    Wire,
)
from penstock.logd.nats.servers import NatsServer
from penstock.logd.security.tls import (
    CertificateFiles,
    TlsFileError,
    TlsSource,
    refuses_our_certificate,
)
from penstock.service.config_types import Secret

if TYPE_CHECKING:
    import nkeys
else:
    nkeys = LazyModule("nkeys")

_FILE_SIZE_MAX: Final = 64 * 1024
"""Bytes of a seed or credentials file; a JWT with many permissions has some thousands."""

_BLOCK: Final = re.compile(
    rb"-{3,}BEGIN ([A-Z ]+?)-{3,}\s+(\S+)\s+-{3,}END [A-Z ]+?-{3,}", re.MULTILINE
)
_NS_PER_S: Final = 1_000_000_000
_CREDENTIALS_KEY: Final = "nats.credentials_file"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Login:
    """Credentials in the configuration; at most one way, and it precedes the URL's.

    Attributes:
        user: User, with `password`.
        nkey_seed_file: File with a user's seed (`SU...`).
        credentials_file: File with a user's JWT and seed, as `nsc` writes them (`.creds`).
    """

    user: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    nkey_seed_file: Path | None = None
    credentials_file: Path | None = None

    def fields(self, server: NatsServer, nonce: str, now_ns: int) -> dict[str, str]:
        """The fields of CONNECT. Reads files.

        Args:
            server: Server whose URL may hold credentials.
            nonce: Nonce of the server's INFO; may be empty.
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
        raise _bad_file(key, path, "holds no seed in its own line")
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
    """Content of a `.creds` file.

    Attributes:
        jwt: JWT of the user.
        claims: Claims of the JWT, whose signature is not checked.
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
    return NatsSetupError(key, f"{path}: {reason}", fix="name the right file, or create it again")


_EXPIRED: Final = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
_WRONG_NAME: Final = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH


class TlsFiles(Struct, frozen=True, kw_only=True):
    """TLS in the configuration.

    Attributes:
        ca_file: PEM; instead of the system's authorities.
        cert_file: PEM; the client's certificate and its chain to an authority.
        key_file: PEM; the certificate's key, if it is not in `cert_file`.
        server_name: Name in the server's certificate, instead of its host.
        handshake_first: Whether the server awaits the handshake before it says anything.
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str | None = None
    handshake_first: bool = False

    def paths(self) -> tuple[Path, ...]:
        """The files there are."""
        return self._files().paths()

    def context(self) -> ssl.SSLContext:
        """Load everything.

        Raises:
            NatsSetupError: A file is missing, or not what it should be.
        """
        try:
            return self._files().client()
        except TlsFileError as error:
            raise NatsSetupError(f"nats.tls.{error.key}", str(error), fix=error.fix) from None

    def _files(self) -> CertificateFiles:
        return CertificateFiles(
            ca_file=self.ca_file, cert_file=self.cert_file, key_file=self.key_file
        )


def explain_tls_error(error: ssl.SSLError, server: str, name: str) -> Exception:
    """Return the operator's error for a failed handshake.

    Args:
        error: OpenSSL's error.
        server: The server's address.
        name: Name that the certificate was checked for.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _EXPIRED:
            return ConnectionError(f"{server}: its certificate is out of date; it needs a new one")
        if error.verify_code in _WRONG_NAME:
            return NatsSetupError(
                "nats.url",
                f"{server}: its certificate is not for {name!r}: {error.verify_message}",
                fix="use the name the certificate is for, in nats.url or nats.tls.server_name",
            )
        return NatsSetupError(
            "nats.tls.ca_file",
            f"{server}: its certificate is not trusted: {error.verify_message}",
            fix="name the file of the authority that signed it",
        )
    if refuses_our_certificate(error):
        return NatsRefusedError(
            f"TLS: it refuses the certificate of nats.tls.cert_file: {error.reason}"
        )
    return ConnectionError(f"{server}: TLS handshake failed: {error.reason or error}")


_TCP_S: Final = 2.0
_NEXT_ADDRESS_S: Final = 0.25
"""Seconds until the next address of a name is tried beside one that does not answer (RFC 8305)."""

_HANDSHAKE_S: Final = 5.0


class NatsAccess(Struct, frozen=True, kw_only=True):
    """Access to a NATS cluster.

    Attributes:
        servers: The configured servers.
        login: logd's credentials.
        tls: None: only where a URL or a server asks for it, with the system's authorities.
        source: Returns a context made of `tls` and its current files; None: they are read for
            each connection.
    """

    servers: tuple[NatsServer, ...]
    login: Login = msgspec.field(default_factory=Login)
    tls: TlsFiles | None = None
    source: TlsSource | None = None

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a new connection; may read files.

        Raises:
            NatsSetupError: A file is missing or invalid.
        """
        return (self.tls or TlsFiles()).context() if self.source is None else self.source()

    def shown(self) -> str:
        """The servers without secrets."""
        return ", ".join(server.shown() for server in self.servers)


async def dial(
    access: NatsAccess, server: NatsServer, *, name: str, on_messages: OnMessages, clock: Clock
) -> Wire:
    """Connect to one server.

    Args:
        access: logd's credentials, and TLS.
        server: The server.
        name: Shown in the server's monitoring.
        on_messages: Called with the connection's messages.
        clock: Clock for the expiry of credentials.

    Raises:
        NatsRefusedError: It does not want us.
        NatsSetupError: The configuration does not fit it.
        OSError: It cannot be reached, or broke off.
    """
    tls = access.tls or TlsFiles()
    first = bool(access.tls and access.tls.handshake_first)
    context = await asyncio.to_thread(access.context) if first else None
    wire = await _open(server, tls, context, on_messages)
    try:
        async with asyncio.timeout(_HANDSHAKE_S):
            info = await _greeting(wire, first=first)
            if not first and (server.tls or access.tls or info.get("tls_required")):
                await _secure(wire, server, access, info)
            await _introduce(wire, access, server, name, clock.unix_ns())
    except TimeoutError:
        wire.abort()
        raise TimeoutError(f"{server.shown()}: no answer within {_HANDSHAKE_S:g} s") from None
    except ssl.SSLError as error:
        wire.abort()
        raise explain_tls_error(error, server.shown(), _tls_name(server, tls)) from None
    except BaseException:
        wire.abort()
        raise
    return wire


async def _open(
    server: NatsServer, tls: TlsFiles, context: ssl.SSLContext | None, on_messages: OnMessages
) -> Wire:
    """Connect by TCP, and at once by TLS where there is a context."""
    loop = asyncio.get_running_loop()
    name = _tls_name(server, tls)
    try:
        async with asyncio.timeout(_TCP_S if context is None else _HANDSHAKE_S):
            _, wire = await loop.create_connection(
                lambda: Wire(on_messages),
                *server.place,
                ssl=context,
                server_hostname=None if context is None else name,
                happy_eyeballs_delay=_NEXT_ADDRESS_S,
            )
    except TimeoutError:
        raise TimeoutError(f"{server.shown()}: no connection in time") from None
    except ssl.SSLError as error:
        raise explain_tls_error(error, server.shown(), name) from None
    return wire


async def _greeting(wire: Wire, *, first: bool) -> dict[str, Any]:
    """The server's INFO; a server that awaits TLS says nothing, or hangs up for want of it."""
    hint = "" if first else "; if it awaits TLS at once, set nats.tls.handshake_first"
    try:
        async with asyncio.timeout(_TCP_S):
            return await asyncio.shield(wire.info)
    except TimeoutError:
        raise ConnectionError(f"it says nothing{hint}") from None
    except ConnectionError as error:
        if wire.reads:
            raise
        raise ConnectionError(f"{error} before it said anything{hint}") from None


async def _secure(wire: Wire, server: NatsServer, access: NatsAccess, info: dict[str, Any]) -> None:
    if not (info.get("tls_required") or info.get("tls_available")):
        raise NatsRefusedError(f"{server.shown()} does not offer TLS, which is asked for")
    tls = access.tls or TlsFiles()
    context = await asyncio.to_thread(access.context)
    await wire.secure(context, _tls_name(server, tls), _HANDSHAKE_S)


async def _introduce(
    wire: Wire, access: NatsAccess, server: NatsServer, name: str, now_ns: int
) -> None:
    """Log in; on return the server has us."""
    nonce = wire.info.result().get("nonce", "")
    login = await asyncio.to_thread(access.login.fields, server, str(nonce), now_ns)
    connect = {
        "verbose": False,
        "pedantic": False,
        "lang": "python",
        "version": "0.1.0",
        "protocol": 1,
        "echo": False,
        "headers": True,
        "no_responders": True,
        "name": name,
    } | login
    try:
        errors = await wire.ask(b"CONNECT %b\r\n" % orjson.dumps(connect))
    except ConnectionError:
        if isinstance(wire.cause, ssl.SSLError):  # of TLS 1.3: a certificate is refused afterwards
            raise wire.cause from None
        raise
    if any(error.kind is ErrorKind.LOGIN for error in errors):
        raise NatsRefusedError(errors[0].text)


def _tls_name(server: NatsServer, tls: TlsFiles) -> str:
    return tls.server_name or server.tls_name or server.host
