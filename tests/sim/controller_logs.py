"""Replication in `controller_world`: what replicas have of a log, without their messages."""

from penstock.logd.metadata.commands import ChangeIsr, IsrChange
from penstock.logd.metadata.records import PartitionKey
from penstock.logd.metadata.tables import basis_of
from tests.sim.controller_cores import Cores
from tests.sim.controller_node import DATA_TICK_NS, FAULTS_NS, MS, LogKey, SimNode


class Logs(Cores):
    """Leaders append, replicas that know their epoch copy, and what all in sync have is acked."""

    def data_tick(self) -> None:
        self.at(DATA_TICK_NS, self.data_tick)
        self.check_one_leader()
        for node in self.nodes.values():
            if self.now >= node.paused_until:
                for log, key in node.believes(self.now):
                    self.led_ns[log] = self.now
                    self.lead(node, log, key)

    def lead(self, node: SimNode, log: LogKey, key: PartitionKey) -> None:
        found = node.state.partition(key)
        assert found is not None
        stream, partition = found
        epoch = partition.leader_epoch
        entries = node.logs.setdefault(log, [])
        acked = self.acked.setdefault(log, [])
        if (log, epoch) not in self.begun:
            self.begun.add((log, epoch))
            self.reached["leaders"] += 1
            assert entries[: len(acked)] == acked, (
                f"{node.name} leads {log} and lacks acked records"
            )
        self.serial += 1
        entries.append((epoch, self.serial))
        progress = node.progress.setdefault((log, epoch), {})
        for name in (*partition.replicas, *partition.observers):
            self.copy(node, self.nodes[name], log, key, epoch, progress)
        version, adding = node.pending.get(log, (partition.version, set()))
        if version != partition.version:
            adding = set()
        node.pending[log] = (partition.version, adding)
        counted = [progress.get(name, (0, 0))[0] for name in {*partition.isr, *adding}]
        high = min(counted)
        if len(partition.isr) >= stream.min_isr and high > len(acked):
            assert entries[: len(acked)] == acked, f"{log}: acked records are overwritten"
            acked.extend(entries[len(acked) : high])
        behind = {
            name
            for name in partition.isr
            if self.now - progress.get(name, (0, 0))[1] > 800 * MS and name != node.name
        }
        joining = {
            name
            for name in partition.replicas
            if name not in partition.isr and progress.get(name, (0, 0))[0] >= max(high, 1)
        }
        if behind or joining:
            adding |= joining
            isr = tuple(sorted({*partition.isr, *joining} - behind))
            change = IsrChange(basis=basis_of(key, stream, partition), isr=isr)
            self.forward(node, ChangeIsr(changes=(change,)))

    def copy(
        self,
        leader: SimNode,
        follower: SimNode,
        log: LogKey,
        key: PartitionKey,
        epoch: int,
        progress: dict[str, tuple[int, int]],
    ) -> None:
        """What a follower has fetched since; only one that knows the epoch asks this leader."""
        if follower is leader:
            progress[leader.name] = (len(leader.logs[log]), self.now)
            return
        if not (self.is_well(follower) and leader.is_heard and leader.hears):
            return
        found = follower.state.partition(key)
        if found is None or found[0].incarnation != log[1] or log in follower.failed:
            return
        if found[1].leader_epoch != epoch or follower.name not in found[1].holders:
            return
        if self.now < FAULTS_NS and self.random.random() < self.missed_fetches:
            return
        follower.logs[log] = list(leader.logs[log])
        progress[follower.name] = (len(follower.logs[log]), self.now)
