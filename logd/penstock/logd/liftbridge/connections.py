"""Keeps room at the gRPC endpoint: connections that say nothing make way for others.

gRPC accepts connections by itself and shows none of them, so they are found where they are: among
this process's own descriptors, by their local port. One is ended by shutting its socket down
through a descriptor of its own, which gRPC takes for the other side having gone. Whose a connection
is says the first call that comes by it, with the other side's address and port.
"""

import asyncio
import os
import socket
import stat
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import structlog

from penstock.base.clock import Clock
from penstock.logd.liftbridge.unauthenticated import Connection, Crowd, Peer, peer_of

_DESCRIPTORS: Final = Path("/proc/self/fd")
_CALM_S: Final = 1.0
_DENSE_S: Final = 0.1
_log = structlog.get_logger()


class Doorman:
    """Looks at the connections again and again, as long as `run` runs.

    Args:
        crowd: Decides which go.
        clock: For how long they have been there.
        sockets: Says which sockets there are: inode and descriptor of each.

    Attributes:
        port: That they come to; 0: nobody listens yet.
        turned_away: Connections that were ended.
        handshakes_failed: gRPC does not say.
    """

    def __init__(
        self, crowd: Crowd, clock: Clock, *, sockets: Callable[[], Iterable[tuple[int, int]]]
    ) -> None:
        self.crowd = crowd
        self.port = 0
        self.turned_away = 0
        self.handshakes_failed = 0
        self._clock = clock
        self._sockets = sockets
        self._others: set[int] = set()
        self._found: dict[int, Peer] = {}

    def vouch(self, peer: str) -> None:
        """A call was let in by the connection of `peer`, as gRPC writes it."""
        found = _grpc_peer(peer)
        if found is not None:
            self.crowd.vouch(found)

    async def run(self) -> None:
        """Look, for ever."""
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(_DENSE_S if self.crowd.is_dense else _CALM_S)

    def look(self) -> None:
        """End connections that there is no room for."""
        try:
            there = self._connections()
        except OSError as error:  # no descriptor is left to look with: it is tried again soon
            _log.warning("connections cannot be seen", door="grpc", error=str(error))
            return
        peers = {Connection(inode): self._found[inode] for inode in there}
        going = self.crowd.look(peers, self._clock.monotonic_ns())
        for inode in going:
            with _duplicate(there[inode], inode) as found:
                if found is None:
                    continue
                with suppress(OSError):  # the other side was faster
                    found.shutdown(socket.SHUT_RDWR)
                self.turned_away += 1
        if going:
            _log.info("connections turned away", door="grpc", count=len(going))

    def _connections(self) -> dict[int, int]:
        """The connections there are: descriptors by inode. Sockets that are no such are noted."""
        sockets = dict(self._sockets())
        self._others &= sockets.keys()
        self._found = {inode: peer for inode, peer in self._found.items() if inode in sockets}
        for inode in sockets.keys() - self._others - self._found.keys():
            with _duplicate(sockets[inode], inode) as found:
                if found is None:  # the next look shows what it is, if it is there by then
                    continue
                peer = self._peer_of(found)
            if peer is None:
                self._others.add(inode)
            else:
                self._found[inode] = peer
        return {inode: sockets[inode] for inode in self._found}

    def _peer_of(self, found: socket.socket) -> Peer | None:
        """Who is on the other side, if it is a connection to the port."""
        if found.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        try:
            if found.getsockname()[1] != self.port:
                return None
            host, port, *_ = found.getpeername()
        except OSError:  # it listens, or is over
            return None
        return peer_of(host, port)


def sockets_here() -> Iterator[tuple[int, int]]:
    """Inode and descriptor of each socket of this process."""
    for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208 - numbers, not paths
        descriptor = int(name)
        try:
            found = os.fstat(descriptor)
        except OSError:  # it was closed meanwhile
            continue
        if stat.S_ISSOCK(found.st_mode):
            yield found.st_ino, descriptor


@contextmanager
def _duplicate(descriptor: int, inode: int) -> Iterator[socket.socket | None]:
    """A socket by another descriptor, which nobody else closes; None: it is gone."""
    try:
        own = os.dup(descriptor)
    except OSError:
        yield None
        return
    if os.fstat(own).st_ino != inode:  # closed meanwhile, and the number is another's
        os.close(own)
        yield None
        return
    with socket.socket(fileno=own) as found:
        yield found


def _grpc_peer(text: str) -> Peer | None:
    """`ipv4:127.0.0.1:4000`, `ipv6:%5B::1%5D:4000`; None: another kind of address."""
    kind, _, rest = urllib.parse.unquote(text).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    return peer_of(host.strip("[]"), int(port))
