"""Which addresses a launch listens on: the documented ones, or any that are free."""

import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from penstock.base.errors import UnavailableError

HOST = "127.0.0.1"
DEFAULT_PORTS: Mapping[str, int] = {
    "nats": 4222,
    "nats_monitor": 8222,
    "collector_admin": 9295,
    "router_admin": 9296,
    "console_admin": 9298,
    "console": 9299,
    "forward": 24224,
}
LOGD_PORTS: Mapping[str, int] = {"fetch": 9293, "admin": 9294, "peer": 9297}
"""Of the first logd; those of each further one are higher by `LOGD_PORTS_STEP`."""
LOGD_PORTS_STEP = 10


def default_ports(logds: Sequence[str]) -> dict[str, int]:
    """The documented port of each listener; a lone logd has no `peer`.

    Args:
        logds: The parts that are a logd.
    """
    ports = dict(DEFAULT_PORTS)
    for number, part in enumerate(logds):
        for name, port in LOGD_PORTS.items():
            if name != "peer" or len(logds) > 1:
                ports[f"{part}_{name}"] = port + number * LOGD_PORTS_STEP
    return ports


def choose_ports(
    logds: Sequence[str], *, any_free: bool, without: frozenset[str] = frozenset()
) -> dict[str, int]:
    """Pick a port for each listener.

    Args:
        logds: The parts that are a logd.
        any_free: Take whatever is free instead of the documented ports.
        without: Listeners that this launch does not have.

    Raises:
        UnavailableError: A documented port is taken.
    """
    ports = {name: at for name, at in default_ports(logds).items() if name not in without}
    with ExitStack() as held:  # all are held at once, so that no two are the same
        return {name: _try(held, name, 0 if any_free else port) for name, port in ports.items()}


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
