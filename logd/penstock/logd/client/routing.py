"""The node that a client's call goes to, and the next one where it fails. No I/O.

A client takes the first of its addresses that answers. After the first answer it asks once which
nodes there are. A single node names no cluster, and the client stays with it. In a
cluster every node answers what is not about one partition. What is goes to the partition's leader:
at first to the node that was asked last, and on to the one that its refusal names. So a client of a
single node pays no round trip for metadata, and no node forwards payloads to another.

One call's way to the node that answers it. No I/O.

The client does what `step` says and tells what came of it with `answered`, `refused` or `failed`.
The last two raise when there is nothing more to be done, or no time. A call is not made again when
it is not known whether it was done, unless that does no harm.
"""

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from penstock.logd.api.models import ClusterInfo, StreamList
from penstock.logd.api.operations import Document
from penstock.logd.client import calls
from penstock.logd.client.calls import Call, ToNode, ToPartition
from penstock.logd.client.following import RetryBackoff
from penstock.logd.errors import LogdError, RefusedError, UnavailableError, UnsettledError

Prefer = Literal["leader", "replica"]
"""Node that answers fetches: a partition's leader, or another node with a copy if there is one: a
replica in sync, or an observer."""

CONNECT_S: Final = 2.0
"""Seconds to wait for a connection where there are other nodes to go to."""

REPLICA_S: Final = 30.0
"""Seconds until it is asked again which replicas are in sync."""


@dataclass(frozen=True, slots=True)
class NextAction:
    """The next action of a call.

    Attributes:
        address: Address to call.
        call: The call.
        pause_s: Seconds to wait before.
        connect_s: Maximum seconds to wait for a connection.
        replica: Whether the node need not lead.
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


class MetadataCache:
    """One client's knowledge of nodes and leaders.

    Args:
        server: Addresses, each ``HOST:PORT``, joined by commas.
        prefer: Node that answers fetches.
        rack: Preferred rack with `replica`.
        timeout_s: Seconds for each call, beyond the server's deliberate wait.
        rng: Chooses replicas, and the jitter of pauses.

    Attributes:
        timeout_s, rng: The arguments.

    Raises:
        ValueError: An address is malformed.
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
        """Address for calls that any node answers."""
        return self._known[0]

    @property
    def is_clustered(self) -> bool:
        """True if other nodes are known."""
        return self._cluster is not None and self._cluster.cluster is not None

    # What a course asks.

    def questions(self, call: Call[Any], *, replica: bool, now_ns: int) -> list[Call[Any]]:
        """Return the metadata lookups that a call needs first."""
        to = call.to
        if isinstance(to, ToNode) and self._cluster is None:
            self._asked = True
            return [calls.cluster()]
        if not self._asked and (self._answered or replica):
            self._asked = True
            return [calls.cluster()]
        if replica and self.is_clustered and isinstance(to, ToPartition):
            chosen = self._replicas.get(to)
            if chosen is None or now_ns - chosen[1] >= REPLICA_S * 1e9:
                return [calls.describe(to.stream)]
        return []

    def step(self, call: Call[Any], *, replica: bool, pause_s: float) -> NextAction:
        """Whom to ask.

        Raises:
            RefusedError: `UNKNOWN_NODE`: it is for one whose address is unknown.
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
        return NextAction(address or self.home, call, pause_s, connect_s, replica)

    def may_use_replica(self, call: Call[Any]) -> bool:
        """Return whether a replica should answer the call."""
        return self._prefer == "replica" and call.spread

    def count(self) -> int:
        return len(self._known)

    # What a course has learned.

    def answered(self, step: NextAction) -> None:
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

    def take_streams(self, described: StreamList, now_ns: int) -> None:
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
        """No node answers there: go elsewhere, and there last."""
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
        """Note that a metadata lookup failed, so that another call repeats it."""
        self._asked = self.is_clustered

    def _address_of(self, node: str) -> str | None:
        """Return the address at which a node was reached, else the one that it advertises."""
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


PAUSE_MAX_S: Final = 0.5
"""Seconds between two tries at most: an election takes about two."""

_ELSEWHERE: Final = frozenset({"NOT_HERE", "NOT_LEADER"})
_NOT_THERE: Final = frozenset({"OUT_OF_RANGE", "RECORDS_LOST", "CORRUPT"})


class CallAttempt:
    """One call, from its beginning to its answer.

    Args:
        router: The client's metadata.
        call: The call.
        now_ns: Monotonic time of its beginning.
    """

    def __init__(self, router: MetadataCache, call: Call[Any], now_ns: int) -> None:
        self._router = router
        self._call = call
        self._questions: deque[Call[Any]] = deque()
        self._backoff = RetryBackoff(
            router.timeout_s + call.wait_s, router.rng, pause_max_s=PAUSE_MAX_S
        )
        self._backoff.failed(now_ns)
        self._pause_s = 0.0
        self._replica = router.may_use_replica(call)
        self._troubles = self._failures = 0
        self._reconnects = 1
        self._rounds = 2  # of questions before the call: who there is, and who has the partition

    def step(self, now_ns: int) -> NextAction:
        """Return the next action.

        Raises:
            RefusedError: `UNKNOWN_NODE`: the address of the node is unknown.
        """
        pause_s, self._pause_s = self._pause_s, 0.0
        if not self._questions and self._rounds:
            more = self._router.questions(self._call, replica=self._replica, now_ns=now_ns)
            self._rounds -= 1
            self._questions.extend(more)
        if self._questions:
            return self._router.step(self._questions[0], replica=False, pause_s=pause_s)
        return self._router.step(self._call, replica=self._replica, pause_s=pause_s)

    def answered(self, step: NextAction, answer: object, now_ns: int) -> bool:
        """Take an answer; whether it is the call's."""
        if step.call is self._call:
            self._router.answered(step)
            return True
        self._questions.popleft()
        if isinstance(answer, ClusterInfo):
            self._router.take_cluster(answer, step.address)
        elif isinstance(answer, StreamList):
            self._router.take_streams(answer, now_ns)
        return False

    def refused(self, step: NextAction, error: RefusedError, now_ns: int) -> None:
        """Go on after a refusal.

        Raises:
            RefusedError: There is no other way.
            UnsettledError: No node was found in time that has the partition.
        """
        if step.call is not self._call:
            self._questions.clear()  # what is refused there, the call itself is told better
            self._rounds = 0
            return
        to = self._call.to
        if error.code == "NOT_READY":  # nothing was done; another node may know more
            if not isinstance(to, ToNode):
                self._router.lost(step.address)
            self._replica = False
            self._trouble(UnsettledError(str(error)), now_ns, ask=False)
            return
        if not isinstance(to, ToPartition):
            raise error
        if error.code in _ELSEWHERE:
            leader = str(error.detail.get("leader", ""))
            self._replica = False
            moved = self._router.redirect(to, leader, step.address)
            self._trouble(UnsettledError(str(error)), now_ns, ask=not (moved and self._first))
        elif error.code in _NOT_THERE and step.replica:
            self._replica = False  # the leader may have more, and has the last word
        elif self._router.is_clustered and self._is_ahead(error):
            self._trouble(UnsettledError(str(error)), now_ns, ask=False)
        elif self._router.is_clustered and self._call.repeatable and error.code == "UNAVAILABLE":
            self._trouble(error, now_ns, ask=True)
        else:
            raise error

    def failed(
        self, step: NextAction, error: OSError, *, sent: bool, reused: bool, now_ns: int
    ) -> None:
        """Go on after a connection failed, or could not be made.

        Args:
            step: The action that failed.
            error: The error; a TimeoutError: there was no answer.
            sent: Whether the request may have arrived.
            reused: Whether the connection had been there before.
            now_ns: Monotonic.

        Raises:
            UnavailableError: There is no other way, or no time.
        """
        away = self._describe(step, error)
        own, silent = step.call is self._call, isinstance(error, TimeoutError)
        if reused and not silent and self._reconnects and (step.call.repeatable or not sent):
            self._reconnects -= 1
            return
        self._router.lost(step.address)
        self._failures += 1
        if own and (isinstance(self._call.to, ToNode) or (sent and not self._call.repeatable)):
            raise away
        if self._router.is_clustered:
            self._trouble(away, now_ns, ask=True)
        elif not own:
            self._questions.clear()
            self._rounds = 0
            self._router.not_learned()
        elif silent or self._failures >= self._router.count():
            raise away

    def abandoned(self) -> None:
        """The call is made no more; what it was to learn, another one must."""
        if self._questions:
            self._router.not_learned()

    @property
    def _first(self) -> bool:
        return self._troubles == 0

    def _trouble(self, error: LogdError, now_ns: int, *, ask: bool) -> None:
        """Try again, the first time at once; `ask` who there is and who leads before."""
        if not self._first:
            self._pause_s = self._backoff.pause(error, now_ns)
        self._troubles += 1
        if ask:
            self._questions.clear()
            self._questions.append(calls.cluster())
            if isinstance(self._call.to, ToPartition):
                self._questions.append(calls.describe(self._call.to.stream))

    def _is_ahead(self, error: RefusedError) -> bool:
        """Return whether a new leader has the offset and does not know yet that it is committed."""
        if error.code != "OUT_OF_RANGE":
            return False
        offset = self._call.request.get("offset", 0)
        return int(error.detail["latest"]) < int(offset) <= int(error.detail.get("end_offset", -1))

    def _describe(self, step: NextAction, error: OSError) -> UnavailableError:
        if isinstance(error, TimeoutError):
            return calls.silent(step.address, self._router.timeout_s + step.call.wait_s)
        return calls.unreachable(step.address, error)


def split_address(server: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``; an IPv6 host stands in brackets.

    Raises:
        ValueError: It is not.
    """
    host, _, port = server.rpartition(":")
    if not host or not port.isdigit():
        msg = f"server {server!r} is not HOST:PORT"
        raise ValueError(msg)
    try:
        host.encode("idna")
    except UnicodeError:
        msg = f"server {server[:80]!r}: its host cannot be a name"
        raise ValueError(msg) from None
    return host.strip("[]"), int(port)
