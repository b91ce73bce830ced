"""Addresses of sockets; asyncio's servers: how many connections, and how they are accepted."""

import asyncio
import os
import resource
import socket
from typing import Final

ACCEPT_AT_ONCE: Final = 1
"""The `backlog` that asyncio's servers are given: connections that one turn of the loop accepts.

asyncio 3.11 goes on accepting after "too many open files", logs each attempt, and schedules
another round for each. With one attempt a turn it tries again once a second. The kernel's own
backlog is set by `widen_backlog`.
"""

BACKLOG: Final = 128
"""Connections that the kernel holds until they are accepted."""

_LEAST: Final = 8


def split_host_port(address: str) -> tuple[str, int]:
    """Split ``HOST:PORT``, an IPv6 host in brackets, into what `socket` calls take."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def join_host_port(host: str, port: int) -> str:
    """HOST:PORT as `split_host_port` reads it, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def connections_within(most: int, *, part: int) -> int:
    """Return how many connections a server may have: `most`, or fewer where few files may be open.

    Args:
        most: Its own bound.
        part: The limit of open files divided by this is its share.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else max(_LEAST, min(most, soft // part))


def widen_backlog(server: asyncio.Server) -> None:
    """Let the kernel hold more connections of a server that was begun with `ACCEPT_AT_ONCE`."""
    for listening in server.sockets:
        with socket.socket(fileno=os.dup(listening.fileno())) as same:
            same.listen(BACKLOG)
