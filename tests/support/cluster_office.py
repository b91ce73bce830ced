"""A controller in its office, for tests that say when things happen."""

from penstock.logd.controller.controller import (
    BecameController,
    CommandApplied,
    Controller,
    ControllerEffect,
    ControllerEvent,
    HeartbeatReceived,
    Propose,
    Tick,
)
from penstock.logd.controller.liveness import (
    NS_PER_MS,
    Heartbeat,
    HeartbeatAnswer,
    HeartbeatRefusal,
    PartitionReport,
    Timing,
)
from penstock.logd.metadata.commands import Command
from penstock.logd.metadata.records import PartitionKey
from penstock.logd.replication.events import Ineligible
from tests.support.cluster_state import Cluster

ALWAYS = 2**62
KEY = PartitionKey("s", 0)
TIMING = Timing(lease_ms=600, drift_percent=10, unclean_wait_ms=5000, rebalance_after_ms=10**9)


class Office:
    """A controller on a state; what it proposes is applied when a test says so. Milliseconds."""

    def __init__(self, cluster: Cluster, timing: Timing = TIMING) -> None:
        self.cluster = cluster
        self.controller = Controller(timing)
        self.now = 0
        self.sequences = 0
        self.proposed: list[Propose] = []
        self.answers: list[HeartbeatAnswer | HeartbeatRefusal] = []

    def tell(self, event: ControllerEvent) -> list[ControllerEffect]:
        effects = self.controller.handle(event, self.now * NS_PER_MS)
        for effect in effects:
            if isinstance(effect, Propose):
                self.proposed.append(effect)
            else:
                self.answers.append(effect.answer)
        return effects

    def begin(self) -> None:
        self.tell(BecameController(self.cluster.state, self.now * NS_PER_MS))

    def beat(
        self,
        *nodes: str,
        reports: tuple[PartitionReport, ...] = (),
        full: bool = False,
        applied: int | None = None,
        raft_lease_until_ns: int = ALWAYS,
        deaf: bool = False,
    ) -> HeartbeatAnswer | HeartbeatRefusal:
        for node in nodes:
            self.sequences += 1
            known = self.cluster.state.nodes.get(node)
            heartbeat = Heartbeat(
                node=node,
                storage=known.storage if known else "",
                boot=known.boot if known else "",
                sequence=self.sequences,
                applied_index=self.cluster.state.index if applied is None else applied,
                reports=reports,
                full=full,
                deaf=deaf,
            )
            self.tell(HeartbeatReceived(heartbeat, raft_lease_until_ns))
        return self.answers[-1]

    def apply(self) -> list[Command]:
        """What was proposed takes effect."""
        commands = []
        while self.proposed:
            proposal = self.proposed.pop(0)
            result = self.cluster.apply(proposal.command)
            commands.append(proposal.command)
            self.tell(CommandApplied(proposal.command, result, proposal.proposal))
        return commands

    def do(self, command: Command) -> None:
        self.tell(CommandApplied(command, self.cluster.apply(command)))

    def pass_time(self, until_ms: int, *nodes: str) -> None:
        """These nodes send heartbeats; nothing is applied."""
        while self.now < until_ms:
            self.now += 50
            self.beat(*nodes)
            self.tell(Tick(ALWAYS))


def report(
    cluster: Cluster,
    *,
    end_offset: int = 0,
    epoch: int | None = None,
    unfit: Ineligible = "",
    resigned: bool = False,
) -> PartitionReport:
    """What a node says of its replica of the stream's first partition."""
    return PartitionReport(
        key=KEY,
        incarnation=cluster.stream().incarnation,
        leader_epoch=cluster.partition().leader_epoch if epoch is None else epoch,
        last_epoch=1,
        end_offset=end_offset,
        unfit=unfit,
        resigned=resigned,
    )
