"""Where sources listen, and that no two listen in one place."""

import ipaddress
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from penstock.collector.source_sections import SourceSection
from penstock.service.config import split_host_port

_PROTOCOLS = {"listen": "TCP", "grpc": "TCP", "http": "TCP", "tcp": "TCP", "udp": "UDP"}
"""Of the keys that hold addresses."""


class Listener(NamedTuple):
    """One address of one source.

    Attributes:
        key: Its place in the configuration.
        place: The address, or the path of a Unix socket, as it is written.
        protocol: `TCP`, `UDP` or `Unix`.
        shares: Whether the kernel lets others listen there, too.
    """

    key: str
    place: str
    protocol: str
    shares: bool


def clash(sources: Sequence[SourceSection]) -> str | None:
    """What is wrong where two sources listen in one place; None: no two do."""
    for one, other in combinations(_listeners(sources), 2):
        if _is_one_place(one, other) and not (one.shares and other.shares):
            return f"{other.key}: {one.key} has {one.place}, too: {_FIXES[one.protocol]}"
    return None


_FIXES = {
    "TCP": "give one of them another port, or null for none",
    "UDP": "give one of them another port, or null for none",
    "Unix": "give one of them another path",
}


def _listeners(sources: Sequence[SourceSection]) -> Iterator[Listener]:
    for index, source in enumerate(sources):
        for key, protocol in _PROTOCOLS.items():
            if (address := getattr(source, key, None)) is not None:
                shares = bool(getattr(source, "reuse_port", False))
                yield Listener(f"sources.{index}.{key}", address, protocol, shares)
        if (path := getattr(source, "path", None)) is not None:
            yield Listener(f"sources.{index}.path", str(path), "Unix", shares=False)


def _is_one_place(one: Listener, other: Listener) -> bool:
    if one.protocol != other.protocol:
        return False
    if one.protocol == "Unix":
        return one.place == other.place
    host, port = split_host_port(one.place)
    other_host, other_port = split_host_port(other.place)
    return port == other_port != 0 and _meet(host, other_host)


def _meet(host: str, other: str) -> bool:
    """Whether two hosts are one address, or one of them stands for all of its family."""
    try:
        one, two = map(ipaddress.ip_address, map(_as_number, (host, other)))
    except ValueError:  # a name, of which only the resolver knows more
        return host == other
    return one == two or (one.version == two.version and (one.is_unspecified or two.is_unspecified))


def _as_number(host: str) -> str:
    return "127.0.0.1" if host == "localhost" else host
