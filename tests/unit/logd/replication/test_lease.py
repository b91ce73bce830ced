"""A leader whose lease is renewed without an event of its own, as its node does."""

from msgspec.structs import replace

from penstock.logd.replication import events as ev
from penstock.logd.replication import events as fx
from penstock.logd.replication.events import LeaderAndIsr
from penstock.logd.replication.replica import Replica
from tests.support.replicas import LEASE_NS, VIEW, A, Node, cluster

HALF_NS = LEASE_NS // 2


def test_a_renewed_leader_leads_as_long_as_the_last_lease_says() -> None:
    leader, *_ = cluster()
    assert leader.replica.renew(LEASE_NS + HALF_NS)
    leader.take(ev.Ticked(), LEASE_NS)
    assert not leader.has(fx.Stop)
    leader.take(ev.Ticked(), LEASE_NS + HALF_NS)
    assert leader.has(fx.Stop) == [fx.Stop(fx.StopReason.LEASE_ENDED)]


def test_a_lease_that_was_renewed_long_ago_is_told_with_the_next_event() -> None:
    leader, *_ = cluster()
    assert leader.replica.renew(9 * LEASE_NS)
    leader.take(ev.Ticked(), 8 * LEASE_NS)
    assert not leader.has(fx.Stop)


def test_a_lease_that_has_ended_is_begun_by_an_event_only() -> None:
    leader, *_ = cluster()
    leader.take(ev.Ticked(), LEASE_NS)
    assert leader.has(fx.Stop)
    assert not leader.replica.renew(3 * LEASE_NS)
    leader.take(ev.LeaseRenewed(3 * LEASE_NS), LEASE_NS)
    assert len(leader.has(fx.Lead)) == 2


def test_a_lease_told_earlier_does_not_shorten_a_later_one() -> None:
    leader, *_ = cluster()
    assert leader.replica.renew(HALF_NS)
    leader.take(ev.Ticked(), HALF_NS)
    assert not leader.has(fx.Stop)


def test_who_does_not_lead_takes_the_lease_with_the_event() -> None:
    _, follower, _ = cluster()
    assert not follower.replica.renew(2 * LEASE_NS)


def test_the_next_epoch_of_the_same_leader_begins_under_the_renewed_lease() -> None:
    leader, *_ = cluster()
    assert leader.replica.renew(3 * LEASE_NS)
    view = LeaderAndIsr(
        incarnation="i",
        version=2,
        leader_epoch=2,
        leader=leader.name,
        isr=VIEW.isr,
        replicas=VIEW.replicas,
        min_isr=2,
    )
    leader.take(ev.LeaderAndIsrChanged(view), 2 * LEASE_NS - 1)
    assert leader.has(fx.Lead)[-1] == fx.Lead(2, 0)


def test_without_the_lease_an_idle_leader_has_nothing_to_wake_for() -> None:
    leader, *_ = cluster("one")
    assert leader.replica.next_deadline_ns(1) == LEASE_NS
    assert leader.replica.next_deadline_ns(1, lease=False) is None


def test_an_epoch_that_was_given_back_is_not_led_by_a_log_that_was_opened_again() -> None:
    """Another node may lead by now, while this one's lease still holds."""
    node = Node(A)
    node.replica = Replica(A, "i", node.replica.log, boot="a2", resigned_epoch=1)
    node.lead(VIEW)
    assert not node.has(fx.Lead)
    assert [
        effect.epoch
        for effect in node.has(fx.ReleaseLeadership)
        if isinstance(effect, fx.ReleaseLeadership)
    ] == [1]
    node.lead(replace(VIEW, version=2, leader_epoch=2))
    assert node.has(fx.Lead) == [fx.Lead(2, 0)]
