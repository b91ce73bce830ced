"""What an unclean election changes for replicas that knew more to be committed."""

from msgspec.structs import replace

from penstock.logd.replication import events as ev
from penstock.logd.replication import events as fx
from penstock.logd.replication.events import Frames, OutOfRange
from penstock.logd.replication.log_state import Epochs, LogState
from penstock.logd.replication.replica import Replica
from tests.support.replicas import VIEW, B, C, Node, cluster, exchange

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
    c.take(ev.LeaderAndIsrChanged(UNCLEAN))
    fetch = c.has(fx.SendFetch)[-1]
    assert isinstance(fetch, fx.SendFetch)
    beyond = replace(fetch.fetch, offset=9, synced=9, last_epoch=0)
    b.take(ev.FetchCame(beyond))
    assert b.has(fx.ProposeIsr) == []
    b.take(ev.FetchCame(replace(beyond, number=beyond.number + 1, offset=1, synced=1)))
    assert b.has(fx.ProposeIsr) == []  # nor is one that begins at the end
    answers = [effect.answer for effect in b.said if isinstance(effect, fx.SendAnswer)]
    assert [type(answer) for answer in answers] == [OutOfRange, OutOfRange]


def test_an_empty_log_agrees_where_retention_took_what_was_committed() -> None:
    _, b, c = cluster("x", "y")
    b.lead(replace(UNCLEAN, min_isr=1, unclean_epoch=0))
    state = LogState.opened(start=1, end=1, epochs=Epochs(), high_watermark=0, agreed_epoch=1)
    c.replica = Replica(C, "i", state, boot="c2")
    c.said.clear()
    c.take(ev.LeaderAndIsrChanged(replace(UNCLEAN, unclean_epoch=0)))
    fetch = c.has(fx.SendFetch)[-1]
    assert isinstance(fetch, fx.SendFetch)
    b.said.clear()
    b.take(ev.FetchCame(fetch.fetch))
    (answer,) = [effect.answer for effect in b.said if isinstance(effect, fx.SendAnswer)]
    assert isinstance(answer, Frames)
    assert answer.offset == 1


def test_an_empty_log_begins_anew_where_the_leaders_does_and_has_nothing_to_give_up() -> None:
    node = Node(C)
    state = LogState.opened(start=5, end=5, epochs=Epochs(), high_watermark=4, agreed_epoch=1)
    node.replica = Replica(C, "i", state, boot="c2")
    node.take(ev.LeaderAndIsrChanged(UNCLEAN))
    fetch = node.has(fx.SendFetch)[-1]
    assert isinstance(fetch, fx.SendFetch)
    answer = OutOfRange(
        boot="c2", number=fetch.fetch.number, incarnation="i", leader_epoch=2, log_start=1
    )
    node.said.clear()
    node.take(ev.AnswerCame(answer))
    assert node.said == [fx.SaveHighWatermark(0, 1), fx.Reset(1, 1)]
    node.take(ev.WasReset(1, 1))
    assert (node.replica.log.start, node.replica.high_watermark) == (1, 0)
