"""What commands do to the state of a cluster, and which are refused."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from penstock.logd.metadata.commands import (
    AlterStream,
    ChangeObservers,
    ChangeReplicas,
    DataGone,
    DeleteStream,
    SetTarget,
)
from penstock.logd.metadata.records import ReplicationOptions
from penstock.logd.metadata.state import ClusterState, Each, Refused
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.metadata.tables import Done
from tests.support.cluster_state import Cluster, create


@pytest.fixture
def cluster() -> Cluster:
    """Four nodes, and a stream on three of them."""
    cluster = Cluster("a", "b", "c", "d")
    cluster.create("s", ("a", "b", "c"))
    return cluster


def test_a_new_stream_is_led_by_its_first_replica_that_lives() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ("a", "b", "c"), isr=("c", "b"))
    assert cluster.partition().leader == "b"
    assert cluster.partition().isr == ("b", "c")
    assert cluster.partition().leader_epoch == 1
    assert cluster.state.match("s.x") == ("s",)


def test_a_repeated_create_finds_the_stream(cluster: Cluster) -> None:
    before = cluster.stream()
    again = cluster.apply(create("s", ("b", "c", "d"), nonce="cd"))
    assert again == Done(changed=False, incarnation=before.incarnation)
    assert cluster.stream() == before


def test_a_create_that_differs_is_refused(cluster: Cluster) -> None:
    two = ReplicationOptions(replication_factor=2)
    assert cluster.code(create("s", ("a", "b"), options=two)) == "STREAM_DIFFERS"
    assert cluster.code(create("s", ("a", "b", "c"), ("a", "b", "c"))) == "STREAM_DIFFERS"
    config = StreamConfig(name="s", subject="t")
    other = structs.replace(create("s", ("a", "b", "c")), config=config)
    assert cluster.code(other) == "STREAM_DIFFERS"


@pytest.mark.parametrize(
    ("replicas", "isr", "code"),
    [
        (("a", "a", "b"), ("a",), "BAD_REPLICAS"),
        (("a", "b"), ("a",), "BAD_REPLICAS"),
        (("a", "b", "x"), ("a",), "UNKNOWN_NODE"),
        (("a", "b", "c"), ("d",), "BAD_ISR"),
        (("a", "b", "c"), ("a", "a"), "BAD_ISR"),
        (("a", "b", "d"), ("a",), "NOT_ACTIVE"),
    ],
)
def test_a_placement_is_checked(
    cluster: Cluster, replicas: tuple[str, ...], isr: tuple[str, ...], code: str
) -> None:
    cluster.drain("d")
    assert cluster.code(create("t", replicas, isr=isr)) == code


@pytest.mark.parametrize(
    "options",
    [
        ReplicationOptions(replication_factor=-1),
        ReplicationOptions(replication_factor=10),
        ReplicationOptions(replication_factor=3, min_isr=4),
        ReplicationOptions(replication_factor=3, min_isr=0),
    ],
)
def test_options_are_checked(cluster: Cluster, options: ReplicationOptions) -> None:
    assert cluster.code(create("t", ("a", "b", "c"), options=options)) == "BAD_OPTIONS"
    alter = AlterStream(
        config=cluster.stream().config, options=options, incarnation=cluster.stream().incarnation
    )
    assert cluster.code(alter) == "BAD_OPTIONS"


def test_an_alteration_leaves_what_is_restored_as_it_is_or_ends_it(cluster: Cluster) -> None:
    """One that knows nothing of it, as of an older node, must not let publishers in between."""
    restored = StreamConfig(name="t", subject="t", restore_from=(5,), restore_upto=(9,))
    assert cluster.code(structs.replace(create("t", ("a", "b", "c")), config=restored)) == ""
    before = cluster.stream("t")

    def alter(**changes: Any) -> StreamConfig:
        config = replace(before.config, fsync="never", **changes)
        command = AlterStream(config=config, options=before.options, incarnation=before.incarnation)
        assert cluster.code(command) == ""
        return cluster.stream("t").config

    assert alter(restore_from=(), restore_upto=()) == replace(restored, fsync="never")
    assert alter(restore_upto=(7,)) == replace(restored, fsync="never")
    ended = replace(restored, fsync="never", restore_upto=(5,))
    assert alter(restore_upto=(5,)) == ended
    assert alter(restore_from=(), restore_upto=()) == ended, "it stays ended"


def test_min_isr_is_a_majority_unless_told() -> None:
    cluster = Cluster("a", "b", "c", "d")
    for count, least in ((1, 1), (2, 2), (3, 2), (4, 3)):
        nodes = ("a", "b", "c", "d")[:count]
        cluster.create(f"s{count}", nodes, options=ReplicationOptions(replication_factor=count))
        assert cluster.stream(f"s{count}").min_isr == least
    cluster.create("all", ("a", "b", "c", "d"), options=ReplicationOptions(replication_factor=0))
    assert cluster.stream("all").min_isr == 3
    told = ReplicationOptions(replication_factor=3, min_isr=1)
    cluster.create("told", ("a", "b", "c"), options=told)
    assert cluster.stream("told").min_isr == 1


def test_of_a_shrink_and_an_election_that_race_only_the_first_is_applied(cluster: Cluster) -> None:
    """Scenario 13: a shrink without b, and an election of b, from the same state."""
    shrink, elect = cluster.isr_change("a", "c"), cluster.election("b")
    assert cluster.code(shrink) == ""
    assert cluster.code(elect) == "STALE_VERSION"
    assert cluster.code(cluster.election("b", "b")) == "LEADER_NOT_IN_ISR"
    assert cluster.partition().leader == "a"

    other = Cluster("a", "b", "c")
    other.create("s", ("a", "b", "c"))
    shrink, elect = other.isr_change("a", "c"), other.election("b")
    assert other.code(elect) == ""
    assert other.code(shrink) == "STALE_EPOCH"
    assert other.partition().leader == "b"
    assert other.code(other.isr_change("a", "c")) == "LEADER_NOT_IN_ISR"


def test_an_isr_holds_replicas_only(cluster: Cluster) -> None:
    assert cluster.code(cluster.isr_change("a", "d")) == "NOT_IN_REPLICAS"
    assert cluster.code(cluster.isr_change("a", "a")) == "BAD_REPLICAS"
    assert cluster.code(cluster.isr_change()) == "BAD_REPLICAS"
    assert cluster.code(cluster.isr_change("c", "a")) == ""
    assert cluster.partition().isr == ("a", "c")
    assert cluster.partition().leader_epoch == 1
    version = cluster.partition().version
    assert cluster.code(cluster.isr_change("c", "a")) == ""
    assert cluster.partition().version == version + 1, "it takes back what was proposed before"


def test_a_leader_is_elected_from_the_isr_unless_that_is_asked_for(cluster: Cluster) -> None:
    cluster.apply(cluster.isr_change("a"))
    assert cluster.code(cluster.election("b")) == "LEADER_NOT_IN_ISR"
    assert cluster.code(cluster.election("b", "b", unclean="option")) == "UNCLEAN_NOT_ALLOWED"
    assert cluster.code(cluster.election("b", "a", "b", unclean="operator")) == "BAD_ISR"
    assert cluster.code(cluster.election("d", "d", unclean="operator")) == "NOT_IN_REPLICAS"
    assert cluster.code(cluster.election("b", "b", unclean="operator")) == ""
    assert (cluster.partition().leader, cluster.partition().isr) == ("b", ("b",))
    assert cluster.partition().unclean_elections == 1
    assert cluster.partition().leader_epoch == cluster.partition().unclean_epoch == 2


def test_an_election_cannot_expand_the_isr(cluster: Cluster) -> None:
    cluster.apply(cluster.isr_change("a", "b"))
    assert cluster.code(cluster.election("b", "b", "c")) == "NOT_IN_ISR"
    assert cluster.code(cluster.election("b", "b")) == ""
    assert cluster.partition().isr == ("b",)


def test_who_loses_a_leadership_is_noted(cluster: Cluster) -> None:
    assert cluster.code(cluster.election(None, successor="c")) == ""
    partition = cluster.partition()
    assert (partition.leader, partition.last_leader, partition.successor) == (None, "a", "c")
    assert cluster.state.nodes["a"].deposed_at == cluster.state.index
    assert cluster.code(cluster.election(None)) == "NO_LEADER"
    assert cluster.code(cluster.isr_change("a")) == "NO_LEADER"
    assert cluster.code(cluster.election("c")) == ""
    assert cluster.partition().successor is None
    assert cluster.partition().leader_epoch == 3
    assert cluster.state.nodes["c"].deposed_at == 0


def test_deposing_leaves_the_isr_alone(cluster: Cluster) -> None:
    assert cluster.code(cluster.election(None, "a")) == "BAD_ISR"
    assert cluster.code(cluster.election(None, successor="d")) == "NOT_IN_ISR"


def test_each_part_of_a_command_is_judged_on_its_own(cluster: Cluster) -> None:
    cluster.create("t", ("b", "c", "d"))
    first, second = cluster.election("b"), cluster.election("c", name="t")
    both = structs.replace(first, elections=(*first.elections, *first.elections, *second.elections))
    result = cluster.apply(both)
    assert isinstance(result, Each)
    assert [type(one) for one in result.results] == [Done, Refused, Done]
    assert (cluster.partition().leader, cluster.partition("t").leader) == ("b", "c")


def test_a_stream_is_forgotten_when_every_node_has_removed_its_data(cluster: Cluster) -> None:
    incarnation = cluster.stream().incarnation
    cluster.apply(ChangeObservers(basis=cluster.basis(), observers=("d",)))
    assert cluster.code(DeleteStream(stream="s", incarnation="other")) == "OTHER_INCARNATION"
    delete = DeleteStream(stream="s", incarnation=incarnation)
    assert cluster.code(delete) == ""
    assert cluster.apply(delete) == Done(changed=False, incarnation=incarnation)
    assert cluster.state.match("s.x") == ()
    assert cluster.partition().leader is None
    for node in ("a", "b", "c", "d"):
        refused = cluster.apply(create("s", ("a", "b", "c")))
        assert isinstance(refused, Refused)
        assert refused.code == "STREAM_DELETING"
        assert node in refused.message.split(": ")[1], "who is waited for is named"
        gone = DataGone(node=node, stream="s", incarnation=incarnation, partitions=(0,))
        assert cluster.code(gone) == ""
    assert cluster.state.streams == {}
    again = cluster.create("s", ("a", "b", "c"))
    assert again != incarnation


def test_what_is_said_of_an_earlier_incarnation_does_not_touch_the_stream(cluster: Cluster) -> None:
    """The same command once more, after the stream was deleted and created again."""
    late_isr, late_election = cluster.isr_change("a"), cluster.election("b")
    old = cluster.stream().incarnation
    cluster.apply(DeleteStream(stream="s", incarnation=old))
    gone = [
        DataGone(node=node, stream="s", incarnation=old, partitions=(0,))
        for node in ("a", "b", "c")
    ]
    for command in gone:
        cluster.apply(command)
    cluster.create("s", ("a", "b", "c"))
    before = cluster.stream()
    assert cluster.code(late_isr) == "OTHER_INCARNATION"
    assert cluster.code(late_election) == "OTHER_INCARNATION"
    assert cluster.code(DeleteStream(stream="s", incarnation=old)) == "OTHER_INCARNATION"
    for command in gone:
        assert cluster.apply(command) == Done(changed=False)
    assert cluster.stream() == before


def test_a_replica_cannot_say_that_data_is_gone_that_it_must_keep(cluster: Cluster) -> None:
    incarnation = cluster.stream().incarnation
    gone = DataGone(node="b", stream="s", incarnation=incarnation, partitions=(0,))
    assert cluster.code(gone) == "IS_REPLICA"
    assert cluster.code(structs.replace(gone, partitions=(1,))) == "UNKNOWN_PARTITION"


def test_a_move_adds_before_it_removes(cluster: Cluster) -> None:
    def step(*replicas: str) -> str:
        return cluster.code(ChangeReplicas(basis=cluster.basis(), replicas=replicas))

    assert cluster.code(SetTarget(basis=cluster.basis(), target=("d", "b", "c"))) == ""
    assert step("d", "b", "c") == "BAD_REPLICAS"
    assert step("b", "c") == "IS_LEADER"
    assert step("a", "b") == "TOO_FEW_REPLICAS"
    assert step("a", "b", "c", "d") == ""
    assert step("b", "c", "d") == "IS_LEADER"
    assert cluster.code(cluster.election("b")) == ""
    assert step("d", "b", "c") == ""
    partition = cluster.partition()
    assert (partition.replicas, partition.target) == (("d", "b", "c"), None)
    assert (partition.isr, partition.former) == (("b", "c"), ("a",))


def test_a_replica_that_is_needed_is_not_removed() -> None:
    cluster = Cluster("a", "b", "c", "d")
    one = ReplicationOptions(replication_factor=1, min_isr=1)
    cluster.create("s", ("a",), options=one)
    cluster.apply(ChangeReplicas(basis=cluster.basis(), replicas=("a", "b")))
    cluster.apply(cluster.election(None))
    only = ChangeReplicas(basis=cluster.basis(), replicas=("b",))
    assert cluster.code(only) == "LAST_IN_ISR"
    cluster.create("t", ("a", "b", "c"))
    cluster.apply(ChangeReplicas(basis=cluster.basis("t"), replicas=("a", "b", "c", "d")))
    cluster.apply(cluster.isr_change("a", "b", name="t"))
    fewer = ChangeReplicas(basis=cluster.basis("t"), replicas=("a", "c", "d"))
    assert cluster.code(fewer) == "BELOW_MIN_ISR"


def test_a_node_gets_no_replica_before_its_old_data_is_gone(cluster: Cluster) -> None:
    incarnation = cluster.stream().incarnation
    for replicas in (("a", "b", "c", "d"), ("a", "b", "d")):
        cluster.apply(ChangeReplicas(basis=cluster.basis(), replicas=replicas))
    back = ("a", "b", "d", "c")
    assert cluster.code(ChangeReplicas(basis=cluster.basis(), replicas=back)) == "DATA_NOT_GONE"
    watch = ChangeObservers(basis=cluster.basis(), observers=("c",))
    assert cluster.code(watch) == "DATA_NOT_GONE"
    gone = DataGone(node="c", stream="s", incarnation=incarnation, partitions=(0,))
    assert cluster.code(gone) == ""
    assert cluster.code(ChangeReplicas(basis=cluster.basis(), replicas=back)) == ""
    (d, c) = cluster.partition().joined
    assert (d.node, c.node) == ("d", "c")
    assert d.version < c.version == cluster.partition().version


def test_observers_are_not_replicas(cluster: Cluster) -> None:
    both = ChangeObservers(basis=cluster.basis(), observers=("a",))
    assert cluster.code(both) == "BAD_REPLICAS"
    assert cluster.code(ChangeObservers(basis=cluster.basis(), observers=("d",))) == ""
    assert cluster.code(cluster.isr_change("a", "b", "c", "d")) == "NOT_IN_REPLICAS"
    promoted = ChangeReplicas(basis=cluster.basis(), replicas=("a", "b", "c", "d"))
    (joined,) = cluster.partition().joined
    assert cluster.code(promoted) == ""
    assert cluster.partition().observers == ()
    assert cluster.partition().joined == (joined,)  # it keeps what it has


def test_the_digest_tells_states_apart(cluster: Cluster) -> None:
    other = ClusterState.restore(cluster.state.snapshot())
    assert other.digest() == cluster.state.digest()
    assert other.snapshot() == cluster.state.snapshot()
    cluster.apply(cluster.isr_change("a"))
    assert other.digest() != cluster.state.digest()
    assert other.match("s.x") == ("s",)
