"""TLS in which both sides show a certificate of one authority: how nodes of a cluster meet.

Files are read when a context is made.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

from penstock.logd.errors import RefusedError


@dataclass(frozen=True, slots=True, kw_only=True)
class MutualTls:
    """What the configuration says.

    Attributes:
        ca_file: PEM; who signs the certificates of the nodes, and of nobody else.
        cert_file: PEM; this node's certificate and what leads from it to the authority. It names
            the host that others dial, and is for servers and clients.
        key_file: PEM; its key.
    """

    ca_file: Path
    cert_file: Path
    key_file: Path

    def server(self) -> ssl.SSLContext:
        """What a listener uses.

        Raises:
            RefusedError: `BAD_TLS_FILE`; `key` names which.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        return self._load(context)

    def client(self) -> ssl.SSLContext:
        """What a dialer uses: the other side's certificate must be for the host that is dialled.

        Raises:
            RefusedError: `BAD_TLS_FILE`; `key` names which.
        """
        return self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_verify_locations(self.ca_file)
        except (ssl.SSLError, OSError) as error:
            raise _bad(self.ca_file, "ca_file", "certificates in PEM", error) from None
        try:
            context.load_cert_chain(self.cert_file, self.key_file, password=_no_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            shown = f"{self.cert_file} and {self.key_file}"
            what = "a certificate and its key, without password, in PEM"
            raise _bad(shown, "cert_file", what, error) from None
        return context


def _no_password() -> str:
    msg = "the key has a password"
    raise ValueError(msg)


def _bad(shown: Path | str, key: str, what: str, error: Exception) -> RefusedError:
    reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
    message = f"{shown}: not {what}: {reason}"
    return RefusedError("BAD_TLS_FILE", message, key=key)
