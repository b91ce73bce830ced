"""A network that loses, repeats, delays and reorders messages, and cuts links one way."""

from dataclasses import dataclass, field
from random import Random

from penstock.logd.replication.events import NodeId

MILLISECOND = 1_000_000


@dataclass
class Network:
    """What may happen to a message.

    Attributes:
        loss, duplication: Chances.
        delay_max_ms: Most arrive at once or soon; the slowest take so long.
        straying: The chance of one that takes seconds, so that it outlives elections.
        cut: Links (from, to) that carry nothing.
    """

    random: Random
    loss: float = 0.0
    duplication: float = 0.0
    delay_max_ms: float = 1.0
    straying: float = 0.0
    cut: set[tuple[NodeId, NodeId]] = field(default_factory=set)

    def draw(self) -> None:
        """Draw how bad it is."""
        self.loss = self.random.choice((0.0, 0.0, 0.02, 0.1, 0.3))
        self.duplication = self.random.choice((0.0, 0.02, 0.2))
        self.delay_max_ms = self.random.choice((1.0, 5.0, 20.0, 60.0))
        self.straying = self.random.choice((0.0, 0.01, 0.1))

    def delays_ns(self, sender: NodeId, recipient: NodeId) -> list[int]:
        """When copies of a message arrive; none if it is lost."""
        random = self.random
        if (sender, recipient) in self.cut or random.random() < self.loss:
            return []
        copies = 2 if random.random() < self.duplication else 1
        return [self._delay_ns() for _ in range(copies)]

    def partition(self, nodes: list[NodeId]) -> None:
        """Cut some nodes off the others, sometimes one way only, or some links here and there."""
        random = self.random
        self.cut.clear()
        if random.random() < 0.5:
            pairs = [(a, b) for a in nodes for b in nodes if a < b]
            for a, b in random.sample(pairs, random.randint(0, (len(pairs) + 1) // 2)):
                self.cut |= random.choice(({(a, b), (b, a)}, {(a, b), (b, a)}, {(a, b)}, {(b, a)}))
            return
        some = set(random.sample(nodes, random.randint(1, max(1, len(nodes) // 2))))
        ways = random.choice((("out", "in"), ("out", "in"), ("out",), ("in",)))
        for a in some:
            for b in nodes:
                if b not in some:
                    self.cut |= {(a, b)} if "out" in ways else set()
                    self.cut |= {(b, a)} if "in" in ways else set()

    def heal(self) -> None:
        """All is well from now on."""
        self.cut.clear()
        self.loss = self.duplication = self.straying = 0.0
        self.delay_max_ms = 1.0

    def _delay_ns(self) -> int:
        if self.straying and self.random.random() < self.straying:
            return int(self.random.random() * 800 * MILLISECOND)
        return int(self.random.random() ** 3 * self.delay_max_ms * MILLISECOND) + 100_000
