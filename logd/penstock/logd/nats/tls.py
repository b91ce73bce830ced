"""TLS to a NATS server: what is trusted, who we are, and what a failed handshake means.

The server's certificate is always checked, against the system's authorities or `ca_file`, and so is
the host's name. Files are read at each connection: a renewed certificate needs no restart.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.logd.nats.errors import NatsRefusedError, NatsSetupError

_EXPIRED: Final = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
_WRONG_NAME: Final = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_OURS: Final = ("ALERT_BAD_CERTIFICATE", "CERTIFICATE_REQUIRED", "CERTIFICATE_EXPIRED",
                "CERTIFICATE_REVOKED", "ALERT_UNKNOWN_CA", "CERTIFICATE_UNKNOWN",
                "ALERT_HANDSHAKE_FAILURE")  # fmt: skip
"""OpenSSL's names of the alerts with which a server refuses a client's certificate."""


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

    def context(self) -> ssl.SSLContext:
        """Load everything.

        Raises:
            NatsSetupError: A file is missing, or not what it should be.
        """
        for key in ("ca_file", "cert_file", "key_file"):
            _check_readable(f"nats.tls.{key}", getattr(self, key))
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (ssl.SSLError, OSError):
            message = f"{self.ca_file}: holds no certificates in PEM"
            raise NatsSetupError(
                "nats.tls.ca_file", message, fix="name a file of CA certificates"
            ) from None
        if self.cert_file is not None:
            self._load_own(context, self.cert_file)
        return context

    def _load_own(self, context: ssl.SSLContext, cert_file: Path) -> None:
        def no_password() -> str:
            message = f"{self.key_file or cert_file}: the key has a password"
            raise NatsSetupError(
                "nats.tls.key_file", message, fix="store the key without, readable by logd only"
            )

        try:
            context.load_cert_chain(cert_file, self.key_file, password=no_password)
        except (ssl.SSLError, OSError) as error:
            mismatch = "KEY_VALUES_MISMATCH" in str(error)
            what = "do not belong together" if mismatch else "are not a certificate and its key"
            shown = " and ".join(str(path) for path in (cert_file, self.key_file) if path)
            raise NatsSetupError(
                "nats.tls.cert_file", f"{shown}: {what}", fix="name PEM files that belong together"
            ) from None


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
    if any(word in str(error).upper().replace(" ", "_") for word in _OURS):
        return NatsRefusedError(
            f"TLS: it refuses the certificate of nats.tls.cert_file: {error.reason}"
        )
    return ConnectionError(f"{server}: TLS handshake failed: {error.reason or error}")


def _check_readable(key: str, path: Path | None) -> None:
    if path is None:
        return
    try:
        path.open("rb").close()
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror or error}"
        raise NatsSetupError(key, message, fix="name an existing, readable file") from None
