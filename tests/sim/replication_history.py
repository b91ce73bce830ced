"""What truly happened, and what must never happen: I1 to I6 of a replicated partition.

The committed log is whatever any node has called committed. Everything is checked when it happens:
who begins to lead must hold all of it, whoever raises a high watermark must agree with it, and
every ack must be of what it says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.logd.core.node import NodeId
    from tests.sim.replication_node import Node


class Message(NamedTuple):
    """What a publisher sends; `policy` is all or leader."""

    client: int
    number: int
    policy: str


class Record(NamedTuple):
    """What a log holds at an offset."""

    epoch: int
    message: Message


class History:
    """The true history of one run.

    Attributes:
        committed: Every record ever called committed, by offset.
        acked: Message by offset, as acks of policy `all` said.
        leaders: Who led, by epoch.
        lossy: An unclean election has been asked for: what it may lose, it may.
    """

    def __init__(self) -> None:
        self.committed: list[Record] = []
        self.acked: dict[int, Message] = {}
        self.leaders: dict[int, NodeId] = {}
        self.latest_epoch = 0
        self.lossy = False
        self.unclean_epoch = 0
        self.lost = 0
        self.published: set[Message] = set()

    def leads(self, node: Node, epoch: int) -> None:
        """A node begins to take writes."""
        assert self.leaders.setdefault(epoch, node.name) == node.name, f"two leaders of {epoch}"
        self.latest_epoch = max(self.latest_epoch, epoch)
        records, start = node.disk.records, node.disk.start
        held = records[: len(self.committed) - start]
        if node.replica.view is not None and node.replica.view.isr == {node.name}:
            # The only one in sync goes on with a hole that is found while it leads.
            pairs = enumerate(held, start)
            held = [self.committed[at] if record is None else record for at, record in pairs]
        assert held == self.committed[start:], f"{node.name} leads {epoch} without all committed"

    def commits(self, node: Node, offset: int) -> None:
        """A node calls everything up to an offset committed."""
        assert offset > node.high_watermark, f"{node.name}: {node.high_watermark} to {offset}"
        if node.replica.leader_epoch < self.unclean_epoch:
            return  # it has not heard yet that this is lost
        disk = node.disk
        for at in range(max(node.checked, disk.start), offset + 1):
            record = disk.records[at - disk.start]
            if at < len(self.committed):
                agrees = record in (None, self.committed[at])
                assert agrees, f"{node.name} differs at {at}: {record}"
            else:
                assert record is not None, f"{node.name} commits a hole at {at}"
                assert at == len(self.committed), f"{node.name} commits {at}, after a gap"
                assert record.message in self.published
                self.committed.append(record)
        node.high_watermark, node.checked = offset, offset + 1

    def acks(self, node: Node, offset: int, message: Message, policy: str) -> None:
        """A node tells a publisher that its message is at an offset."""
        if node.replica.leader_epoch < self.unclean_epoch:
            return
        if policy == "leader":
            assert self.latest_epoch <= node.leading, f"{node.name} acks with a stale lease"
            return
        assert self.acked.setdefault(offset, message) == message, f"two acks for {offset}"
        assert offset < len(self.committed), f"{offset} acked before it is committed"
        assert self.committed[offset].message == message, f"another record at {offset}"

    def unclean(self, node: Node, epoch: int) -> None:
        """What the elected does not hold is lost, by the operator's wish."""
        self.lossy = True
        self.unclean_epoch = epoch
        for each in node.world.nodes.values():
            each.checked = 0
        end = node.disk.start + node.disk.certain()
        agreed = min(end, len(self.committed))
        for at in range(node.disk.start, agreed):
            if node.disk.records[at - node.disk.start] != self.committed[at]:
                agreed = at
                break
        self.lost += len(self.committed) - agreed
        del self.committed[agreed:]
        self.acked = {offset: message for offset, message in self.acked.items() if offset < agreed}

    def converged(self, nodes: list[Node]) -> str:
        """Why the nodes do not agree yet on one log that holds all that was acked; empty if so."""
        if any(None in node.disk.records for node in nodes):
            return "a hole is not filled"
        ends = {(node.disk.start + len(node.disk.records), node.high_watermark) for node in nodes}
        if len(ends) > 1:
            return f"ends and high watermarks differ: {sorted(ends)}"
        end, high_watermark = ends.pop()
        if high_watermark != end - 1:
            return f"{high_watermark} is not all of {end}"
        first = max(node.disk.start for node in nodes)
        logs = [node.disk.records[first - node.disk.start :] for node in nodes]
        assert all(log == logs[0] for log in logs), "equally long logs differ"
        return ""

    def check_end(self) -> None:
        """I6: each message is committed once at most; all that was acked is where it was."""
        messages = [record.message for record in self.committed]
        assert self.lossy or len(set(messages)) == len(messages), "a message twice"
        for offset, message in self.acked.items():
            assert self.committed[offset].message == message
