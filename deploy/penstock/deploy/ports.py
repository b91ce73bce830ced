"""Which addresses a launch listens on: the documented ones, or any that are free."""

import socket
from collections.abc import Mapping
from contextlib import ExitStack

from penstock.service.errors import UnavailableError

HOST = "127.0.0.1"
DEFAULT_PORTS: Mapping[str, int] = {
    "nats": 4222,
    "nats_monitor": 8222,
    "logd_fetch": 9293,
    "logd_admin": 9294,
    "collector_admin": 9295,
    "router_admin": 9296,
    "forward": 24224,
}


def choose_ports(*, any_free: bool, without: frozenset[str] = frozenset()) -> dict[str, int]:
    """Pick a port for each listener.

    Args:
        any_free: Take whatever is free instead of the documented ports.
        without: Listeners that this launch does not have.

    Raises:
        UnavailableError: A documented port is taken.
    """
    names = [name for name in DEFAULT_PORTS if name not in without]
    with ExitStack() as held:  # all are held at once, so that no two are the same
        return {name: _try(held, name, 0 if any_free else DEFAULT_PORTS[name]) for name in names}


def _try(held: ExitStack, name: str, port: int) -> int:
    listener = held.enter_context(socket.socket())
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()
    except OSError:
        raise UnavailableError(
            f"port {port} ({name.replace('_', ' ')}) is in use on {HOST}",
            fix="stop what uses it (ss -ltnp shows it), or let Penstock choose: --free-ports",
        ) from None
    return int(listener.getsockname()[1])
