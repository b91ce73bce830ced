"""A publisher with its own NATS connection, and one that does not go without TLS."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from nats.aio.client import Client
from nats.errors import Error
from typing_extensions import override

from penstock.logd.errors import UnavailableError
from penstock.logd.nats.connect import Credentials, credentials
from penstock.logd.nats.protocol import NatsSetupError
from penstock.logd.publisher.publisher import Publisher, PublishOptions

_ASK_AGAIN_S = 0.05
_CLOSE_S: Final = 2.0
"""Seconds that a server has to take what is left, when its connection is closed."""
_REFUSED: Final = ("authoriz", "authentic", "permission", "user ", "account")
"""Parts of what a server says to a client that it does not accept."""
_FULL: Final = ("maximum", "exceeded")
"""Words of a refusal for lack of room: of connections in the account, or of any."""

_log = logging.getLogger(__name__)


@asynccontextmanager
async def connected(
    url: str, options: PublishOptions | None = None, **login: Any
) -> AsyncIterator[Publisher]:
    """A publisher with its own NATS connection, which is kept up until the block ends.

    With `tls://` in the URL or `tls` in the login, no credentials and no message go to a server
    without TLS: neither at first nor when the connection is made again.

    Args:
        url: ``nats://HOST:PORT``, or several of them joined by commas.
        options: Options of the publisher.
        login: Arguments of `nats.connect`: `user`, `password`, `token`, `user_credentials`, `tls`.

    Raises:
        UnavailableError: No NATS server can be reached.
    """
    options, last = options or PublishOptions(), ""
    said: dict[str, int] = {}  # why no server was reached, with how often one had been before

    async def note(error: Exception) -> None:
        nonlocal last
        last = str(error) or type(error).__name__
        reconnects = client.stats["reconnects"]
        if client.is_connected or said.get(last) != reconnects:
            said[last] = reconnects
            _log.warning("NATS: %s", last)

    login = {"error_cb": note} | login
    client = nats_client(encrypted=_wants_tls(url, login))
    try:
        # nats-py waits for ever for a server that takes nothing, with `publish`.
        usual = {"max_reconnect_attempts": -1, "flush_timeout": options.ack_timeout_s}
        login = {"servers": url.split(",")} | usual | login
        await connect_within(client, options.connect_timeout_s, **login)
    except (Error, OSError, ValueError) as error:
        await _close(client)
        shown = ",".join(one.rpartition("@")[2] for one in url.split(","))
        reason = str(error) or last or type(error).__name__
        raise UnavailableError(f"NATS at {shown}: {reason}") from None
    try:
        async with Publisher(client, options) as publisher:
            yield publisher
    finally:
        await _close(client)


async def _close(client: Client) -> None:
    """Close a client, whatever it has against that.

    nats-py asserts when it has not begun to connect, and waits for ever for a server that takes
    nothing any more.
    """
    closing = asyncio.ensure_future(client.close())
    try:
        await asyncio.wait({closing}, timeout=_CLOSE_S)
    finally:
        if not closing.done():
            writer = getattr(getattr(client, "_transport", None), "_io_writer", None)
            if writer is not None:
                writer.transport.abort()
            closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)


def is_refusal(said: str) -> bool:
    """Return whether a server will refuse the client until an operator acts."""
    said = said.lower()
    return any(it in said for it in _REFUSED) and not all(it in said for it in _FULL)


def nats_client(*, encrypted: bool) -> Client:
    """A client of nats-py's to connect with; an encrypted one sends nothing without TLS.

    Raises:
        UnavailableError: This version of nats-py cannot be held to that.
    """
    return _EncryptedClient() if encrypted else Client()


async def connect_within(client: Client, timeout_s: float, **options: Any) -> None:
    """Connect, and give up after a time even if nats-py loses the request to stop.

    nats-py tries for ever and waits with `asyncio.wait_for`, which up to Python 3.11 loses a
    cancellation that comes just as it has what it waits for; so it is asked again until it stops.

    Raises:
        TimeoutError: No server has let us in within the time.
        PermissionError: A credentials file cannot be used.
        Exception: Whatever nats-py raises before.
    """
    connecting = asyncio.ensure_future(client.connect(**_with_credentials(options)))
    try:
        in_time, _ = await asyncio.wait({connecting}, timeout=timeout_s)
    finally:
        while not connecting.done():
            connecting.cancel()
            await asyncio.wait({connecting}, timeout=_ASK_AGAIN_S)
    if not in_time:
        raise TimeoutError
    connecting.result()


def _with_credentials(options: dict[str, Any]) -> dict[str, Any]:
    """The options, with a credentials file read by us.

    nats-py (2.16) reads one that has no JWT for ever, and takes what else is wrong with it for the
    end of its reconnecting. It is read at each connection, so that renewed ones need no restart.
    """
    others = dict(options)
    file = others.pop("user_credentials", None)
    if not isinstance(file, str | Path):
        return options

    def read() -> Credentials:
        try:
            return credentials(Path(file))
        except NatsSetupError as error:
            raise PermissionError(str(error)) from None

    def user_jwt() -> bytes:
        return read().jwt.encode()

    def signature(nonce: str) -> bytes:
        return read().sign(nonce).encode()

    return {**others, "user_jwt_cb": user_jwt, "signature_cb": signature}


def _wants_tls(url: str, login: dict[str, Any]) -> bool:
    return "tls://" in url or any(login.get(name) for name in ("tls", "tls_handshake_first"))


class UnencryptedError(Error):  # type: ignore[misc] # nats-py has no types
    """A server that was to be spoken to with TLS alone."""

    def __init__(self) -> None:
        super().__init__("the server does not ask for TLS, and nothing is sent without it")


class _EncryptedClient(Client):  # type: ignore[misc] # nats-py has no types
    """nats-py's client, which sends nothing without TLS.

    nats-py (2.16) encrypts when the server's INFO asks for it, whatever the URL says, and sends
    CONNECT with the credentials next, on each connection. There is no option to demand TLS, so the
    place where CONNECT is made is where it is demanded.
    """

    def __init__(self) -> None:
        if not hasattr(Client, "_connect_command"):
            raise UnavailableError("this version of nats-py cannot be held to TLS; 2.16 can")
        super().__init__()

    @override
    def _connect_command(self) -> bytes:
        writer = getattr(self._transport, "_io_writer", None)
        if writer is None or writer.get_extra_info("ssl_object") is None:
            if self._transport is not None:
                self._transport.close()
            raise UnencryptedError
        command: bytes = super()._connect_command()
        return command
