"""Any commands in any order, based on any state there was: what holds for the state afterwards."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.logd.metadata.commands import (
    Basis,
    ChangeIsr,
    ChangeObservers,
    ChangeReplicas,
    Command,
    CreateStream,
    DataGone,
    DeleteStream,
    Drain,
    Election,
    ElectLeaders,
    IsrChange,
    NewShare,
    PutGroup,
    Release,
    RemoveNode,
    SetTarget,
    decode_command,
    encode_command,
)
from penstock.logd.metadata.records import (
    GroupMember,
    GroupPartition,
    PartitionKey,
    ReplicationOptions,
    Share,
    StreamRecord,
)
from penstock.logd.metadata.state import ClusterState, Each, Refused
from penstock.logd.metadata.tables import Done, basis_of
from tests.support.cluster_state import create, register

NODES = st.sampled_from(["a", "b", "c", "d"])
STREAMS = st.sampled_from(["s", "t"])
SOME_NODES = st.lists(NODES, min_size=1, max_size=4).map(tuple)
MEMBERS = st.sampled_from(["m1", "m2", "m3"])
PICK = st.integers(0, 1000)


class AnyCommands(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = ClusterState()
        self.bases: list[Basis] = []
        self.sent: list[Command] = []
        self.seen: dict[tuple[str, int], tuple[int, int]] = {}
        self.incarnations: list[str] = []
        for node in ("a", "b", "c"):
            self.apply(register(node))
        self.apply(create("s", ("a", "b", "c")))

    def apply(self, command: Command) -> None:
        before = ClusterState.restore(self.state.snapshot())
        digest, index = self.state.digest(), self.state.index + 1
        result = self.state.apply(index, command)
        results = result.results if isinstance(result, Each) else (result,)
        if all(isinstance(one, Refused) or not one.changed for one in results):
            assert self.state.digest() == digest
        assert before.apply(index, decode_command(encode_command(command))) == result
        assert before.snapshot() == self.state.snapshot()
        self.sent.append(command)
        self.bases += [
            basis_of(key, stream, partition) for key, stream, partition in self.state.partitions()
        ]
        if isinstance(command, CreateStream) and isinstance(result, Done) and result.changed:
            self.incarnations.append(result.incarnation)

    def basis(self, pick: int, *, fresh: bool) -> Basis:
        """One from any time, or, mostly, from now."""
        now = list(self.state.partitions())
        if fresh and now:
            return basis_of(*now[pick % len(now)])
        return self.bases[pick % len(self.bases)]

    @rule(node=NODES, boot=st.sampled_from(["1", "2"]), storage=st.sampled_from(["x", "x", "y"]))
    def register_node(self, node: str, boot: str, storage: str) -> None:
        self.apply(register(node, boot=boot, storage=storage + node))

    @rule(node=NODES, undo=st.booleans())
    def drain(self, node: str, undo: bool) -> None:
        self.apply(Drain(node=node, undo=undo))

    @rule(node=NODES)
    def remove(self, node: str) -> None:
        self.apply(RemoveNode(node=node))

    @rule(name=STREAMS, nodes=SOME_NODES, factor=st.integers(0, 3), unclean=st.booleans())
    def create(self, name: str, nodes: tuple[str, ...], factor: int, unclean: bool) -> None:
        options = ReplicationOptions(replication_factor=factor, unclean_election=unclean)
        self.apply(create(name, nodes, options=options))

    @rule(name=STREAMS, pick=PICK)
    def delete(self, name: str, pick: int) -> None:
        incarnation = self.incarnations[pick % len(self.incarnations)]
        self.apply(DeleteStream(stream=name, incarnation=incarnation))

    @rule(name=STREAMS, node=NODES, pick=PICK)
    def data_gone(self, name: str, node: str, pick: int) -> None:
        incarnation = self.incarnations[-1 - pick % len(self.incarnations)]
        self.apply(DataGone(node=node, stream=name, incarnation=incarnation, partitions=(0,)))

    @rule(isr=SOME_NODES, pick=PICK, fresh=st.booleans())
    def change_isr(self, isr: tuple[str, ...], pick: int, fresh: bool) -> None:
        change = IsrChange(basis=self.basis(pick, fresh=fresh), isr=isr)
        self.apply(ChangeIsr(changes=(change,)))

    @rule(
        leader=st.none() | NODES,
        isr=st.none() | SOME_NODES,
        pick=PICK,
        fresh=st.booleans(),
        unclean=st.sampled_from(["no", "no", "option", "operator"]),
        successor=st.none() | NODES,
    )
    def elect(self, pick: int, fresh: bool, isr: tuple[str, ...] | None, **wanted: Any) -> None:
        basis = self.basis(pick, fresh=fresh)
        found = self.state.partition(PartitionKey(basis.stream, basis.partition))
        now = isr or (found[1].isr if found else ("a",))
        self.apply(ElectLeaders(elections=(Election(basis=basis, isr=now, **wanted),)))

    @rule(replicas=SOME_NODES, pick=PICK, fresh=st.booleans(), whole=st.booleans())
    def move(self, replicas: tuple[str, ...], pick: int, fresh: bool, whole: bool) -> None:
        basis = self.basis(pick, fresh=fresh)
        if whole:
            self.apply(SetTarget(basis=basis, target=replicas))
        else:
            self.apply(ChangeReplicas(basis=basis, replicas=replicas))

    @rule(observers=st.lists(NODES, max_size=2).map(tuple), pick=PICK)
    def observe(self, observers: tuple[str, ...], pick: int) -> None:
        self.apply(ChangeObservers(basis=self.basis(pick, fresh=True), observers=observers))

    @rule(pick=PICK)
    def repeat(self, pick: int) -> None:
        self.apply(self.sent[pick % len(self.sent)])

    @rule(
        members=st.lists(MEMBERS, max_size=3, unique=True),
        shares=st.lists(st.tuples(MEMBERS, st.none() | MEMBERS), max_size=2),
        fresh=st.booleans(),
        release=st.booleans(),
    )
    def put_group(
        self,
        members: list[str],
        shares: list[tuple[str, str | None]],
        fresh: bool,
        release: bool,
    ) -> None:
        group = self.state.groups.get("g")
        before = {share.partition.partition: share for share in group.shares} if group else {}
        released = [
            Release(partition=share.partition, member=share.owner, epoch=share.epoch)
            for share in before.values()
            if share.owner
        ]
        command = PutGroup(
            group="g",
            based_on=group.epoch if group and fresh else 0,
            members=tuple(
                GroupMember(id=member, streams=("s",), session_ms=1000) for member in members
            ),
            shares=tuple(
                NewShare(partition=GroupPartition("s", "i", number), wanted=wanted, owner=owner)
                for number, (wanted, owner) in enumerate(shares)
            ),
            released=tuple(released) if release else (),
        )
        self.apply(command)
        after = self.state.groups.get("g")
        if after and not release:
            assert_revoked_first(before, after.shares, set(members))

    @invariant()
    def a_leader_is_in_the_isr_and_the_isr_among_the_replicas(self) -> None:
        for _, _, partition in self.state.partitions():
            assert partition.leader is None or partition.leader in partition.isr
            assert set(partition.isr) <= set(partition.replicas) <= set(self.state.nodes)
            for nodes in (partition.replicas, partition.isr, partition.observers):
                assert len(set(nodes)) == len(nodes)
            assert not set(partition.replicas) & {*partition.observers, *partition.former}
            assert partition.successor is None or partition.leader is None

    @invariant()
    def epochs_and_versions_only_rise(self) -> None:
        for name, stream in self.state.streams.items():
            for number, partition in enumerate(stream.partitions):
                key = (stream.incarnation + name, number)
                was = self.seen.get(key, (0, 0))
                assert partition.leader_epoch >= was[0]
                assert partition.version >= was[1]
                self.seen[key] = (partition.leader_epoch, partition.version)

    @invariant()
    def no_incarnation_is_given_twice(self) -> None:
        assert len(set(self.incarnations)) == len(self.incarnations)

    @invariant()
    def what_is_looked_up_by_subject_is_what_is_open(self) -> None:
        for name in ("s", "t"):
            stream: StreamRecord | None = self.state.streams.get(name)
            assert self.state.match(f"{name}.x") == ((name,) if stream and stream.is_open else ())


def assert_revoked_first(
    before: dict[int, Share], after: tuple[Share, ...], members: set[str]
) -> None:
    for share in after:
        was = before.get(share.partition.partition)
        if was is not None and was.owner in members:
            assert share.owner == was.owner


AnyCommands.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestAnyCommands = AnyCommands.TestCase
