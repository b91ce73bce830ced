"""A tiny cluster of replica cores without time or chance: effects are done at once."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import pytest

from penstock.logd.replication import events as ev
from penstock.logd.replication import events as fx
from penstock.logd.replication.events import Frames, LeaderAndIsr, NodeId, Span
from penstock.logd.replication.log_state import Epochs, LogState
from penstock.logd.replication.replica import Replica

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
LEASE_NS: Final = 1_000_000_000
VIEW = LeaderAndIsr(
    incarnation="i",
    version=1,
    leader_epoch=1,
    leader=A,
    isr=frozenset({A, B, C}),
    replicas=(A, B, C),
    min_isr=2,
)


@dataclass
class Node:
    """A replica with its log: (epoch, value) of each record. What it says is kept in `said`."""

    name: NodeId
    log: list[tuple[int, str]] = field(default_factory=list)
    epochs: Epochs = field(default_factory=Epochs)
    high_watermark: int = -1
    said: list[fx.Effect] = field(default_factory=list)
    sent: list[fx.SendFetch | fx.SendAnswer] = field(default_factory=list)
    holds_syncs: bool = False
    boots: int = 0

    def __post_init__(self) -> None:
        self.start()

    def start(self, *, keeps: int | None = None) -> None:
        """The process starts; only so many records have survived."""
        self.boots += 1
        del self.log[len(self.log) if keeps is None else keeps :]
        state = LogState.opened(
            start=0, end=len(self.log), epochs=self.epochs, high_watermark=self.high_watermark
        )
        self.replica = Replica(self.name, "i", state, boot=f"{self.name}{self.boots}")
        self.sent.clear()

    def take(self, event: ev.Event, now_ns: int = 0) -> None:
        for effect in self.replica.handle(event, now_ns):
            self.said.append(effect)
            match effect:
                case fx.BeginEpoch(epoch):
                    self.take(ev.EpochSaved(epoch), now_ns)
                case fx.Truncate(upto, cuts):
                    del self.log[upto:]
                    self.take(ev.Truncated(upto, cuts), now_ns)
                case fx.HighWatermark(offset):
                    self.high_watermark = offset
                case fx.SendFetch() | fx.SendAnswer():
                    self.sent.append(effect)
                case _:
                    pass

    def write(self, records: list[tuple[int, str]], now_ns: int = 0) -> None:
        self.log += records
        self.take(ev.Written(len(self.log), self.replica.log.cuts), now_ns)
        if not self.holds_syncs:
            self.sync(now_ns)

    def sync(self, now_ns: int = 0) -> None:
        self.take(ev.Synced(len(self.log), self.replica.log.cuts), now_ns)

    def publish(self, value: str, now_ns: int = 0) -> None:
        self.take(ev.Submitted(len(self.log) + 1), now_ns)
        self.write([(self.replica.leader_epoch, value)], now_ns)

    def lead(self, view: LeaderAndIsr, now_ns: int = 0) -> None:
        self.take(ev.LeaseRenewed(now_ns + LEASE_NS), now_ns)
        self.take(ev.LeaderAndIsrChanged(view), now_ns)

    def push(self, others: Iterable[NodeId], told: set[tuple[NodeId, str]]) -> None:
        """Answer open wishes that there is news for."""
        for other in others:
            answer = self.replica.answer_for(other)
            if answer is not None and (other, str(answer)) not in told:
                told.add((other, str(answer)))
                self.sent.append(fx.SendAnswer(other, answer))

    def has(self, kind: type[fx.Effect]) -> list[fx.Effect]:
        return [effect for effect in self.said if isinstance(effect, kind)]


def exchange(*nodes: Node, now_ns: int = 0) -> None:
    """Carry messages between the nodes until nobody has anything to say."""
    by_name = {node.name: node for node in nodes}
    told: set[tuple[NodeId, str]] = set()
    for _ in range(200):
        for node in nodes:
            node.push(by_name, told)
        waiting = [(node, message) for node in nodes for message in node.sent]
        if not waiting:
            return
        for node in nodes:
            node.sent.clear()
        for source, message in waiting:
            target = by_name.get(message.node)
            match message:
                case fx.SendFetch(_, fetch) if target is not None:
                    target.take(ev.FetchCame(fetch), now_ns)
                case fx.SendAnswer(_, answer) if target is not None:
                    records = source.log[answer.offset :] if isinstance(answer, Frames) else []
                    first = answer.offset if isinstance(answer, Frames) else 0
                    spans = tuple(Span(n, n + 1, r[0]) for n, r in enumerate(records, first))
                    said = len(target.said)
                    target.take(ev.AnswerCame(answer, spans), now_ns)
                    if any(isinstance(effect, fx.AppendFetched) for effect in target.said[said:]):
                        target.write(records, now_ns)
                case _:
                    pass
    pytest.fail("the nodes talk without end")


def cluster(*values: str, view: LeaderAndIsr = VIEW) -> tuple[Node, Node, Node]:
    """Three nodes that agree, led by the first."""
    nodes = Node(A), Node(B), Node(C)
    for node in nodes:
        node.lead(view)
    exchange(*nodes)
    for value in values:
        nodes[0].publish(value)
    exchange(*nodes)
    return nodes
