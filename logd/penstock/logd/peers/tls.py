"""TLS between nodes: both sides show a certificate of one authority that signs nodes' only."""

from dataclasses import dataclass

from penstock.logd.errors import RefusedError
from penstock.logd.security.certificate import names_of
from penstock.logd.security.identity import UnauthenticatedError
from penstock.logd.security.tls import CertificateFiles, TlsSource
from penstock.logd.tcp.channel import Channel


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTls:
    """What a node's connections to others use.

    Attributes:
        server: Of the endpoint.
        client: Of the connections that it dials.
        named: Whether a certificate must name the node that shows it; otherwise whoever has one may
            say that it is any node.
    """

    server: TlsSource
    client: TlsSource
    named: bool = False

    @classmethod
    def of(cls, files: CertificateFiles, *, named: bool = False) -> "PeerTls":
        """From files, read once.

        Raises:
            TlsFileError: Of a file.
        """
        server, client = files.server(), files.client()
        return cls(server=lambda: server, client=lambda: client, named=named)


def check_named(tls: PeerTls | None, channel: Channel, node: str) -> None:
    """Hold what a node says of itself against its certificate.

    Raises:
        RefusedError: `WRONG_CERTIFICATE`.
    """
    if tls is None or not tls.named:
        return
    try:
        names = frozenset() if channel.certificate is None else names_of(channel.certificate)
    except UnauthenticatedError as error:
        raise RefusedError("WRONG_CERTIFICATE", str(error)) from None
    if node not in names:
        message = f"a node at {channel.peer} says that it is {node!r}, and its certificate does not"
        raise RefusedError("WRONG_CERTIFICATE", message)
