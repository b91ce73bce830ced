"""A replica that the controller took out of the ISR comes back, with news or without."""

from dataclasses import replace

from penstock.logd.core.node import NodeId
from penstock.logd.core.replication import effects as fx
from penstock.logd.core.replication import events as ev
from penstock.logd.core.replication.settings import ReplicationSettings
from tests.support.replicas import VIEW, A, B, C, Node, cluster

LAG_NS = ReplicationSettings().replica_lag_ns
RETRY_NS = ReplicationSettings().retry_ns
WITHOUT_C = replace(VIEW, version=2, isr=frozenset({A, B}))


def test_one_that_lives_and_has_nothing_to_fetch_is_proposed_again_after_a_time() -> None:
    a, *_ = cluster("x")
    a.take(ev.LeaseRenewed(10 * LAG_NS), 1)
    a.take(ev.NodeLost(C), 1)
    a.take(ev.Viewed(WITHOUT_C), 1)
    due_ns = a.replica.next_deadline_ns(2)
    assert due_ns == 1 + LAG_NS
    a.said.clear()
    a.take(ev.Ticked(), due_ns - 1)
    assert proposed(a) == []
    a.take(ev.Ticked(), due_ns)
    assert proposed(a) == [{A, B, C}]


def test_an_addition_that_is_refused_is_taken_back_so_that_nothing_waits_for_it() -> None:
    a, *_ = cluster("x", view=replace(VIEW, isr=frozenset({A, B})))
    assert proposed(a) == [{A, B, C}]
    a.take(ev.IsrAnswered(1, 1, ev.Outcome.REFUSED), 1)
    a.take(ev.Ticked(), 1 + RETRY_NS)
    assert proposed(a) == [{A, B, C}, {A, B}]


def proposed(node: Node) -> list[frozenset[NodeId]]:
    """The ISRs that a leader has proposed."""
    return [effect.isr for effect in node.said if isinstance(effect, fx.ProposeIsr)]
