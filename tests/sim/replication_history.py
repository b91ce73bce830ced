"""What truly happened, and what must never happen: I1 to I6 of a replicated partition.

The committed log is whatever any node has called committed. Everything is checked when it happens:
a new leader must hold all of it, a raised high watermark must agree with it, and every ack must be
of what it says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.logd.replication.follower import Follower

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.logd.replication.events import NodeId
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
        committed: Every record ever called committed, by offset. None: retention took it where an
            unclean election found another history.
        acked: Message by offset, as acks of policy `all` said.
        leaders: Who led, by epoch.
        given_up: What was committed and may be lost since, with its offset.
        accepting: What the next leader knows to be committed is so, for an operator wanted it.
        lossy: An unclean election has been asked for: what it may lose, it may.
    """

    def __init__(self) -> None:
        self.committed: list[Record | None] = []
        self.acked: dict[int, Message] = {}
        self.leaders: dict[int, NodeId] = {}
        self.latest_epoch = 0
        self.lossy = False
        self.unclean_epoch = 0
        self.given_up: set[tuple[int, Record]] = set()
        self.accepting = False
        self.published: set[Message] = set()

    def leads(self, node: Node, epoch: int) -> None:
        """A node begins to take writes."""
        assert self.leaders.setdefault(epoch, node.name) == node.name, f"two leaders of {epoch}"
        self.latest_epoch = max(self.latest_epoch, epoch)
        disk, start = node.disk, node.disk.start
        if self.accepting and epoch >= self.unclean_epoch:
            self.accepting = False
            for at in range(len(self.committed), node.high_watermark + 1):
                self.committed.append(disk.written(at) if at >= start else None)
        # What it holds and nobody has noticed to be damaged is held.
        whole = disk.end >= len(self.committed) and all(
            record in (None, disk.written(at))
            for at, record in enumerate(self.committed[start:], start)
        )
        assert whole, f"{node.name} leads {epoch} without all committed"
        forgotten = [r.message for r in self.committed if r and r.message not in node.ids]
        assert self.lossy or not forgotten, f"{node.name} leads {epoch}, has forgotten {forgotten}"

    def commits(self, node: Node, offset: int) -> None:
        """A node calls everything up to an offset committed."""
        assert offset > node.high_watermark, f"{node.name}: {node.high_watermark} to {offset}"
        if node.replica.leader_epoch < self.unclean_epoch:
            node.high_watermark = offset
            return  # it has not heard yet that this is lost
        disk, holes, view = node.disk, node.holes(), node.replica.view
        enough = view is not None and len(view.isr) >= view.min_isr
        for at in range(max(node.checked, disk.start), offset + 1):
            record = disk.written(at)
            if node.leading and at > node.high_watermark:
                assert at not in holes, f"{node.name} commits a hole at {at}"
                assert enough, f"{node.name} commits {at} with too few in sync"
            if self.lossy and at == disk.start > len(self.committed):
                self.committed += [None] * (at - len(self.committed))
            if at < len(self.committed):
                agrees = self.committed[at] in (None, record)
                assert agrees, f"{node.name} differs at {at}: {record}"
            else:
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
        record = self.committed[offset]
        assert record is None or record.message == message, f"another record at {offset}"

    def shows(self, node: Node) -> None:
        """Who has agreed with a leader since the unclean election shows what was ever committed."""
        state, shown = node.replica.state, node.replica.high_watermark
        if isinstance(state, Follower) and node.replica.log.agreed_epoch >= self.unclean_epoch:
            for at in range(max(len(self.committed), node.disk.start), shown + 1):
                assert (at, node.disk.written(at)) in self.given_up, f"{node.name} shows {at}"

    def knows_of_holes(self, node: Node) -> None:
        """Who leads with a hole is alone in sync, and what is damaged was committed before."""
        holes = node.holes()
        if node.leading and holes:
            view = node.replica.view
            assert view is not None
            assert view.isr == {node.name}, f"{node.name} leads with a hole, and is not alone"
            assert max(holes) <= node.high_watermark, f"{node.name} leads with a hole not committed"
            node.world.mark("led with a hole")

    def unclean(self, node: Node, epoch: int) -> None:
        """What the elected does not hold is lost, by the operator's wish."""
        self.lossy = self.accepting = True
        self.unclean_epoch = epoch
        for each in node.world.nodes.values():
            each.checked = 0
        end = node.disk.start + node.disk.certain()
        agreed = min(end, len(self.committed))
        for at in range(node.disk.start, agreed):
            if node.disk.written(at) != self.committed[at]:
                agreed = at
                break
        self.given_up |= {
            (at, record) for at, record in enumerate(self.committed[agreed:], agreed) if record
        }
        del self.committed[agreed:]
        self.acked = {offset: message for offset, message in self.acked.items() if offset < agreed}

    def converged(self, nodes: Sequence[Node]) -> str:
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
        messages = [record.message for record in self.committed if record]
        assert self.lossy or len(set(messages)) == len(messages), "a message twice"
        for offset, message in self.acked.items():
            record = self.committed[offset]
            assert record is None or record.message == message
