"""Opens channels to other sides."""

import asyncio
import socket
import ssl
from typing import Final

from penstock.logd.tcp.channel import Channel
from penstock.logd.tcp.encrypted import SHUTDOWN_S, EncryptedChannel
from penstock.logd.tcp.listener import HANDSHAKE_S, prepare
from penstock.logd.tcp.plain import PlainChannel, address_of

_CONNECT_S: Final = 2.0
"""Seconds a connection may take to be there; within a site it is milliseconds."""


async def dial(
    host: str, port: int, tls: ssl.SSLContext | None = None, *, unacked_s: float = 0.0
) -> Channel:
    """Connect.

    Args:
        host: A name or an address.
        port: Of it.
        tls: With it, the other side's certificate must be for `host`.
        unacked_s: As `prepare`.

    Raises:
        OSError: It cannot be reached, TimeoutError and ssl.SSLError included.
    """
    async with asyncio.timeout(_CONNECT_S):
        connection = await _connect(host, port)
    try:
        prepare(connection, unacked_s=unacked_s)
        peer = address_of(connection)
        if tls is None:
            return PlainChannel(connection)
        reader, writer = await asyncio.open_connection(
            sock=connection,
            ssl=tls,
            server_hostname=host,
            ssl_handshake_timeout=HANDSHAKE_S,
            ssl_shutdown_timeout=SHUTDOWN_S,
        )
    except BaseException:
        connection.close()
        raise
    return EncryptedChannel(reader, writer, peer)


async def _connect(host: str, port: int) -> socket.socket:
    """The first of a host's addresses that answers."""
    loop = asyncio.get_running_loop()
    problem: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        connection = socket.socket(family, kind, protocol)
        connection.setblocking(False)
        try:
            await loop.sock_connect(connection, address)
        except BaseException as error:
            connection.close()
            if not isinstance(error, OSError) or isinstance(error, TimeoutError):
                raise
            problem = error
        else:
            return connection
    raise problem
