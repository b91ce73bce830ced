"""Replicas of a partition that hear the same subject, and take turns to lead.

One seed picks what is published (equal messages, and such with ids that are repeated), when each
message reaches which node, when records are replicated and committed, and when another node takes
over. The log of the leader at the end has every message as often as it was published, and one
with an id once: nothing was answered, so nothing was sent again.

Time stands still: what is bounded by time is for the unit tests.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from penstock.logd.intake.gaps import Instant
from penstock.logd.intake.standby_buffer import Window, is_exact
from penstock.logd.intake.turn import Message

S = 1_000_000_000
NOW = 100 * S


@dataclass(frozen=True, eq=False)
class Record:
    """A record of somebody's log; copies of it are the same object."""

    identity: bytes


@dataclass
class Node:
    """A replica: its log, what it has heard, and how much of what was published reached it."""

    window: Window
    log: list[Record] = field(default_factory=list)
    heard: int = 0
    taken: list[tuple[int, bytes]] = field(default_factory=list)

    def known(self, identity: bytes) -> int | None:
        """As what is remembered of ids has it."""
        if not is_exact(identity):
            return None
        return next((n for n, record in enumerate(self.log) if record.identity == identity), None)

    def take(self, identity: bytes) -> None:
        """As the intake of a leader."""
        if self.known(identity) is None:
            self.taken.append((len(self.log), identity))
            self.log.append(Record(identity))


def message(identity: bytes) -> Message:
    return Message(b"s", b"", b"", identity)


@dataclass
class StandbyWorld:
    """One run. Call `run`, then `verdict`.

    Args:
        make_window: Of each node; twins make worse ones.
    """

    seed: int
    make_window: Callable[[], Window] = lambda: Window(10 * S, 2 * S, held_bytes_max=1 << 20)
    reached: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.nodes = [Node(self.make_window()) for _ in range(3)]
        for node in self.nodes:
            node.window.present(Instant(0, 0))
        self.leader = self.nodes[0]
        self.published: list[bytes] = []

    def run(self, steps: int) -> None:
        """Take random steps, then let everything arrive everywhere."""
        actions = {self.publish: 8, self.deliver: 20, self.replicate: 20, self.commit: 4}
        actions[self.fail_over] = 1
        for action in self.random.choices([*actions], [*actions.values()], k=steps):
            action()
        for node in self.nodes:
            while node.heard < len(self.published):
                self.deliver(node)
        for node in self.nodes:
            while len(node.log) < len(self.leader.log):
                self.replicate(node)

    def verdict(self) -> str:
        """What is wrong; empty if nothing is."""
        wanted = Counter(self.published)
        wanted.update({one: 1 - n for one, n in wanted.items() if is_exact(one)})
        found = Counter(record.identity for record in self.leader.log)
        if found != wanted:
            return f"missing {wanted - found}, too many {found - wanted}"
        left = [len(node.window) for node in self.nodes if node is not self.leader]
        return f"{left} are held though they are stored" if any(left) else ""

    # What happens.

    def publish(self) -> None:
        kind, name = self.random.choice((b"c", b"i")), self.random.randrange(6)
        if kind == b"i" and self.random.random() < 0.7:
            name = 100 + len(self.published)
        self.published.append(b"%b%d" % (kind, name))

    def deliver(self, node: Node | None = None) -> None:
        node = node or self.random.choice(self.nodes)
        if node.heard == len(self.published):
            return
        identity = self.published[node.heard]
        node.heard += 1
        if node is not self.leader:
            node.window.arrive(message(identity), identity, NOW, known=node.known(identity))
        elif is_exact(identity) or not node.window.pay(message(identity), identity, NOW):
            node.take(identity)
        else:
            self.reached.add("a leader is paid")

    def replicate(self, node: Node | None = None) -> None:
        node = node or self.random.choice(self.nodes)
        if len(node.log) < len(self.leader.log):
            record = self.leader.log[len(node.log)]
            node.window.append(len(node.log), record.identity, NOW, recorded_ns=1)
            node.log.append(record)

    def commit(self) -> None:
        high_watermark = min(len(node.log) for node in self.nodes) - 1
        for node in self.nodes:
            node.window.committed(high_watermark)
            node.taken = [entry for entry in node.taken if entry[0] > high_watermark]

    def fail_over(self) -> None:
        """Another node leads: it takes what it has heard, the others cut what it does not have."""
        if any(node.log[: len(self.leader.log)] != self.leader.log for node in self.nodes):
            self.replicate()
            if self.random.random() < 0.9:  # one failover at a time is promised, as a rule
                return
        before = self.leader
        after = self.random.choice([node for node in self.nodes if node is not before])
        for offset, identity in before.taken:
            before.window.took(offset, message(identity), identity, NOW)
        before.taken.clear()
        self.leader = after
        for node in self.nodes:
            agreed = sum(a is b for a, b in zip(node.log, after.log, strict=False))
            if agreed < len(node.log):
                self.reached.add("a log is cut")
                del node.log[agreed:]
                node.window.cut(agreed, NOW)
        released = after.window.release(NOW, 0)
        assert not released.missing, released
        for one in released.messages:
            self.reached.add("something is released")
            after.take(one.payload)
