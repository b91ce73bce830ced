"""The connection to NATS: tried until there is one, and replaced when a client gives up.

nats-py reconnects by itself when an established connection breaks. In three cases it does not: it
hangs on an untrusted certificate at its first connection; it gives up when the server ends a
connection with an error, such as after a lower limit of message size; and it gives up on an answer
that it cannot read, such as half a first line. So each attempt here has its own client and ends
with the first error, and a client that gave up gets a successor.
"""

import asyncio
import dataclasses
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import structlog
from nats.errors import Error

from penstock.base.backoff import Backoff, Restarts
from penstock.base.clock import Clock
from penstock.collector.config import NatsSection
from penstock.collector.sources.settings import read_secret
from penstock.logd.errors import LogdError
from penstock.logd.publisher.connecting import (
    UnencryptedError,
    connect_within,
    is_refusal,
    nats_client,
)
from penstock.logd.security.tls import CertificateFiles, TlsFileError
from penstock.service import ConfigError, UnavailableError
from penstock.service.config_types import Secret


@dataclass(frozen=True, slots=True)
class Outage:
    """One time without a connection.

    Attributes:
        since_ns: Time of its beginning, by the clock for dates.
        said: Error of the last attempt; empty before the first one.
        lasting: It ends only when somebody corrects something, here or there.
    """

    since_ns: int
    said: str = ""
    lasting: bool = False

    def text(self, address: str) -> str:
        """A reason for being degraded."""
        since = datetime.fromtimestamp(self.since_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        what = "used" if self.lasting else "reached"
        why = f": {self.said}" if self.said else ""
        return f"NATS at {address} cannot be {what} since {since}{why}; held in the spool"


_PENDING_BYTES_MAX: Final = 32 * 1024 * 1024
_CLOSE_S: Final = 1.0
_CALM_S: Final = 60.0
"""A connection that stood so long before it was lost is looked for as the first one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Seconds that a link waits.

    Attributes:
        connect_min_s: Seconds before the first attempt to find another server.
        connect_max_s: Maximum of these waits, which double.
        look_s: Seconds between two checks whether nats-py has given up.
        reconnect_s: Seconds between two attempts of nats-py.
    """

    connect_min_s: float = 0.5
    connect_max_s: float = 5.0
    look_s: float = 0.5
    reconnect_s: float = 0.5


class NatsLink:
    """One way to a NATS server.

    Args:
        on_change: Called when the connection is lost or found.
        waits: Seconds of the link's waits.
        make_client: Makes a client of nats-py's, given whether it is to be encrypted.

    Attributes:
        client: nats-py's, the last one that was connected; None before.
    """

    def __init__(
        self,
        config: NatsSection,
        clock: Clock,
        on_change: Callable[[], None],
        *,
        waits: Waits = Waits(),
        make_client: Callable[..., Any] = nats_client,
    ) -> None:
        self.client: Any = None
        self._config = config
        self._clock = clock
        self._on_change = on_change
        self._waits, self._make_client = waits, make_client
        self._name = ""
        self._timeout_s = 0.0
        self._context: ssl.SSLContext | None = None
        self._outage: Outage | None = Outage(clock.unix_ns())
        self._last_error = ""
        self._keeping: asyncio.Task[None] | None = None
        self._log = structlog.get_logger()

    @property
    def is_connected(self) -> bool:
        return self.client is not None and bool(self.client.is_connected)

    @property
    def _is_gone(self) -> bool:
        """True if nats-py does not look for a server."""
        return self.client is None or bool(self.client.is_closed) or _has_given_up(self.client)

    @property
    def trouble(self) -> str:
        """Why nothing can be sent now; empty when it can."""
        if self.is_connected:
            return ""
        return (self._outage or Outage(self._clock.unix_ns())).text(self._address)

    @property
    def _address(self) -> str:
        """The URL for people, without credentials: the collector reads its own log."""
        scheme, separator, rest = self._config.url.partition("://")
        return f"{scheme}{separator}{rest.rpartition('@')[2]}"

    async def open(self, name: str, timeout_s: float, *, needed: bool) -> None:
        """Connect, and keep the connection up for ever.

        Args:
            name: The collector's.
            timeout_s: Maximum seconds of an attempt.
            needed: False: a server that is away is looked for from now on.

        Raises:
            ConfigError: A file of the configuration is not what it should be.
            UnavailableError: The server does not let us in, or is not to be trusted; or it is away,
                and needed.
        """
        self._name, self._timeout_s = name, timeout_s
        error = await self._attempt()
        if error is not None and (needed or is_lasting(error)):
            raise self._refusal(error)
        self._keeping = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Disconnect, and look for no server any more."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
        if self.client is not None:
            await _close(self.client)

    async def _keep(self) -> None:
        """Make a connection where there is none and nats-py makes none."""
        waits = self._waits
        restarts = Restarts(Backoff(waits.connect_min_s, waits.connect_max_s), calm=_CALM_S)
        while True:
            began_ns = self._clock.monotonic_ns()
            while not self._is_gone:  # noqa: ASYNC110 - nats-py does not tell of each end
                await asyncio.sleep(waits.look_s)
            ran_s = (self._clock.monotonic_ns() - began_ns) / 1e9
            await asyncio.sleep(restarts.failed(ran_s))
            if self.client is not None:
                await self._leave(self.client)
            await self._attempt()

    async def _leave(self, client: Any) -> None:
        """Close a client that does not go on; what ended it is in nobody's log yet."""
        task = _connecting_again(client)
        if task is not None and task.done() and not task.cancelled():
            error = task.exception()
            if isinstance(error, Exception):
                await self._on_error(error)
        await _close(client)

    async def _attempt(self) -> Exception | None:
        """Try once; returns what was in the way."""
        try:
            self.client = await self._connect()
        except Exception as error:  # noqa: BLE001 - whatever it is, what is received is kept
            await self._on_error(error)
            return error
        self._log.info("nats_connected", url=self._address)
        self._end_outage()
        return None

    async def _connect(self) -> Any:
        """A client that is connected.

        Raises:
            Exception: The first that nats-py met.
        """
        client = self._make_client(encrypted=self._config.encrypted)
        failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

        async def on_error(error: Exception) -> None:
            if failed.done():
                await self._on_error(error)
            else:
                failed.set_result(error)

        options = self._options() | {"error_cb": on_error}
        try:
            await _race(connect_within(client, self._timeout_s, **options), failed)
            _expect_connected(client)
        except BaseException:
            await _close(client)
            raise
        failed.cancel()
        return client

    def _options(self) -> dict[str, Any]:
        """Make the options of a client; certificates and credentials are read again.

        Raises:
            ConfigError: One is not what it should be.
        """
        config = self._config
        self._context = _context(config)
        return {
            "servers": [config.url],
            "name": f"penstock-collector {self._name}",
            "user": config.user,
            "password": _secret(config.password, "nats.password"),
            "token": _secret(config.token, "nats.token"),
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": self._waits.reconnect_s,
            "pending_size": _PENDING_BYTES_MAX,
            "disconnected_cb": self._on_disconnected,
            "reconnected_cb": self._on_reconnected,
            **({} if self._context is None else {"tls": self._context}),
        }

    def _refusal(self, error: Exception) -> Exception:
        """Return the error that ends the process, or a reload."""
        if isinstance(error, ConfigError):
            return error
        if is_lasting(error):
            return UnavailableError(
                f"nats.url: the NATS server at {self._address} cannot be used: {_said(error)}",
                fix="correct the keys of `nats`, or what the server asks for",
            )
        return UnavailableError(
            f"nats.url: no NATS server at {self._address}: {_said(error)}",
            fix="start the server, or correct the key `nats.url`",
        )

    def _end_outage(self) -> None:
        self._outage, self._last_error = None, ""
        self._on_change()

    async def _on_error(self, error: Exception) -> None:
        said = _said(error)
        if self._outage is not None:
            self._log_in_with_new_secrets()
            lasting = is_lasting(error)
            self._outage = dataclasses.replace(self._outage, said=said, lasting=lasting)
        if said != self._last_error:
            self._last_error = said
            self._log.warning("nats_error", url=self._address, error=said)

    async def _on_disconnected(self) -> None:
        if self._outage is not None:  # of a client that was never connected
            return
        self._outage = Outage(self._clock.unix_ns(), self._last_error)
        self._log.warning("nats_disconnected", url=self._address)
        self._show_anew()
        self._log_in_with_new_secrets()
        self._on_change()

    async def _on_reconnected(self) -> None:
        self._log.info("nats_reconnected", url=self._address)
        self._end_outage()

    def _log_in_with_new_secrets(self) -> None:
        """Have nats-py, which keeps what it was given, log in with what the files hold now."""
        if self.client is None:
            return
        config = self._config
        try:
            self.client.options["password"] = _secret(config.password, "nats.password")
            self.client.options["token"] = _secret(config.token, "nats.token")
        except ConfigError as error:
            self._log.warning("credentials_reload_failed", section="nats", reason=error.reason)

    def _show_anew(self) -> None:
        """Show the certificate as its files are now when the server is connected to again."""
        config = self._config
        if self._context is None or config.cert_file is None:
            return
        try:
            _context(config)  # the one in use is not touched by files that are unusable
            self._context.load_cert_chain(config.cert_file, config.key_file)
        except (ConfigError, OSError) as error:
            self._log.warning("credentials_reload_failed", section="nats", reason=str(error))


def is_lasting(error: Exception) -> bool:
    """Return whether the error lasts until an operator acts; otherwise the server is away.

    An error that may be either, such as a connection closed without a reason, counts as the latter.
    """
    if isinstance(error, ssl.SSLError):
        return not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
    if isinstance(error, ConfigError | UnencryptedError | LogdError):
        return True
    return isinstance(error, Error) and is_refusal(str(error))


def _said(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return error.reason if isinstance(error, ConfigError) else str(error) or type(error).__name__


async def _race(work: Coroutine[Any, Any, None], failed: asyncio.Future[Exception]) -> None:
    """Do something until it is done or has failed, whichever comes first."""
    doing = asyncio.ensure_future(work)
    both: set[asyncio.Future[Any]] = {doing, failed}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        doing.cancel()
        await asyncio.wait({doing})
    if failed.done():
        raise failed.result()
    doing.result()


def _expect_connected(client: Any) -> None:
    """Refuse a connection that ended before the server had answered, which nats-py says is made."""
    if not client.is_connected:
        raise ConnectionError("the server closed the connection")


def _has_given_up(client: Any) -> bool:
    """Return whether nats-py's task that reconnects has ended without a connection."""
    task = _connecting_again(client)
    return task is not None and task.done() and not client.is_connected


def _connecting_again(client: Any) -> asyncio.Task[None] | None:
    """nats-py's task that does, or has done it last; there is no other way to ask."""
    task: asyncio.Task[None] | None = getattr(client, "_reconnection_task", None)
    return task


async def _close(client: Any) -> None:
    """Close a client, which may hang; what it has against that is of no interest any more."""
    closing = asyncio.ensure_future(client.close())
    await asyncio.wait({closing}, timeout=_CLOSE_S)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)


def _context(config: NatsSection) -> ssl.SSLContext | None:
    """TLS by the configuration's files; None without any.

    Raises:
        ConfigError: One is not what it should be.
    """
    files = CertificateFiles(
        ca_file=config.ca_file, cert_file=config.cert_file, key_file=config.key_file
    )
    try:
        return files.client() if files.paths() else None
    except TlsFileError as error:
        raise ConfigError(f"nats.{error.key}: {error}", fix=error.fix) from None


def _secret(secret: Secret | None, key: str) -> str | None:
    return None if secret is None else read_secret(secret, key)
