"""Authentication of a client: TLS, its certificate, and a token or an API key.

Files are read for each connection, so that what was renewed is used, and when a logd says that a
token has expired the next connection has the new one. A token goes over TLS, or to this machine.
"""

import ipaddress
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.logd.api.operations import Document
from penstock.logd.errors import RefusedError
from penstock.logd.limits import SECRET_LENGTH_MAX
from penstock.logd.security.tls import CertificateFiles, refuses_our_certificate

PREFIX: Final = "PENSTOCK_LOGD_"
"""Prefix of the environment variables that `from_environment` reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Credentials of a client and the authorities that it trusts; empty: anonymous, without TLS.

    Attributes:
        tls: Whether to use TLS; implied by `ca_file` or `cert_file`.
        ca_file: PEM; trusted authorities instead of the system's.
        cert_file: PEM; the client's certificate.
        key_file: PEM; its key, if it is not in `cert_file`.
        token: A JSON Web Token, or an API key.
        token_file: File with the token in its only line.
    """

    tls: bool = False
    ca_file: Path | str | None = None
    cert_file: Path | str | None = None
    key_file: Path | str | None = None
    token: str | None = field(default=None, repr=False)
    token_file: Path | str | None = None

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            ValueError: It does.
        """
        if self.token is not None and self.token_file is not None:
            msg = "token and token_file exclude each other"
            raise ValueError(msg)
        if self.key_file is not None and self.cert_file is None:
            msg = "key_file needs cert_file"
            raise ValueError(msg)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> "Access":
        """Read `PENSTOCK_LOGD_TLS`, `_TLS_CA`, `_CERT`, `_KEY` and `_TOKEN_FILE`.

        Raises:
            ValueError: They contradict each other.
        """
        found = os.environ if environ is None else environ
        return cls(
            tls=found.get(f"{PREFIX}TLS", "").lower() in ("1", "true", "yes", "on"),
            ca_file=found.get(f"{PREFIX}TLS_CA") or None,
            cert_file=found.get(f"{PREFIX}CERT") or None,
            key_file=found.get(f"{PREFIX}KEY") or None,
            token_file=found.get(f"{PREFIX}TOKEN_FILE") or None,
        )

    @property
    def encrypted(self) -> bool:
        return self.tls or self.ca_file is not None or self.cert_file is not None

    @property
    def has_secret(self) -> bool:
        return self.token is not None or self.token_file is not None

    def may_know_more(self, error: RefusedError) -> bool:
        """Return whether a new connection may succeed: the file may have a new token by then."""
        return error.code == "UNAUTHENTICATED" and self.has_secret

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context of a new connection; None: without TLS. Reads files.

        Raises:
            RefusedError: `BAD_TLS_FILE`.
        """
        if not self.encrypted:
            return None
        ca_file, cert_file, key_file = (
            None if name is None else Path(name)
            for name in (self.ca_file, self.cert_file, self.key_file)
        )
        return CertificateFiles(ca_file=ca_file, cert_file=cert_file, key_file=key_file).client()

    def prepare(self, host: str) -> tuple[ssl.SSLContext | None, Document | None]:
        """`context` and `greeting`; for a thread, as they read files.

        Raises:
            RefusedError: As these.
        """
        return self.context(), self.greeting(host)

    def greeting(self, host: str) -> Document | None:
        """The request with which a connection to a host begins; None: with any. Reads a file.

        Raises:
            RefusedError: `BAD_TOKEN_FILE`; `PLAIN_TOKEN`: others could read along.
        """
        if not self.has_secret:
            return None
        if not self.encrypted and not _is_here(host):
            message = f"a token is not sent to {host} without TLS, for others could read it"
            raise RefusedError("PLAIN_TOKEN", message)
        return {"api": "authenticate", "token": self._read_token()}

    def _read_token(self) -> str:
        if self.token_file is None:
            return self.token or ""
        try:
            with Path(self.token_file).open("rb") as file:
                data = file.read(SECRET_LENGTH_MAX + 1)
            token = data.decode("ascii").strip()
        except OSError as error:
            reason = error.strerror or str(error)
            raise _bad_token_file(self.token_file, f"cannot be read: {reason}") from None
        except UnicodeDecodeError:
            raise _bad_token_file(self.token_file, "is not text") from None
        if not token or len(token.split()) != 1 or len(data) > SECRET_LENGTH_MAX:
            raise _bad_token_file(self.token_file, "does not hold one token, in one line")
        return token


ANYBODY: Final = Access()
"""Access of an anonymous client."""


def in_words(error: OSError) -> str:
    """Why a connection failed; of TLS, what that means."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        if refuses_our_certificate(error):
            return f"it takes no client without a certificate of its authority ({error.reason})"
        if error.reason == "WRONG_VERSION_NUMBER":
            return "it does not speak TLS"
        return f"TLS: {error.reason or error}"
    return error.strerror or str(error)


def cause_of_failure(error: OSError) -> str:
    """The cause of a `NoAnswerError`."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return "certificate"
    if isinstance(error, ssl.SSLError):
        if refuses_our_certificate(error):
            return "client_certificate"
        return "no_tls" if error.reason == "WRONG_VERSION_NUMBER" else "tls"
    if isinstance(error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError):
        return "closed"
    return "unreachable"


def _bad_token_file(path: Path | str, problem: str) -> RefusedError:
    return RefusedError("BAD_TOKEN_FILE", f"{path}: {problem}")


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
