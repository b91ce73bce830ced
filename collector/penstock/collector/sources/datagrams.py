"""A UDP socket of a source: datagrams in, and what the kernel threw away counted."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from penstock.collector.limits import DATAGRAM_BUFFER_BYTES
from penstock.collector.sources.listener import clear_path, set_mode
from penstock.service import ConfigError, UnavailableError
from penstock.service.config import join_host_port, split_host_port

Peer = tuple[Any, ...]
_TABLES: Final = (Path("/proc/net/udp"), Path("/proc/net/udp6"))
_INODE_COLUMN: Final = 9


class Datagrams(asyncio.DatagramProtocol):
    """Listens on one address.

    Args:
        name: Of the source, for messages.
        take: Called with each datagram and who sent it; must not block.
    """

    def __init__(self, name: str, take: Callable[[bytes, Peer], None]) -> None:
        self._name = name
        self._take = take
        self._transport: asyncio.DatagramTransport | None = None
        self._path: Path | None = None
        self._inode = ""
        self._lost = 0
        self.endpoint: str | None = None

    async def listen(self, address: str, *, key: str = "listen", reuse_port: bool = False) -> None:
        """Listen on `HOST:PORT`.

        Raises:
            UnavailableError: The address is taken or not ours.
        """
        host, port = split_host_port(address)
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.create_datagram_endpoint(
                lambda: self, local_addr=(host, port), reuse_port=reuse_port or None
            )
        except OSError as error:
            raise UnavailableError(
                f"source {self._name}: cannot listen on {address} (UDP): {error.strerror}",
                fix=f"stop what uses the port, or set another with the source's key `{key}`",
            ) from None
        self._transport = transport
        used: socket.socket = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # the kernel's limit is lower: it gives what it may
            used.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, DATAGRAM_BUFFER_BYTES)
        self._inode = str(os.fstat(used.fileno()).st_ino)
        self.endpoint = join_host_port(*used.getsockname()[:2])

    async def listen_unix(self, path: Path, mode: int) -> None:
        """Listen on a Unix datagram socket; one that nobody serves any more is replaced.

        Raises:
            ConfigError: The path cannot be a socket.
            UnavailableError: Another process serves it.
        """
        try:
            clear_path(path, self._name, socket.SOCK_DGRAM)
            transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: self, local_addr=str(path), family=socket.AF_UNIX
            )
            self._transport, self._path = transport, path
            set_mode(path, mode)
        except OSError as error:
            raise ConfigError(
                f"source {self._name}: path: cannot listen on {path}: {error.strerror or error}",
                fix="choose a path in a directory that this process may write to",
            ) from None
        self.endpoint = str(path)

    @override
    def datagram_received(self, data: bytes, addr: Peer | str | None) -> None:
        self._take(data, addr if isinstance(addr, tuple) else ("",))  # a Unix socket names nobody

    def answer(self, data: bytes, peer: Peer) -> None:
        """Send a datagram back."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(data, peer)

    def newly_lost(self) -> int:
        """Datagrams that the kernel dropped since the last call, for want of room or otherwise."""
        lost = self._count_lost()
        new, self._lost = max(0, lost - self._lost), max(lost, self._lost)
        return new

    def close(self) -> None:
        """Stop listening."""
        if self._transport is not None:
            self._transport.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None

    def _count_lost(self) -> int:
        for table in _TABLES:
            with contextlib.suppress(OSError, ValueError, IndexError):  # another kernel's format
                for line in table.read_text().splitlines()[1:]:
                    columns = line.split()
                    if columns[_INODE_COLUMN] == self._inode:
                        return int(columns[-1])
        return 0
