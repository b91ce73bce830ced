"""Opens a connection to a peer, and has it agree that the two belong together."""

import asyncio
from typing import Final

from penstock.logd.peers.identity import Identity, check_answer, greet
from penstock.logd.peers.tls import PeerTls, check_named
from penstock.logd.peers.wire import UNACKED_S, Kind, encode_frame, receive_frame
from penstock.logd.tcp.channel import Channel
from penstock.logd.tcp.dialing import dial
from penstock.logd.wire.logd_peer_pb2 import Purpose
from penstock.service.config import split_host_port

_HELLO_S: Final = 5.0
"""Seconds a peer has to welcome us."""


async def dial_peer(
    me: Identity, peer: str, address: str, purpose: Purpose, tls: PeerTls | None
) -> Channel:
    """Connect to a node and shake hands.

    Args:
        me: This node.
        peer: The other's name.
        address: Where it listens, a `HostPort`.
        purpose: Of the connection.
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
