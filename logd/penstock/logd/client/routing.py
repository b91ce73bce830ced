"""Which node a client's calls go to, and where else when they fail there. No I/O.

A client takes the first of its addresses that answers. After the first answer it asks once which
nodes there are. A lone logd says that it is in no cluster, and the client stays with it. In a
cluster every node answers what is not about one partition. What is goes to the partition's leader:
at first to whoever was asked last, and on to whom that one names.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from penstock.logd.client import calls
from penstock.logd.client.address import split_address
from penstock.logd.client.answers import ClusterInfo, Described
from penstock.logd.client.calls import Call, ToNode, ToPartition
from penstock.logd.errors import RefusedError
from penstock.logd.fetch.wire import Document

Prefer = Literal["leader", "replica"]
"""Who is to answer fetches: a partition's leader, or another node with a copy if there is one: a
replica in sync, or an observer."""

CONNECT_S: Final = 2.0
"""Seconds to wait for a connection where there are other nodes to go to."""

REPLICA_S: Final = 30.0
"""Seconds until it is asked again which replicas are in sync."""


@dataclass(frozen=True, slots=True)
class Step:
    """What to do next.

    Attributes:
        address: Whom to ask.
        call: What.
        pause_s: Seconds to wait before.
        connect_s: Seconds to wait for a connection.
        replica: Whether the one asked need not lead.
    """

    address: str
    call: Call[Any]
    pause_s: float
    connect_s: float
    replica: bool = False

    @property
    def request(self) -> Document:
        """The request, without its id."""
        return self.call.request | ({"replica": True} if self.replica else {})


class Router:
    """What one client knows of where to go.

    Args:
        server: Addresses, each ``HOST:PORT``, joined by commas.
        prefer: Who is to answer fetches.
        rack: With `replica`, one in this rack if there is one.
        timeout_s: Seconds for each call, beyond what the server may wait on purpose.
        rng: Which replica, and the jitter of pauses.

    Attributes:
        timeout_s, rng: As given.

    Raises:
        ValueError: An address is none.
    """

    def __init__(
        self, server: str, *, prefer: Prefer, rack: str, timeout_s: float, rng: random.Random
    ) -> None:
        self._seeds = [address.strip() for address in server.split(",")]
        for address in self._seeds:
            split_address(address)
        self._prefer = prefer
        self._rack = rack
        self.timeout_s = timeout_s
        self.rng = rng
        self._known = list(dict.fromkeys(self._seeds))
        self._cluster: ClusterInfo | None = None
        self._asked = self._answered = False
        self._reached: dict[str, str] = {}
        self._leaders: dict[ToPartition, str] = {}
        self._replicas: dict[ToPartition, tuple[str | None, int]] = {}

    @property
    def home(self) -> str:
        """Where to ask what anyone can answer."""
        return self._known[0]

    @property
    def is_clustered(self) -> bool:
        """Whether there are other nodes to go to, as far as is known."""
        return self._cluster is not None and self._cluster.name is not None

    # What a course asks.

    def questions(self, call: Call[Any], *, replica: bool, now_ns: int) -> list[Call[Any]]:
        """What to ask before a call; no two courses ask first who there is."""
        to = call.to
        if not self._asked and (self._answered or replica or isinstance(to, ToNode)):
            self._asked = True
            return [calls.cluster()]
        if replica and self.is_clustered and isinstance(to, ToPartition):
            chosen = self._replicas.get(to)
            if chosen is None or now_ns - chosen[1] >= REPLICA_S * 1e9:
                return [calls.describe(to.stream)]
        return []

    def step(self, call: Call[Any], *, replica: bool, pause_s: float) -> Step:
        """Whom to ask.

        Raises:
            RefusedError: `UNKNOWN_NODE`: it is for one whose address nobody knows.
        """
        address: str | None = self.home
        if isinstance(call.to, ToNode):
            address = self._address_of(call.to.node)
            if address is None:
                raise RefusedError("UNKNOWN_NODE", f"nobody knows a node {call.to.node!r}")
        elif isinstance(call.to, ToPartition):
            address = self._replicas.get(call.to, (None, 0))[0] if replica else None
            replica = address is not None
            address = address or self._leaders.get(call.to, self.home)
        connect_s = self.timeout_s if len(self._known) == 1 else min(CONNECT_S, self.timeout_s)
        return Step(address or self.home, call, pause_s, connect_s, replica)

    def may_use_replica(self, call: Call[Any]) -> bool:
        """Whether a call is better answered by one that does not lead."""
        return self._prefer == "replica" and call.spread

    def count(self) -> int:
        """How many addresses are known."""
        return len(self._known)

    # What a course has learned.

    def answered(self, step: Step) -> None:
        """A call was answered."""
        self._answered = True
        if isinstance(step.call.to, ToPartition) and not step.replica:
            self._leaders[step.call.to] = step.address

    def take_cluster(self, info: ClusterInfo, address: str) -> None:
        """Take in who there is, as the node at an address says."""
        self._asked, self._cluster = True, info
        if not self.is_clustered:
            return
        self._reached[info.node] = address
        nodes = sorted(
            (node for node in info.nodes if node.is_member), key=lambda node: not node.live
        )
        found = [self._address_of(node.node) for node in nodes]
        self._known = list(dict.fromkeys([address, *filter(None, found), *self._seeds]))

    def take_streams(self, described: Described, now_ns: int) -> None:
        """Take in who leads what, and choose the replicas to read from."""
        for stream in described.streams:
            for part in stream.partitions:
                place = ToPartition(stream.name, part.partition)
                leader = part.leader and self._address_of(part.leader)
                if leader:
                    self._leaders[place] = leader
                else:
                    self._leaders.pop(place, None)
                copies = (*part.isr, *part.observers)
                others = [node for node in copies if node != part.leader]
                self._replicas[place] = (self._choose(place, others), now_ns)

    def redirect(self, place: ToPartition, leader: str, asked: str) -> bool:
        """Take in who leads instead of the one asked; whether that one can be asked."""
        address = self._address_of(leader) if leader else None
        self._leaders.pop(place, None)
        if address is None or address == asked:
            return False
        self._leaders[place] = address
        return True

    def lost(self, address: str) -> None:
        """Nobody answers there: go elsewhere, and there last."""
        for place in [place for place, found in self._leaders.items() if found == address]:
            del self._leaders[place]
        for place in [place for place, found in self._replicas.items() if found[0] == address]:
            del self._replicas[place]
        for node in [node for node, found in self._reached.items() if found == address]:
            del self._reached[node]
        if address in self._known:
            self._known.remove(address)
            self._known.append(address)

    def not_learned(self) -> None:
        """Who there is could not be asked; another course will."""
        self._asked = self.is_clustered

    def _address_of(self, node: str) -> str | None:
        """Where a node was reached, or else where it says it is."""
        nodes = () if self._cluster is None else self._cluster.nodes
        says = next((found.fetch for found in nodes if found.node == node), "")
        return self._reached.get(node) or says or None

    def _choose(self, place: ToPartition, nodes: Iterable[str]) -> str | None:
        info = self._cluster
        live = {} if info is None else {node.node: node.rack for node in info.nodes if node.live}
        there = [node for node in nodes if node in live]
        near = [node for node in there if self._rack and live[node] == self._rack]
        found = [address for node in near or there if (address := self._address_of(node))]
        present = self._replicas.get(place, (None, 0))[0]
        if present in found or not found:
            return present if found else None
        return self.rng.choice(found)
