"""A replica with a damaged range: whether it may lead, and what it may call committed."""

from msgspec.structs import replace

from penstock.logd.replication import events as ev
from penstock.logd.replication import events as fx
from penstock.logd.replication.events import LeaderAndIsr, Span
from penstock.logd.replication.replica import Idle
from tests.support.replicas import VIEW, A, B, C, Node, cluster, exchange

DAMAGED = "its log has a damaged range"
UNCERTAIN = "its log has a damaged range that may not be committed"
ALONE = replace(VIEW, version=2, isr=frozenset({A}), min_isr=1)


def alone(*values: str) -> tuple[Node, Node, Node]:
    """The first node leads and has committed; it is the only one in sync."""
    nodes = cluster(*values)
    for node in nodes:
        node.take(ev.LeaderAndIsrChanged(ALONE))
    nodes[0].said.clear()
    return nodes


def restarted(node: Node, view: LeaderAndIsr) -> None:
    """The node starts again with the last record damaged."""
    node.start()
    node.take(ev.RangeCorrupt(len(node.log) - 1, len(node.log)))
    node.said.clear()
    node.lead(view)


def test_the_only_one_in_sync_leads_on_with_a_hole_in_what_is_committed() -> None:
    a, b, c = alone("x", "y")
    a.take(ev.RangeCorrupt(0, 1))
    assert a.has(fx.ReleaseLeadership) == a.has(fx.Electable) == []
    assert a.has(fx.Tell) == [fx.Tell(fx.Finding.HOLE, 0, 1)]
    a.publish("z")
    exchange(a, b, c)
    assert a.replica.high_watermark == 2
    a.start()
    a.take(ev.RangeCorrupt(0, 1))
    a.lead(replace(ALONE, version=3, leader_epoch=2))
    assert a.has(fx.Lead) == [fx.Lead(2, 3)]
    a.said.clear()
    exchange(a, b, c)
    a.take(ev.RangeCame(B, 0, 1, (Span(0, 1, 1),)))
    assert a.has(fx.Patch) == [fx.Patch(0, 1, (Span(0, 1, 1),), 0)]


def test_it_resigns_when_another_is_in_sync_again() -> None:
    a, *_ = alone("x", "y")
    a.take(ev.RangeCorrupt(0, 1))
    a.take(ev.LeaderAndIsrChanged(replace(ALONE, version=3, isr=frozenset({A, B}))))
    assert a.has(fx.ReleaseLeadership) == [fx.ReleaseLeadership(1, DAMAGED)]
    assert a.has(fx.Electable) == [fx.Electable("hole", DAMAGED)]


def test_a_hole_above_what_is_committed_is_led_over_by_nobody() -> None:
    a, *_ = alone("x")
    a.take(ev.LeaderAndIsrChanged(replace(ALONE, version=3, min_isr=2)))
    a.publish("not committed")
    a.said.clear()
    a.take(ev.RangeCorrupt(1, 2))
    assert a.has(fx.ReleaseLeadership) == [fx.ReleaseLeadership(1, UNCERTAIN)]
    assert a.has(fx.HighWatermark) == []
    a.take(ev.LeaderAndIsrChanged(replace(ALONE, version=4, leader_epoch=2)))
    assert a.has(fx.Lead) == []
    assert isinstance(a.replica.state, Idle)
    a.take(ev.RangeCame(C, 1, 2, (Span(1, 2, 1),)))
    a.take(ev.RangePatched(1, 2, 0))
    assert a.has(fx.Electable)[-1] == fx.Electable()


def test_a_hole_is_filled_in_parts() -> None:
    a, *_ = alone("x", "y", "z")
    a.take(ev.RangeCorrupt(0, 3))
    first = (Span(0, 1, 1), Span(1, 2, 1))
    a.take(ev.RangeCame(B, 0, 2, first))
    assert a.has(fx.Patch) == [fx.Patch(0, 2, first, 0)]
    a.said.clear()
    a.take(ev.RangePatched(0, 2, 0))
    assert [(ask.first, ask.upto) for ask in asked(a)] == [(2, 3)]
    a.take(ev.RangeAsked(C, 0, 3))
    assert a.has(fx.SendRange) == [fx.SendRange(C, 0, 2)]  # what is sound before its own hole
    a.take(ev.RangeAsked(C, 2, 3))
    assert a.has(fx.SendRange)[-1] == fx.SendRange(C, 2, 2)


def asked(node: Node) -> list[fx.AskRange]:
    return [effect for effect in node.has(fx.AskRange) if isinstance(effect, fx.AskRange)]


def test_an_unclean_election_takes_the_hole_for_lost_and_keeps_what_lies_behind() -> None:
    a, *_ = cluster("x", "damaged", "z")
    a.high_watermark = 0
    a.start()
    a.take(ev.RangeCorrupt(1, 2))
    a.said.clear()
    a.lead(replace(ALONE, version=3, leader_epoch=2, unclean_epoch=2))
    assert a.has(fx.Tell) == [fx.Tell(fx.Finding.HOLE_TAKEN, 1, 2)]
    assert a.has(fx.Lead) == [fx.Lead(2, 3)]
    assert a.has(fx.InheritedAcks) == [fx.InheritedAcks(2, 3)]
    assert a.replica.high_watermark == 2


def test_who_was_elected_uncleanly_goes_on_with_a_hole_that_is_committed() -> None:
    a, *_ = cluster("x", "damaged")
    restarted(a, replace(ALONE, version=3, leader_epoch=2, unclean_epoch=2))
    assert a.has(fx.Tell) == []
    assert a.has(fx.Lead) == [fx.Lead(2, 2)]


def test_the_only_replica_leads_whatever_is_damaged() -> None:
    a, *_ = cluster("x", "damaged")
    a.high_watermark = -1
    restarted(a, replace(ALONE, version=3, leader_epoch=2, replicas=(A,)))
    assert a.has(fx.Lead) == [fx.Lead(2, 2)]
    assert a.replica.high_watermark == 1
