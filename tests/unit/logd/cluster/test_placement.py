"""Where replicas go, and how they and leaderships move: properties on clusters of many shapes."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.logd.controller.placement import place_stream, plan_moves, plan_transfers
from penstock.logd.errors import RefusedError
from penstock.logd.metadata.commands import (
    AlterStream,
    ChangeReplicas,
    DataGone,
    ElectLeaders,
    SetTarget,
)
from penstock.logd.metadata.records import PartitionKey, ReplicationOptions, StreamRecord
from penstock.logd.metadata.state import Each
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.metadata.tables import Done
from tests.support.cluster_state import Cluster, register

NODES = "abcdefg"


class AllFit:
    """Every replica could lead, but those on nodes that are dead."""

    def __init__(self, *dead: str) -> None:
        self.dead = dead

    def is_fit(self, node: str, key: PartitionKey, stream: StreamRecord) -> bool:
        return node not in self.dead


def place(
    cluster: Cluster, name: str, factor: int, partitions: int, live: set[str] | None = None
) -> None:
    command = place_stream(
        cluster.state,
        set(cluster.state.nodes) if live is None else live,
        StreamConfig(name=name, subject=f"{name}.>"),
        ReplicationOptions(replication_factor=factor),
        partitions=partitions,
        nonce="ab",
    )
    assert cluster.code(command) == ""


def spread(counts: Counter[str], nodes: str) -> int:
    return max(counts[node] for node in nodes) - min(counts[node] for node in nodes)


def replicas(cluster: Cluster) -> Counter[str]:
    return Counter(
        node for _, _, partition in cluster.state.partitions() for node in partition.replicas
    )


def leaders(cluster: Cluster) -> Counter[str]:
    return Counter(partition.leader or "" for _, _, partition in cluster.state.partitions())


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 7),
    streams=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 8)), min_size=1, max_size=5),
)
def test_replicas_and_leaders_are_spread_evenly(count: int, streams: list[tuple[int, int]]) -> None:
    nodes = NODES[:count]
    cluster = Cluster(*nodes)
    for number, (factor, partitions) in enumerate(streams):
        place(cluster, f"s{number}", min(factor, count), partitions)
        assert spread(replicas(cluster), nodes) <= 1
    for _, _, partition in cluster.state.partitions():
        assert len(set(partition.replicas)) == len(partition.replicas)
    if len({min(factor, count) for factor, _ in streams}) == 1:
        assert spread(leaders(cluster), nodes) <= 2


@settings(max_examples=40, deadline=None)
@given(
    racks=st.lists(st.sampled_from(["r1", "r2", "r3", ""]), min_size=3, max_size=7),
    factor=st.integers(1, 3),
)
def test_replicas_are_in_as_many_racks_as_can_be(racks: list[str], factor: int) -> None:
    nodes = NODES[: len(racks)]
    named = dict(zip(nodes, racks, strict=True))
    cluster = Cluster(*nodes, racks=named)
    place(cluster, "s", factor, 6)
    own = {node: rack or node for node, rack in named.items()}
    for _, _, partition in cluster.state.partitions():
        used = {own[node] for node in partition.replicas}
        assert len(used) == min(factor, len(set(own.values())))


def test_nodes_that_are_not_there_come_last_and_are_out_of_the_isr() -> None:
    cluster = Cluster("a", "b", "c", "d")
    place(cluster, "s", 3, 4, live={"b", "c", "d"})
    assert "a" not in replicas(cluster)
    place(cluster, "t", 3, 4, live={"c", "d"})
    for partition in cluster.stream("t").partitions:
        assert set(partition.isr) == {"c", "d"}
        assert partition.replicas[0] in ("c", "d")


@pytest.mark.parametrize(("factor", "live"), [(3, {"a", "b"}), (2, set())])
def test_without_enough_nodes_nothing_is_placed(factor: int, live: set[str]) -> None:
    cluster = Cluster("a", "b")
    with pytest.raises(RefusedError) as error:
        place(cluster, "s", factor, 1, live=live)
    assert error.value.code == "NOT_ENOUGH_NODES"
    with pytest.raises(RefusedError):
        place(Cluster(), "s", 0, 1)


def test_a_stream_on_every_node_is_placed_on_every_node() -> None:
    cluster = Cluster("a", "b", "c")
    place(cluster, "s", 0, 2)
    assert all(len(one.replicas) == 3 for one in cluster.stream().partitions)


def run_plan(cluster: Cluster, fitness: AllFit, *, moves_max: int = 2) -> int:
    """Follow the plans to their end; how many steps they took."""
    live = set(cluster.state.nodes) - set(fitness.dead)
    for turn in range(2000):
        plan = plan_moves(cluster.state, live, fitness, moves_max)
        if not plan.steps and not plan.handovers and not catch_up(cluster, fitness):
            return turn
        moving = [one for _, _, one in cluster.state.partitions() if one.target is not None]
        assert len(moving) <= moves_max
        for step in plan.steps:
            assert isinstance(step.command, SetTarget | ChangeReplicas)
            before = cluster.partition(step.key.stream, step.key.partition)
            assert cluster.code(step.command) == "", step
            after = cluster.partition(step.key.stream, step.key.partition)
            wanted = cluster.stream(step.key.stream).options.replication_factor
            wanted = wanted or len(cluster.state.active())
            assert len(after.replicas) >= min(len(before.replicas), wanted)
            assert len(set(before.replicas) ^ set(after.replicas)) <= 1
        for election in plan.handovers:
            result = cluster.apply(ElectLeaders(elections=(election,)))
            assert isinstance(result, Each)
            assert isinstance(result.results[0], Done), result
            key = PartitionKey(election.basis.stream, election.basis.partition)
            assert election.successor is not None
            chosen = cluster.election(election.successor, name=key.stream, number=key.partition)
            assert cluster.code(chosen) == ""
    pytest.fail("the plan does not end")


def catch_up(cluster: Cluster, fitness: AllFit) -> bool:
    """Replicas get in sync; data that was left behind goes."""
    changed = False
    for key, stream, partition in list(cluster.state.partitions()):
        able = tuple(sorted(node for node in partition.replicas if node not in fitness.dead))
        if partition.leader in able and able != partition.isr:
            change = cluster.isr_change(*able, name=key.stream, number=key.partition)
            assert cluster.code(change) == ""
            changed = True
        for node in partition.former:
            if node not in fitness.dead:
                gone = DataGone(
                    node=node,
                    stream=key.stream,
                    incarnation=stream.incarnation,
                    partitions=(key.partition,),
                )
                assert cluster.code(gone) == ""
                changed = True
    return changed


@settings(max_examples=15, deadline=None)
@given(count=st.integers(4, 6), partitions=st.integers(1, 4), dead=st.booleans())
def test_draining_ends_with_an_empty_node_and_as_many_replicas(
    count: int, partitions: int, dead: bool
) -> None:
    nodes = NODES[:count]
    cluster = Cluster(*nodes)
    place(cluster, "s", 3, partitions)
    if dead:  # it is drained because it will not come back
        for number, partition in enumerate(cluster.stream().partitions):
            left = tuple(node for node in partition.isr if node != "a")
            if partition.leader == "a":
                cluster.apply(cluster.election(left[0], *left, number=number))
            elif "a" in partition.isr:
                cluster.apply(cluster.isr_change(*left, number=number))
    cluster.drain("a")
    run_plan(cluster, AllFit("a") if dead else AllFit())
    for partition in cluster.stream().partitions:
        assert "a" not in partition.replicas
        assert len(partition.replicas) == 3
        assert partition.target is None


def test_draining_waits_where_there_are_too_few_nodes() -> None:
    cluster = Cluster("a", "b", "c")
    place(cluster, "s", 3, 2)
    cluster.drain("a")
    run_plan(cluster, AllFit())
    for partition in cluster.stream().partitions:
        assert "a" in partition.replicas
        assert partition.leader != "a"


def test_a_stream_on_every_node_follows_the_nodes() -> None:
    cluster = Cluster("a", "b")
    place(cluster, "s", 0, 2)
    cluster.apply(register("c"))
    run_plan(cluster, AllFit())
    assert all(sorted(one.replicas) == ["a", "b", "c"] for one in cluster.stream().partitions)
    cluster.drain("a")
    run_plan(cluster, AllFit())
    assert all(sorted(one.replicas) == ["b", "c"] for one in cluster.stream().partitions)


def test_a_move_whose_target_is_drained_gets_another() -> None:
    cluster = Cluster("a", "b", "c", "d", "e")
    cluster.create("s", ("a", "b", "c"))
    cluster.apply(SetTarget(basis=cluster.basis(), target=("d", "b", "c")))
    (step,) = plan_moves(cluster.state, set("abcde"), AllFit(), 2).steps
    cluster.apply(step.command)
    cluster.drain("d")
    run_plan(cluster, AllFit())
    assert cluster.partition().replicas == ("a", "b", "c")
    cluster.apply(SetTarget(basis=cluster.basis(), target=("e", "b", "c")))
    run_plan(cluster, AllFit())
    assert cluster.partition().replicas == ("e", "b", "c")


def test_a_move_to_fewer_replicas_than_are_wanted_by_now_gets_another_target() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ("a", "b"), options=ReplicationOptions(replication_factor=2))
    cluster.apply(SetTarget(basis=cluster.basis(), target=("a", "c")))
    (step,) = plan_moves(cluster.state, set("abc"), AllFit(), 2).steps
    cluster.apply(step.command)
    stream = cluster.stream()
    options = replace(stream.options, replication_factor=3)
    alter = AlterStream(incarnation=stream.incarnation, config=stream.config, options=options)
    assert cluster.code(alter) == ""
    run_plan(cluster, AllFit())
    assert sorted(cluster.partition().replicas) == ["a", "b", "c"]
    assert cluster.partition().target is None


@settings(max_examples=30, deadline=None)
@given(
    led=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    isrs=st.lists(st.integers(0, 3), min_size=12, max_size=12),
)
def test_leaderships_are_evened_out_and_planning_ends(led: list[int], isrs: list[int]) -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", *[("a", "b", "c")] * len(led))
    free = True
    for number, which in enumerate(led):
        leader = "abc"[which]
        cluster.apply(cluster.election(leader, number=number))
        if isrs[number] < 3 and "abc"[isrs[number]] != leader:
            out = tuple(node for node in "abc" if node != "abc"[isrs[number]])
            cluster.apply(cluster.isr_change(*out, number=number))
            free = False
    squares = sum(count**2 for count in leaders(cluster).values())
    for _ in range(100):
        handovers = plan_transfers(cluster.state, set("abc"), AllFit(), 4)
        if not handovers:
            break
        for election in handovers:
            assert election.successor in election.isr
            number = election.basis.partition
            cluster.apply(ElectLeaders(elections=(election,)))
            assert election.successor is not None
            assert cluster.code(cluster.election(election.successor, number=number)) == ""
        now = sum(count**2 for count in leaders(cluster).values())
        assert now < squares
        squares = now
    else:
        pytest.fail("planning does not end")
    if free:
        assert spread(leaders(cluster), "abc") <= 1


def test_leaderships_go_along_others_where_they_cannot_go_straight() -> None:
    cluster = Cluster("a", "b", "c")
    two = ReplicationOptions(replication_factor=2)
    cluster.create("s", ("a", "b"), ("a", "b"), ("b", "c"), options=two)
    handovers = plan_transfers(cluster.state, set("abc"), AllFit(), 4)
    moves = {(one.basis.partition, one.successor) for one in handovers}
    assert moves == {(0, "b"), (2, "c")}
    assert plan_transfers(cluster.state, set("abc"), AllFit("b"), 4) == []


def test_leaderships_on_their_way_count() -> None:
    cluster = Cluster("a", "b")
    two = ReplicationOptions(replication_factor=2)
    cluster.create("s", ("a", "b"), ("a", "b"), options=two)
    (handover,) = plan_transfers(cluster.state, set("ab"), AllFit(), 4)
    cluster.apply(ElectLeaders(elections=(handover,)))
    assert plan_transfers(cluster.state, set("ab"), AllFit(), 4) == []


def test_nothing_is_removed_before_what_was_added_is_in_sync() -> None:
    cluster = Cluster("a", "b", "c", "d")
    cluster.create("s", ("a", "b", "c"))
    cluster.apply(SetTarget(basis=cluster.basis(), target=("a", "b", "d")))
    (added,) = plan_moves(cluster.state, set("abcd"), AllFit(), 2).steps
    assert cluster.code(added.command) == ""
    assert plan_moves(cluster.state, set("abcd"), AllFit(), 2).steps == ()
    cluster.apply(cluster.isr_change("a", "b", "c", "d"))
    (removed,) = plan_moves(cluster.state, set("abcd"), AllFit(), 2).steps
    assert cluster.code(removed.command) == ""
    assert cluster.partition().replicas == ("a", "b", "d")
