"""TLS between nodes: both sides show a certificate of one authority that signs nodes' only."""

import asyncio
from typing import Final

from msgspec import Struct

from penstock.base.sockets import split_host_port
from penstock.logd.errors import RefusedError
from penstock.logd.net.channel import Channel
from penstock.logd.net.listener import dial
from penstock.logd.net.peer_identity import Identity, check_answer, greet
from penstock.logd.net.peer_wire import UNACKED_S, Kind, encode_frame, receive_frame
from penstock.logd.security.principal import UnauthenticatedError, names_of
from penstock.logd.security.tls import CertificateFiles, TlsSource
from penstock.logd.wire.logd_peer_pb2 import Purpose


class PeerTls(Struct, frozen=True, kw_only=True):
    """TLS between nodes.

    Attributes:
        server: Contexts of the endpoint.
        client: Contexts of the connections that it dials.
        named: Whether a certificate must name the node that shows it; otherwise a holder of one may
            say that it is any node.
    """

    server: TlsSource
    client: TlsSource
    named: bool = False

    @classmethod
    def of(cls, files: CertificateFiles, *, named: bool = False) -> "PeerTls":
        """Return the TLS of files, read once.

        Raises:
            TlsFileError: A file is missing or invalid.
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


_HELLO_S: Final = 5.0
"""Seconds a peer has to welcome us."""


async def dial_peer(
    me: Identity, peer: str, address: str, purpose: Purpose, tls: PeerTls | None
) -> Channel:
    """Connect to a node and shake hands.

    Args:
        me: This node.
        peer: The other's name.
        address: Address at which the peer listens, a `HostPort`.
        purpose: Purpose of the connection.
        tls: Between nodes.

    Raises:
        OSError, EOFError: It cannot be reached, or does not answer.
        CorruptError: It is no node of ours.
        RefusedError: It does not want us, or its certificate is of another node.
    """
    host, port = split_host_port(address)
    context = None if tls is None else tls.client()
    channel = await dial(host, port, context, unacked_s=UNACKED_S)
    try:
        check_named(tls, channel, peer)
        async with asyncio.timeout(_HELLO_S):
            hello = greet(me, peer, purpose)
            await channel.send(encode_frame(Kind.HELLO, hello), stall_s=_HELLO_S)
            check_answer(*await receive_frame(channel))
    except BaseException:
        channel.close()
        raise
    return channel
