"""Authentication of gRPC calls: by certificate, or by `authorization: Bearer …` in the metadata.

In front of everything else, for each call. One that lasts is ended when its identity does. The
health service answers everybody.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from typing_extensions import override

from penstock.logd.liftbridge.calls import GUARDED, Call, CallGuard, wrapped
from penstock.logd.liftbridge.permissions import CallAuthorization
from penstock.logd.liftbridge.publish import Context
from penstock.logd.security.authenticator import Authenticator
from penstock.logd.security.principal import (
    Identity,
    UnauthenticatedError,
    bearer,
    end_call,
    set_caller,
)
from penstock.logd.security.tls import ServerTls

_DOOR: Final = "grpc"
_LOOK_AGAIN_S: Final = 1.0
"""Seconds between two looks at whether a subscriber may go on."""

_CERTIFICATES_MAX: Final = 1024
"""Cached certificates, so that each is read once and not with each call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcListener:
    """Authentication and TLS of a gRPC listener.

    Attributes:
        authenticator: Identifies clients.
        tls: Returns the current files; None: there is no TLS.
        certificates: Whether clients must show one.
        permits: Authorization of their calls.
    """

    authenticator: Authenticator
    permits: CallAuthorization
    tls: Callable[[], ServerTls] | None = None
    certificates: bool = False

    def credentials(self) -> grpc.ServerCredentials | None:
        """Return the listener's credentials; gRPC checks for changed files on each connection."""
        source = self.tls
        if source is None:
            return None
        shown = source()

        def changed() -> Any:
            nonlocal shown
            current = source()
            if current is shown:
                return None
            shown = current
            return self._configuration(current)

        first = self._configuration(shown)
        return grpc.dynamic_ssl_server_credentials(first, changed, self.certificates)

    def _configuration(self, files: ServerTls) -> Any:
        authorities = files.authorities if self.certificates else None
        return grpc.ssl_server_certificate_configuration([(files.key, files.chain)], authorities)


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Says for whom a call is made, or refuses it.

    Args:
        authenticator: Finds out.
        authorizer: Has room for a call, or not.
    """

    def __init__(self, authenticator: Authenticator, authorizer: CallGuard) -> None:
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._certificates: dict[bytes, bytes] = {}

    @override
    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        service = handler_call_details.method.strip("/").partition("/")[0]
        if handler is None or service not in GUARDED:
            return handler
        lasting = handler.response_streaming
        return wrapped(handler, lambda call: self._context(call, lasting=lasting))

    def _context(self, call: Call, *, lasting: bool) -> Call:
        async def entered(requests: Any, context: Context) -> Any:
            try:
                return await self._enter(call, requests, context, lasting=lasting)
            except UnauthenticatedError as error:
                self._authenticator.note_failure(_DOOR, error, context.peer())
                raise

        return entered

    async def _enter(self, call: Call, requests: Any, context: Context, *, lasting: bool) -> Any:
        """Find out who calls before anything is read of what is asked, and do it for them.

        Raises:
            UnauthenticatedError: The caller is unknown, or not any more.
        """
        identity = await self._identify(context)
        before = set_caller(self._authenticator.principal(identity))
        self._authenticator.note_success(_DOOR)
        try:
            with self._authorizer.under_way():
                if not lasting or identity.principal.is_anonymous:
                    return await call(requests, context)
                return await self._while_valid(call(requests, context), identity)
        finally:
            end_call(before)

    async def _identify(self, context: Context) -> Identity:
        """Return the identity of a call's token, else of its connection's certificate.

        Raises:
            UnauthenticatedError: There is no valid one.
        """
        shown = [value for key, value in context.invocation_metadata() or () if key == _HEADER]
        if not shown:
            return self._authenticator.certificate(self._certificate(context))
        if len(shown) > 1:
            message = "`authorization` stands in the call's metadata more than once"
            raise UnauthenticatedError("malformed", message)
        return await self._authenticator.secret_later(bearer(str(shown[0])))

    def _certificate(self, context: Context) -> bytes | None:
        found = context.auth_context().get("x509_pem_cert")
        if not found:
            return None
        pem = next(iter(found))
        der = self._certificates.get(pem)
        if der is None:
            der = x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
            if len(self._certificates) >= _CERTIFICATES_MAX:
                del self._certificates[next(iter(self._certificates))]
            self._certificates[pem] = der
        return der

    async def _while_valid(self, working: Awaitable[Any], identity: Identity) -> Any:
        """Await a call's result while its caller's identity is valid.

        Raises:
            UnauthenticatedError: The identity has expired.
        """
        task = asyncio.ensure_future(working)
        try:
            while not (await asyncio.wait({task}, timeout=_LOOK_AGAIN_S))[0]:
                self._authenticator.principal(identity)
            return task.result()
        finally:
            await _end(task)


_HEADER: Final = "authorization"


async def _end(task: "asyncio.Future[Any]") -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
