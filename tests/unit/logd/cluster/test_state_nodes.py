"""What commands about nodes do to the state: they come, bring streams, lose data, leave."""

import pytest
from msgspec.structs import replace

from penstock.logd.cluster.import_standalone import check_imported
from penstock.logd.errors import UnavailableError
from penstock.logd.metadata.commands import (
    AdoptStream,
    DataGone,
    DeleteStream,
    Drain,
    RegisterNode,
    RemoveNode,
)
from penstock.logd.metadata.records import Addresses, NodeState, ReplicationOptions
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.metadata.tables import Done
from tests.support.cluster_state import Cluster, register


@pytest.fixture
def cluster() -> Cluster:
    """Four nodes, and a stream on three of them."""
    cluster = Cluster("a", "b", "c", "d")
    cluster.create("s", ("a", "b", "c"))
    return cluster


def test_a_node_that_was_started_again_leads_in_a_new_epoch_only(cluster: Cluster) -> None:
    assert cluster.apply(register("a")) == Done(changed=False)
    moved = RegisterNode(
        node="a", addresses=Addresses(peer="other:1"), storage="storage-a", boot="boot-1"
    )
    assert cluster.apply(moved) == Done()
    assert cluster.partition().leader == "a"
    cluster.apply(register("a", boot="boot-2"))
    assert (cluster.partition().leader, cluster.partition().leader_epoch) == (None, 2)
    assert cluster.partition().isr == ("a", "b", "c")
    assert cluster.state.nodes["a"].deposed_at == cluster.state.index


def test_a_node_says_until_when_it_brings_streams_of_its_own(cluster: Cluster) -> None:
    adopting = replace(register("a"), adopting=True)
    assert cluster.apply(adopting) == Done()
    assert cluster.state.nodes["a"].adopting
    with pytest.raises(UnavailableError, match="taken over from a"):
        check_imported(cluster.state)
    assert cluster.apply(register("a")) == Done()
    check_imported(cluster.state)
    assert cluster.partition().leader == "a"


def test_a_node_with_another_disk_is_in_no_isr(cluster: Cluster) -> None:
    cluster.create("t", ("b", "a", "d"))
    cluster.apply(register("a", storage="new"))
    assert (cluster.partition().leader, cluster.partition().isr) == (None, ("b", "c"))
    assert (cluster.partition("t").leader, cluster.partition("t").isr) == ("b", ("b", "d"))


def test_the_only_replica_with_another_disk_may_lead_only_if_told() -> None:
    cluster = Cluster("a")
    cluster.create("s", ("a",), options=ReplicationOptions(replication_factor=1))
    cluster.apply(register("a", storage="new"))
    assert cluster.partition().isr == ()
    assert cluster.code(cluster.election("a", "a")) == "LEADER_NOT_IN_ISR"
    assert cluster.code(cluster.election("a", "a", unclean="operator")) == ""


def test_a_node_leaves_when_it_has_nothing_left(cluster: Cluster) -> None:
    assert cluster.code(RemoveNode(node="x")) == "UNKNOWN_NODE"
    assert cluster.code(RemoveNode(node="d")) == "NOT_DRAINED"
    cluster.drain("d")
    cluster.drain("c")
    assert cluster.code(RemoveNode(node="c")) == "NOT_DRAINED"
    assert cluster.code(RemoveNode(node="d")) == ""
    assert cluster.apply(RemoveNode(node="d")) == Done(changed=False)
    assert cluster.code(Drain(node="d", undo=True)) == "UNKNOWN_NODE"
    assert cluster.code(register("d", boot="boot-2")) == "NODE_REMOVED"
    assert cluster.code(register("d", storage="new", boot="boot-2")) == ""
    assert cluster.state.nodes["d"].state is NodeState.ACTIVE
    assert cluster.code(Drain(node="c", undo=True)) == ""
    assert cluster.state.active() == ["a", "b", "c", "d"]


def test_a_removed_node_holds_up_no_deletion(cluster: Cluster) -> None:
    incarnation = cluster.stream().incarnation
    cluster.drain("c")
    cluster.apply(DeleteStream(stream="s", incarnation=incarnation))
    for node in ("a", "b"):
        cluster.apply(DataGone(node=node, stream="s", incarnation=incarnation, partitions=(0,)))
    assert "s" in cluster.state.streams
    assert cluster.code(RemoveNode(node="c")) == ""
    assert "s" not in cluster.state.streams


def test_a_stream_from_before_is_taken_over_with_its_incarnation() -> None:
    cluster = Cluster("a", "b")
    adopt = AdoptStream(
        config=StreamConfig(name="__cursors", subject=""),
        options=ReplicationOptions(),
        incarnation="0123456789abcdef",
        node="a",
        leader_epoch=7,
    )
    assert cluster.code(adopt) == ""
    assert cluster.apply(adopt) == Done(changed=False, incarnation="0123456789abcdef")
    assert cluster.code(replace(adopt, incarnation="fedc")) == "STREAM_DIFFERS"
    assert (cluster.partition("__cursors").leader, cluster.basis("__cursors").leader_epoch) == (
        "a",
        7,
    )


def test_a_node_is_named_and_told_properly() -> None:
    cluster = Cluster()
    assert cluster.code(register("a b")) == "BAD_NODE"
    assert cluster.code(register("")) == "BAD_NODE"
    assert cluster.code(register("a", boot="b" * 65)) == "BAD_NODE"
    assert cluster.code(register("a", rack="r" * 301)) == "BAD_NODE"
