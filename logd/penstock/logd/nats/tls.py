"""TLS to a NATS server: what is trusted, who we are, and what a failed handshake means.

The server's certificate is always checked, against the system's authorities or `ca_file`, and so is
the host's name.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.logd.nats.errors import NatsRefusedError, NatsSetupError
from penstock.logd.security.tls import (
    CertificateFiles,
    TlsFileError,
    refuses_our_certificate,
)

_EXPIRED: Final = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
_WRONG_NAME: Final = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """What the configuration says.

    Attributes:
        ca_file: PEM; instead of the system's authorities.
        cert_file: PEM; the client's certificate and what leads from it to an authority.
        key_file: PEM; the certificate's key, if it is not in `cert_file`.
        server_name: What the server's certificate must be for, instead of its host.
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
    """What a failed handshake means to an operator.

    Args:
        error: What OpenSSL says.
        server: Its address.
        name: What its certificate was held against.
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
