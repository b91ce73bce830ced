"""The framed TCP server of fetch and control requests."""

from typing import Protocol

import structlog

from penstock.base.clock import SystemClock
from penstock.logd.errors import (
    CorruptError,
    LogdError,
    NotOpenError,
    NotReadyError,
    RefusedError,
)
from penstock.logd.fetch.connection import (
    FetchConnection,
    FetchCounts,
    FetchLimits,
    Response,
    SendingTurn,
)
from penstock.logd.fetch.entrance import Entrance
from penstock.logd.fetch.wire import Document, encode_response, error_document
from penstock.logd.limits import STRANGERS_BESIDES
from penstock.logd.security.authenticator import Authenticator
from penstock.logd.security.identity import UnauthenticatedError
from penstock.logd.security.principal import Principal
from penstock.logd.security.tls import TlsSource
from penstock.logd.store import CorruptFrameError
from penstock.logd.tcp.channel import Channel
from penstock.logd.tcp.listener import Listener

_log = structlog.get_logger()


class Api(Protocol):
    """What answers the requests."""

    async def answer(self, request: Document, turn: SendingTurn) -> Response:
        """Do what a request asks."""
        ...

    def admit(self, request: Document, caller: Principal) -> None:
        """As `Desk`."""


class FetchServer:
    """Listens until it is closed.

    Args:
        api: Answers the requests.
        limits: Further connections and requests are told so.
        tls: Of the endpoint; None: it has none.
        authenticator: Says who callers are; None: they are all anonymous.

    Attributes:
        counts: For telemetry.
    """

    def __init__(
        self,
        api: Api,
        limits: FetchLimits,
        *,
        tls: TlsSource | None = None,
        authenticator: Authenticator | None = None,
    ) -> None:
        self.counts = FetchCounts()
        self._api = api
        self._limits = limits
        self._authenticator = authenticator or Authenticator(SystemClock())
        self._listener = Listener(
            self._serve,
            name="fetch endpoint",
            key="fetch",
            tls=tls,
            strangers_max=limits.connections_max + STRANGERS_BESIDES,
        )

    @property
    def connections(self) -> int:
        """Connections open now."""
        return self._listener.connections

    @property
    def handshakes_failed(self) -> int:
        """Connections without TLS, or without a certificate that is taken."""
        return self._listener.handshakes_failed

    @property
    def turned_away(self) -> int:
        """Connections that had not said whose they are, closed for others."""
        return self._listener.turned_away

    def listen(self, address: str) -> str:
        """Begin to listen on a `HostPort`; returns the address with the port in use.

        Raises:
            UnavailableError: It cannot be listened on.
        """
        return self._listener.listen(address)

    async def run(self) -> None:
        """Accept connections until cancelled; then all of them end."""
        await self._listener.run()

    def close(self) -> None:
        """Listen no more."""
        self._listener.close()

    async def _serve(self, channel: Channel) -> None:
        try:
            entrance = Entrance(self._authenticator, channel, self._let_in)
        except UnauthenticatedError as error:
            self.counts.count_refusal(error.code)
            document = encode_response({"id": 0, "error": error_document(error)})
            await channel.send(document, stall_s=self._limits.stall_s)
            return
        served = FetchConnection(channel, self, self._limits, self.counts, entrance)
        await served.serve()

    def _let_in(self) -> None:
        """It is known whose the connection is that the present task serves, or need not be.

        Raises:
            RefusedError: `TOO_MANY_CONNECTIONS`.
        """
        limit = self._limits.connections_max
        if self._listener.known >= limit:
            message = f"there are {limit} connections already"
            raise RefusedError("TOO_MANY_CONNECTIONS", message, limit=limit)
        self._listener.vouch()

    def admit(self, request: Document, caller: Principal) -> None:
        """As `Desk`."""
        try:
            self._api.admit(request, caller)
        except NotReadyError as error:
            raise RefusedError("NOT_READY", str(error)) from None

    async def answer(self, request: Document, turn: SendingTurn) -> Response:
        """Answer, turning everything that can go wrong into a refusal for the one who asked."""
        try:
            return await self._api.answer(request, turn)
        except RefusedError:
            raise
        except CorruptError as error:
            _log.error("damaged data was asked for", error=str(error))
            raise _corrupt(error) from None
        except NotReadyError as error:
            raise RefusedError("NOT_READY", str(error)) from None
        except NotOpenError as error:
            raise RefusedError("UNAVAILABLE", str(error), cause=error.cause) from None
        except (LogdError, OSError) as error:
            _log.error("request failed", api=request["api"], error=str(error))
            raise RefusedError("UNAVAILABLE", str(error)) from None
        except Exception as error:  # noqa: BLE001 - one bad request must not end the daemon
            _log.exception("request failed", api=request["api"])
            raise RefusedError("INTERNAL", f"{type(error).__name__}: {error}") from None


def _corrupt(error: CorruptError) -> RefusedError:
    if isinstance(error, CorruptFrameError):
        return RefusedError(
            "CORRUPT", str(error), offset=error.offset, next_offset=error.next_offset
        )
    return RefusedError("CORRUPT", str(error))
