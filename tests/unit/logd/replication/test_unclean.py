"""What an unclean election changes for replicas that knew more to be committed."""

from dataclasses import replace

from penstock.logd.core.replication import effects as fx
from penstock.logd.core.replication import events as ev
from penstock.logd.core.replication.epochs import Epochs
from tests.support.replicas import VIEW, A, B, C, cluster, exchange

UNCLEAN = replace(VIEW, version=2, leader_epoch=2, leader=B, isr=frozenset({B}), unclean_epoch=2)


def test_who_leads_with_less_writes_down_that_no_more_is_committed() -> None:
    _, b, _ = cluster("x", "lost", "lost")
    b.start(keeps=1)
    b.said.clear()
    b.lead(UNCLEAN)
    saved = fx.SaveHighWatermark(0, 0)
    assert b.said.index(saved) < b.said.index(fx.BeginEpoch(2, 1))
    assert fx.Tell(fx.Finding.UNCLEAN_LOSS, 1, 3) in b.said


def test_who_gives_up_committed_records_writes_it_down_before_they_are_cut() -> None:
    a, b, c = cluster("x", "lost")
    b.start(keeps=1)
    b.lead(UNCLEAN)
    b.publish("y")
    c.lead(UNCLEAN)
    exchange(a, b, c)
    saved = fx.SaveHighWatermark(0, 1)
    assert c.said.index(saved) < c.said.index(fx.Truncate(1, 1))
    assert c.log == b.log == [(1, "x"), (2, "y")]


def test_a_log_that_lacks_committed_records_does_not_take_later_ones_for_them() -> None:
    """Its high watermark is of a history that an unclean election has ended."""
    _, b, c = cluster("x", "lost", "lost")
    for node in (b, c):
        node.start(keeps=1)
    c.said.clear()
    b.lead(UNCLEAN)
    b.publish("y")
    b.publish("z")
    c.lead(UNCLEAN)
    exchange(b, c)
    assert c.log == [(1, "x"), (2, "y"), (2, "z")]
    assert c.replica.high_watermark == b.replica.high_watermark == 0
    assert fx.Tell(fx.Finding.UNCLEAN_LOSS, 1, 3) in c.said


def test_an_empty_log_beyond_the_leaders_end_is_not_in_sync() -> None:
    """It was to begin where retention of a leader before had got to."""
    _, b, c = cluster("x")
    b.lead(replace(UNCLEAN, min_isr=1))
    b.said.clear()
    c.start(keeps=0)
    c.epochs = Epochs()
    c.start()
    c.take(ev.Viewed(UNCLEAN))
    fetch = c.has(fx.SendFetch)[-1]
    assert isinstance(fetch, fx.SendFetch)
    beyond = replace(fetch.fetch, offset=9, synced=9, last_epoch=0)
    b.take(ev.FetchCame(beyond))
    assert b.has(fx.ProposeIsr) == []
    assert {A, C}.isdisjoint(b.replica.view.isr if b.replica.view else ())
