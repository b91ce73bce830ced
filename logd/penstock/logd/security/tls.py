"""TLS contexts of logd and its clients: TLS 1.2 or later, always verified.

A context is made from files; `penstock.logd.security.renewal` makes it again when they change. One
that dials checks that the other side's certificate is for the host it dials. Needs nothing but the
standard library, for the client uses it, too.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.base.lazy_module import LazyModule
from penstock.logd.errors import RefusedError
from penstock.logd.security.principal import not_after_ns

if TYPE_CHECKING:
    from cryptography import x509
else:
    x509 = LazyModule("cryptography.x509")

TlsSource = Callable[[], ssl.SSLContext]
"""Gives the context for a new connection."""

_REFUSES_OURS: Final = (
    "ALERT_BAD_CERTIFICATE",
    "CERTIFICATE_REQUIRED",
    "CERTIFICATE_EXPIRED",
    "CERTIFICATE_REVOKED",
    "ALERT_UNKNOWN_CA",
    "CERTIFICATE_UNKNOWN",
    "ALERT_HANDSHAKE_FAILURE",
)
"""OpenSSL's names of the alerts with which a server refuses a client's certificate."""


class ClientCertificates(StrEnum):
    """Policy of a listener on clients' certificates."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


class TlsFileError(RefusedError):
    """A file is not what it should be (`BAD_TLS_FILE`).

    Attributes:
        key: The one of `ca_file`, `cert_file` and `key_file` at fault.
        fix: The fix for the operator.
    """

    def __init__(self, key: str, message: str, *, fix: str) -> None:
        self.key = key
        self.fix = fix
        super().__init__("BAD_TLS_FILE", message, key=key)


class CertificateFiles(Struct, frozen=True, kw_only=True):
    """Whom one side of a connection trusts, and what it shows.

    Attributes:
        ca_file: PEM; who signs the certificates of the other side. None: to dial, the system's
            authorities; to listen, nobody.
        cert_file: PEM; the own certificate and what leads from it to the authority.
        key_file: PEM; its key, if that is not in `cert_file`.
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    def paths(self) -> tuple[Path, ...]:
        """The files there are."""
        return tuple(path for path in (self.ca_file, self.cert_file, self.key_file) if path)

    def server(self, clients: ClientCertificates = ClientCertificates.REQUIRED) -> ssl.SSLContext:
        """Return the context of a listener.

        Raises:
            TlsFileError: A file is missing or invalid.
        """
        self._check_readable()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        if clients is not ClientCertificates.NONE:
            assert self.ca_file is not None
            self._load_authorities(context, self.ca_file)
            required = clients is ClientCertificates.REQUIRED
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        assert self.cert_file is not None
        self._load_own(context, self.cert_file)
        return context

    def client(self) -> ssl.SSLContext:
        """Return the context of a dialer.

        Raises:
            TlsFileError: A file is missing or invalid.
        """
        self._check_readable()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.ca_file is None:
            context.load_default_certs()
        else:
            self._load_authorities(context, self.ca_file)
        if self.cert_file is not None:
            self._load_own(context, self.cert_file)
        return context

    def _check_readable(self) -> None:
        for key in ("ca_file", "cert_file", "key_file"):
            path = getattr(self, key)
            try:
                if path is not None:
                    path.open("rb").close()
            except OSError as error:
                message = f"{path}: cannot be read: {error.strerror or error}"
                raise TlsFileError(key, message, fix="name an existing, readable file") from None

    def _load_authorities(self, context: ssl.SSLContext, ca_file: Path) -> None:
        try:
            context.load_verify_locations(ca_file)
        except (ssl.SSLError, OSError):
            message = f"{ca_file}: holds no certificates in PEM"
            fix = "name a file of CA certificates"
            raise TlsFileError("ca_file", message, fix=fix) from None

    def _load_own(self, context: ssl.SSLContext, cert_file: Path) -> None:
        def no_password() -> str:
            message = f"{self.key_file or cert_file}: the key has a password"
            fix = "store the key without, readable by its user only"
            raise TlsFileError("key_file", message, fix=fix)

        try:
            context.load_cert_chain(cert_file, self.key_file, password=no_password)
        except (ssl.SSLError, OSError) as error:
            mismatch = "KEY_VALUES_MISMATCH" in str(error)
            what = "do not belong together" if mismatch else "are not a certificate and its key"
            shown = " and ".join(str(path) for path in (cert_file, self.key_file) if path)
            fix = "name PEM files that belong together"
            raise TlsFileError("cert_file", f"{shown}: {what}", fix=fix) from None


def refuses_our_certificate(error: ssl.SSLError) -> bool:
    """Return whether a handshake failed for lack of a certificate that the other side accepts."""
    return any(word in str(error).upper().replace(" ", "_") for word in _REFUSES_OURS)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServerTls:
    """One reading of the files.

    Attributes:
        context: Context of connections on the event loop and in threads.
        healthy: The same, but nobody has to show a certificate: for `/healthz`.
        chain, key, authorities: PEM, for gRPC.
        not_after_ns: Unix time at which the certificate ends.
    """

    context: ssl.SSLContext
    healthy: ssl.SSLContext
    chain: bytes
    key: bytes
    authorities: bytes | None
    not_after_ns: int


def load_server_tls(files: CertificateFiles, clients: ClientCertificates) -> ServerTls:
    """Read the files of a listener.

    Raises:
        TlsFileError: One is not what it should be.
        OSError: One has gone meanwhile.
    """
    assert files.cert_file is not None
    context, probed = files.server(clients), clients
    if clients is ClientCertificates.REQUIRED:
        probed = ClientCertificates.OPTIONAL
    chain = files.cert_file.read_bytes()
    return ServerTls(
        context=context,
        healthy=files.server(probed),
        chain=chain,
        key=(files.key_file or files.cert_file).read_bytes(),
        authorities=None if files.ca_file is None else files.ca_file.read_bytes(),
        not_after_ns=not_after_ns(x509.load_pem_x509_certificate(chain)),
    )
