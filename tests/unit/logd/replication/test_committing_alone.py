"""A leader whose partition has one replica commits what its disk has, without an event."""

import pytest

from penstock.logd.replication import events as ev
from penstock.logd.replication import events as fx
from penstock.logd.replication.events import LeaderAndIsr
from tests.support.replicas import LEASE_NS, VIEW, A, Node, cluster

ALONE = LeaderAndIsr(
    incarnation="i",
    version=1,
    leader_epoch=1,
    leader=A,
    isr=frozenset({A}),
    replicas=(A,),
    min_isr=1,
)


def leader_alone(view: LeaderAndIsr = ALONE) -> Node:
    node = Node(A)
    node.lead(view)
    node.holds_syncs = True
    return node


def published(node: Node, *values: str) -> None:
    """Write records; they are not synced yet."""
    for value in values:
        node.replica.note_submitted(len(node.log) + 1)
        node.write([(1, value)])


def test_what_is_synced_is_committed_as_an_event_would_commit_it() -> None:
    by_event, at_once = leader_alone(), leader_alone()
    for node in (by_event, at_once):
        published(node, "one", "two")
        assert node.replica.high_watermark == -1, "written is not durable"
    by_event.take(ev.Synced(2, 0))
    assert at_once.replica.commit_alone(2, 0)
    assert by_event.has(fx.HighWatermark) == [fx.HighWatermark(1)]
    assert at_once.replica.high_watermark == by_event.replica.high_watermark == 1
    assert at_once.replica.commit_alone(1, 0)
    assert at_once.replica.high_watermark == 1, "an earlier sync takes nothing back"


def test_a_sync_from_before_the_log_was_cut_commits_nothing() -> None:
    leader = leader_alone()
    leader.replica.log.cuts = 1
    published(leader, "one")
    assert not leader.replica.commit_alone(1, 0)
    assert leader.replica.high_watermark == -1


@pytest.mark.parametrize(
    "view",
    [
        VIEW,
        LeaderAndIsr(
            incarnation="i",
            version=1,
            leader_epoch=1,
            leader=A,
            isr=frozenset({A}),
            replicas=VIEW.replicas,
            min_isr=1,
        ),
    ],
    ids=["replicas in sync", "replicas out of sync"],
)
def test_a_leader_with_followers_waits_for_them(view: LeaderAndIsr) -> None:
    leader = leader_alone(view)
    published(leader, "one")
    assert not leader.replica.commit_alone(1, 0)
    assert leader.replica.high_watermark == -1


def test_neither_a_follower_nor_a_leader_whose_lease_has_ended_commits() -> None:
    _, follower, _ = cluster()
    assert not follower.replica.commit_alone(0, 0)
    leader = leader_alone()
    published(leader, "one")
    leader.take(ev.Ticked(), LEASE_NS)
    assert leader.has(fx.Stop)
    assert not leader.replica.commit_alone(1, 0)
    assert leader.replica.high_watermark == -1


def test_a_log_with_a_damaged_range_commits_by_events() -> None:
    leader = leader_alone()
    published(leader, "one", "two")
    assert leader.replica.commit_alone(2, 0)
    leader.take(ev.RangeCorrupt(0, 1))
    published(leader, "three")
    assert not leader.replica.commit_alone(3, 0)
    leader.sync()
    assert leader.replica.high_watermark == 2


def test_a_leader_that_gives_its_leadership_back_commits_by_events() -> None:
    leader = leader_alone()
    published(leader, "one")
    leader.take(ev.StorageFailed("the disk is gone"))
    assert leader.has(fx.ReleaseLeadership)
    assert not leader.replica.commit_alone(1, 0)
    assert leader.replica.high_watermark == -1
