"""Which connections go, where it is only seen from outside who has said whose they are.

A connection is a stranger's until a call that came by it was let in. Strangers have a number of
places. When those are taken, the address that has most of them gives one up, the one that came
first: whoever knows what to say needs a moment only, and many connections from one address cost
those of others nothing. No address has more than half of the places.

What is looked at comes and goes between two looks, so a call may be let in by a connection that the
next look shows for the first time, or that is gone already.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, NewType

Connection = NewType("Connection", int)
"""A connection's name as long as it lasts; later ones may have the same."""

_IPV6_NETWORK_BITS: Final = 64
"""Bits of an IPv6 address that say whose it is: one customer has at least all that follow."""


class Peer(NamedTuple):
    """The other side's address, without a form that means the same."""

    host: str
    port: int

    @property
    def network(self) -> str:
        """Who may have many addresses has one of these."""
        address = ipaddress.ip_address(self.host)
        if isinstance(address, ipaddress.IPv4Address):
            return self.host
        return str(ipaddress.ip_network((address, _IPV6_NETWORK_BITS), strict=False))


def peer_of(host: str, port: int) -> Peer:
    """The other side's address; IPv4 within IPv6 is IPv4."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return Peer(str(address), port)


@dataclass(slots=True)
class _Guest:
    """A connection.

    Attributes:
        since_ns: When it was first seen.
        known_ns: When it was seen that it is somebody's; None: it is a stranger's.
    """

    peer: Peer
    since_ns: int
    known_ns: int | None = None


class Crowd:
    """Decides which connections go. `vouch` and `look` may be called on different threads.

    Args:
        known_max: Connections that somebody vouched for.
        strangers_max: Others.
        patience_ns: How long one may stay a stranger's; None: as long as there is room.

    Attributes:
        strangers: As of the last look.
        known: So.
    """

    def __init__(self, *, known_max: int, strangers_max: int, patience_ns: int | None) -> None:
        self.strangers = 0
        self.known = 0
        self._known_max = known_max
        self._strangers_max = strangers_max
        self._patience_ns = patience_ns
        self._guests: dict[Connection, _Guest] = {}
        self._vouched: dict[Peer, None] = {}
        self._vouched_before: dict[Peer, None] = {}

    @property
    def is_dense(self) -> bool:
        """Whether there were so many strangers that it is worth while to look again soon."""
        return self.strangers * 2 > self._strangers_max or self.known > self._known_max

    def vouch(self, peer: Peer) -> None:
        """A call was let in that came from there."""
        self._vouched[peer] = None

    def look(self, there: Mapping[Connection, Peer], now_ns: int) -> list[Connection]:
        """Which connections are to be closed.

        Args:
            there: All there are.
            now_ns: Monotonic.
        """
        vouched: dict[Peer, None] = {}
        for _ in range(len(self._vouched)):  # one by one: others are added meanwhile, and wait
            vouched[self._vouched.popitem()[0]] = None
        self._take_in(there, now_ns, vouched | self._vouched_before)
        seen = {guest.peer for guest in self._guests.values()}
        self._vouched_before = {peer: None for peer in vouched if peer not in seen}
        going: list[Connection] = []
        for choose in (partial(self._late, now_ns), self._too_many_known, self._too_many):
            chosen = choose()
            for one in chosen:
                del self._guests[one]
            going += chosen
        self.known = sum(guest.known_ns is not None for guest in self._guests.values())
        self.strangers = len(self._guests) - self.known
        return going

    def _take_in(
        self, there: Mapping[Connection, Peer], now_ns: int, vouched: Mapping[Peer, None]
    ) -> None:
        for one, guest in list(self._guests.items()):
            if there.get(one) != guest.peer:
                del self._guests[one]
        for one, peer in there.items():
            guest = self._guests.setdefault(one, _Guest(peer, now_ns))
            if guest.known_ns is None and peer in vouched:
                guest.known_ns = now_ns

    def _late(self, now_ns: int) -> list[Connection]:
        if self._patience_ns is None:
            return []
        return [
            one
            for one, guest in self._guests.items()
            if guest.known_ns is None and now_ns - guest.since_ns >= self._patience_ns
        ]

    def _too_many(self) -> list[Connection]:
        going: list[Connection] = []
        strangers: dict[str, list[Connection]] = {}
        for one, guest in sorted(self._guests.items(), key=lambda item: item[1].since_ns):
            if guest.known_ns is None:
                strangers.setdefault(guest.peer.network, []).append(one)
        left = sum(map(len, strangers.values()))
        while strangers:
            most = max(strangers.values(), key=len)
            if left <= self._strangers_max and len(most) * 2 <= self._strangers_max:
                break
            going.append(most.pop(0))
            left -= 1
        return going

    def _too_many_known(self) -> list[Connection]:
        """Of those that are known the last ones, where there are more than may be."""
        known = [
            (guest.known_ns, guest.since_ns, one)
            for one, guest in self._guests.items()
            if guest.known_ns is not None
        ]
        return [one for *_, one in sorted(known)[self._known_max :]]
