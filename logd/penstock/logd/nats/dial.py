"""From a server's address to a connection that it has accepted: TCP, INFO, TLS, CONNECT.

Order of the handshake as in the NATS client protocol: the server speaks first, in the clear, and
TLS follows its INFO; with `handshake_first` TLS comes before everything. TLS is used when the URL
or the configuration asks for it or the server demands it, and never given up once asked for.
"""

import asyncio
import ssl
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from penstock.base.clock import Clock
from penstock.logd.core.servers import NatsServer
from penstock.logd.nats.errors import ErrorKind, NatsRefusedError
from penstock.logd.nats.login import Login
from penstock.logd.nats.tls import TlsFiles, explain_tls_error
from penstock.logd.nats.wire import OnMessages, Wire
from penstock.logd.security.tls import TlsSource

_TCP_S: Final = 2.0
_NEXT_ADDRESS_S: Final = 0.25
"""Seconds until the next address of a name is tried beside one that does not answer (RFC 8305)."""

_HANDSHAKE_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsAccess:
    """How to get into a NATS cluster.

    Attributes:
        servers: To begin with.
        login: Who we are.
        tls: None: only where a URL or a server asks for it, with the system's authorities.
        source: Gives a context made of `tls`, and of its files as they are by then; None: they are
            read for each connection.
    """

    servers: tuple[NatsServer, ...]
    login: Login = field(default_factory=Login)
    tls: TlsFiles | None = None
    source: TlsSource | None = None

    def context(self) -> ssl.SSLContext:
        """For a new connection; may read files.

        Raises:
            NatsSetupError: A file is missing, or not what it should be.
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
        access: Who we are, and how TLS is done.
        server: Which one.
        name: Shown in the server's monitoring.
        on_messages: For the connection.
        clock: To see whether credentials have expired.

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
