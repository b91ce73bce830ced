"""TLS of the sources that listen on the network: contexts that follow their files.

A certificate that was replaced is used from the next connection on; one that has become unusable
changes nothing and is logged.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import structlog
from typing_extensions import override

from penstock.base.lazy_module import LazyModule
from penstock.collector.sources.settings import TlsSection
from penstock.logd.errors import LogdError
from penstock.logd.security.renewal import Renewed
from penstock.logd.security.tls import CertificateFiles, ClientCertificates
from penstock.service import ConfigError

if TYPE_CHECKING:
    import grpc
else:
    grpc = LazyModule("grpc")  # only the source `otlp` speaks it

_SAY_AGAIN_S: Final = 60.0
"""Pause between log lines about failed handshakes, so that scanners fill no log."""


class ServerTls:
    """The certificate that a source's listeners show, and the one they ask for.

    Args:
        section: The files.
        source: Its name.
        note: Counts a handshake that fails, which asyncio tells nobody: no TLS, or no certificate
            that is taken. Those of gRPC, which speaks TLS itself, are not counted.

    Raises:
        ConfigError: A file is not what it should be.
    """

    def __init__(self, section: TlsSection, source: str, note: Callable[[str, int], None]) -> None:
        files = CertificateFiles(
            ca_file=section.ca_file, cert_file=section.cert_file, key_file=section.key_file
        )
        self._section = section
        self._asks = section.ca_file is not None
        clients = ClientCertificates.REQUIRED if self._asks else ClientCertificates.NONE
        try:
            self._contexts = Renewed(
                f"tls of source {source}", files.paths(), lambda: files.server(clients)
            )
        except LogdError as error:
            raise ConfigError(
                f"source {source}: tls: {error}", fix="name readable PEM files that belong together"
            ) from None
        self.context = files.server(clients)
        self.context.sni_callback = self._choose
        self.context.sslobject_class = self._telling()
        # Many senders never read. A ticket that is left unread makes of their close a reset, with
        # which the kernel and asyncio throw away what they have sent.
        self.context.num_tickets = 0
        self._note = note
        self._silent_until_s = 0.0
        self._log = structlog.get_logger().bind(source=source)

    @classmethod
    def of(
        cls, section: TlsSection | None, source: str, note: Callable[[str, int], None]
    ) -> "ServerTls | None":
        """None where the source has no such section."""
        return None if section is None else cls(section, source, note)

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
        """Called in every handshake, with or without a server name."""
        self._contexts.look()
        connection.context = self._contexts()

    def _telling(self) -> type[ssl.SSLObject]:
        """A connection's side of TLS that tells when its handshake fails."""
        failed = self._failed

        class Telling(ssl.SSLObject):
            @override
            def do_handshake(self) -> None:
                try:
                    super().do_handshake()
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    raise
                except ssl.SSLError as error:
                    failed(error)
                    raise

        return Telling

    def _failed(self, error: ssl.SSLError) -> None:
        self._note("tls_handshakes_failed", 1)
        now_s = asyncio.get_running_loop().time()
        if now_s < self._silent_until_s:
            return
        self._silent_until_s = now_s + _SAY_AGAIN_S
        why = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else ""
        self._log.warning("tls_handshake_failed", error=why or error.reason)

    def grpc_credentials(self) -> "grpc.ServerCredentials":
        """Return the same for a gRPC server, which asks at every handshake whether it has changed.

        The answer is None unless it has. gRPC replaces its keys at any other answer, while other
        handshakes use them; many clients that fail at the same time would then end the process.
        """
        shown = self._contexts()

        def changed() -> Any:  # None, which gRPC's types leave out: nothing has changed
            nonlocal shown
            current = self._contexts.current()
            if current is shown:
                return None
            files = self._grpc_files()
            shown = current
            return files

        return grpc.dynamic_ssl_server_credentials(
            self._grpc_files(), changed, require_client_authentication=self._asks
        )

    def _grpc_files(self) -> "grpc.ServerCertificateConfiguration":
        section = self._section
        chain = section.cert_file.read_bytes()
        key = section.key_file.read_bytes()
        authorities = section.ca_file.read_bytes() if section.ca_file is not None else None
        return grpc.ssl_server_certificate_configuration([(key, chain)], authorities)
