"""What the controller moves, one step after the other."""

from collections.abc import Callable

from msgspec.structs import replace

from penstock.logd.controller.controller import ProposalDropped, RebalanceAsked, Tick
from penstock.logd.metadata.commands import ChangeObservers, Drain, SetTarget
from penstock.logd.metadata.records import ReplicationOptions
from tests.support.cluster_office import ALWAYS, TIMING, Office
from tests.support.cluster_state import Cluster


def test_leaderships_are_evened_out_when_asked_or_after_a_calm_time() -> None:
    cluster = Cluster("a", "b")
    two = ReplicationOptions(replication_factor=2)
    cluster.create("s", *[("a", "b")] * 4, options=two)
    office = Office(cluster, replace(TIMING, rebalance_after_ms=3000))
    office.begin()
    settle(office, lambda: office.now >= 2500)
    assert [one.leader for one in cluster.stream().partitions] == ["a"] * 4
    settle(office, lambda: office.now >= 6000)
    assert sorted(one.leader or "" for one in cluster.stream().partitions) == ["a", "a", "b", "b"]

    for number in (0, 1, 2, 3):
        cluster.apply(cluster.election("b", number=number))
    asked = Office(cluster)
    asked.begin()
    asked.beat("a", "b")
    asked.tell(RebalanceAsked())
    settle(asked, lambda: asked.now >= 1500)
    assert sorted(one.leader or "" for one in cluster.stream().partitions) == ["a", "a", "b", "b"]


def settle(office: Office, done: Callable[[], bool]) -> None:
    while not done():
        office.now += 50
        office.beat(*office.cluster.state.nodes)
        office.tell(Tick(ALWAYS))
        office.apply()


def test_a_drained_node_observes_nothing() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ("a",), options=ReplicationOptions(replication_factor=1))
    cluster.apply(ChangeObservers(basis=cluster.basis(), observers=("b", "c")))
    cluster.apply(Drain(node="c"))
    office = Office(cluster)
    office.begin()
    settle(office, lambda: office.now >= 2500)
    assert (cluster.partition().observers, cluster.partition().former) == (("b",), ("c",))


def test_a_drained_node_is_emptied_step_by_step() -> None:
    cluster = Cluster("a", "b", "c", "d")
    cluster.create("s", ("a", "b", "c"), ("b", "c", "a"))
    office = Office(cluster)
    office.begin()
    office.beat("a", "b", "c", "d")
    office.do(Drain(node="a"))
    for _ in range(40):
        office.now += 500
        office.beat("a", "b", "c", "d")
        office.tell(Tick(ALWAYS))
        for command in office.apply():
            assert not isinstance(command, SetTarget) or "a" not in (command.target or ())
        for number, partition in enumerate(cluster.stream().partitions):
            assert len(partition.replicas) >= 3
            if partition.leader and set(partition.isr) != set(partition.replicas):
                office.do(cluster.isr_change(*partition.replicas, number=number))
    partitions = cluster.stream().partitions
    assert len(partitions) == 2
    for partition in partitions:
        assert sorted(partition.replicas) == ["b", "c", "d"]
        assert (partition.former, partition.target) == (("a",), None)
        assert partition.leader in ("b", "c", "d")


def test_a_proposal_that_is_dropped_is_made_again_a_little_later() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ("a", "b", "c"))
    office = Office(cluster)
    office.begin()
    office.pass_time(700, "b", "c")
    dropped = office.proposed.pop()
    office.tell(ProposalDropped(dropped.proposal))
    assert office.proposed == []  # not at once: that would be in vain
    office.pass_time(office.now + 50, "b", "c")
    assert [again.command for again in office.proposed] == [dropped.command]
