"""A replica that the controller took out of the ISR comes back, with news or without."""

import pytest
from msgspec.structs import replace

from penstock.logd.intake.dedup import DedupMark
from penstock.logd.replication import events as ev
from penstock.logd.replication import events as fx
from penstock.logd.replication.events import (
    Fetch,
    Frames,
    NodeId,
    Refusal,
    Refused,
    ReplicationSettings,
)
from tests.support.replicas import VIEW, A, B, C, Node, cluster

LAG_NS = ReplicationSettings().replica_lag_ns
RETRY_NS = ReplicationSettings().retry_ns
WITHOUT_C = replace(VIEW, version=2, isr=frozenset({A, B}))


def test_one_that_lives_and_has_nothing_to_fetch_is_proposed_again_after_a_time() -> None:
    a, *_ = cluster("x")
    a.take(ev.LeaseRenewed(10 * LAG_NS), 1)
    a.take(ev.NodeLost(C), 1)
    a.take(ev.LeaderAndIsrChanged(WITHOUT_C), 1)
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


@pytest.mark.parametrize("seen", [True, False])
def test_what_a_removed_replica_said_is_not_taken_for_the_word_of_its_successor(
    *, seen: bool
) -> None:
    """Its log was deleted, and it was added again; its last fetch comes after that, or before."""
    a, *_ = cluster("x")
    late = Fetch(
        node=C, boot="first", number=99, incarnation="i", version=1,
        leader_epoch=1, offset=1, last_epoch=1, synced=1,
    )  # fmt: skip
    if seen:
        a.take(ev.LeaderAndIsrChanged(replace(WITHOUT_C, replicas=(A, B))), 1)
    a.said.clear()
    a.sent.clear()
    a.take(
        ev.LeaderAndIsrChanged(replace(VIEW, version=4, isr=frozenset({A, B}), joined={C: 4})), 2
    )
    a.take(ev.FetchCame(late), 3)
    (refused,) = [one.answer for one in a.sent if isinstance(one, fx.SendAnswer)]
    assert isinstance(refused, Refused)
    assert refused.reason is Refusal.NOT_REPLICA
    empty = replace(late, boot="second", number=1, version=4, offset=0, last_epoch=0, synced=0)
    a.take(ev.FetchCame(empty), 4)
    a.take(ev.Ticked(), 4 + LAG_NS)
    assert proposed(a) == []
    a.take(ev.LeaseRenewed(10 * LAG_NS), 5 + LAG_NS)
    a.take(ev.FetchCame(replace(late, boot="second", number=2, version=4)), 5 + LAG_NS)
    assert proposed(a) == [{A, B, C}]


MARK = DedupMark(1, 7, saved=True)


def fetch_of(node: NodeId, number: int, *, wants: bool = True) -> Fetch:
    return Fetch(
        node=node, boot="later", number=number, incarnation="i", version=1, leader_epoch=1,
        offset=1, last_epoch=1, synced=1, wants=wants, known=0, dedup=MARK,
    )  # fmt: skip


def differs(node: Node) -> list[bool]:
    """What followers were sent of the dedup state."""
    answers = [effect.answer for effect in node.said if isinstance(effect, fx.SendAnswer)]
    return [answer.dedup_differs for answer in answers if isinstance(answer, Frames)]


def test_nobody_is_in_sync_who_does_not_remember_what_the_leader_does() -> None:
    a, *_ = cluster("x", view=replace(VIEW, isr=frozenset({A, B})))
    a.said.clear()
    a.take(ev.FetchCame(fetch_of(C, 1), dedup_agrees=False), 1)
    a.take(
        ev.LeaderAndIsrChanged(replace(VIEW, version=3, isr=frozenset({A, B}))), 1
    )  # ends the addition
    a.take(ev.FetchCame(fetch_of(C, 2), dedup_agrees=None), 2)
    a.take(ev.Ticked(), 2 + RETRY_NS)
    assert proposed(a) == []
    assert differs(a) == [True, False]
    a.said.clear()
    a.take(ev.FetchCame(fetch_of(C, 3, wants=False), dedup_agrees=True), 3 + RETRY_NS)
    assert proposed(a) == [{A, B, C}]


def test_a_member_that_has_forgotten_leaves_unless_it_is_needed() -> None:
    a, *_ = cluster("x")
    a.said.clear()
    a.take(ev.FetchCame(fetch_of(B, 1), dedup_agrees=False), 1)
    assert proposed(a) == [{A, C}]
    a.take(ev.LeaderAndIsrChanged(replace(VIEW, version=2, isr=frozenset({A, C}))), 2)
    a.said.clear()
    a.take(ev.FetchCame(fetch_of(C, 1), dedup_agrees=False), 3)
    assert proposed(a) == [], "two are the minimum"
    assert differs(a) == [True]


def test_a_report_that_ends_a_difference_is_answered() -> None:
    a, *_ = cluster("x")
    a.take(ev.FetchCame(fetch_of(B, 1), dedup_agrees=False), 1)
    a.said.clear()
    a.take(ev.FetchCame(fetch_of(B, 2, wants=False), dedup_agrees=False), 2)
    assert differs(a) == []
    a.take(ev.FetchCame(fetch_of(B, 3, wants=False), dedup_agrees=True), 3)
    assert differs(a) == [False]


def test_a_follower_asks_for_dedup_state_until_it_does_not_differ() -> None:
    _, b, _ = cluster("x")
    fetches = [effect.fetch for effect in b.said if isinstance(effect, fx.SendFetch)]
    wish = [fetch for fetch in fetches if fetch.wants][-1]
    answer = Frames(
        boot=wish.boot, number=wish.number, incarnation="i", leader_epoch=1, offset=1, upto=1,
        high_watermark=0, log_start=0, dedup_differs=True,
    )  # fmt: skip
    b.said.clear()
    b.take(ev.AnswerCame(answer), 1)
    b.take(ev.AnswerCame(answer), 2)
    assert b.has(fx.AskDedup) == [fx.AskDedup(A)]
    due_ns = b.replica.next_deadline_ns(3)
    assert due_ns == 1 + ReplicationSettings().dedup_retry_ns
    b.take(ev.Ticked(), due_ns)
    assert len(b.has(fx.AskDedup)) == 2
    b.said.clear()
    b.take(ev.DedupSaved(), due_ns + 1)
    assert [one.fetch.wants for one in b.said if isinstance(one, fx.SendFetch)] == [False]
    b.take(ev.AnswerCame(replace(answer, dedup_differs=False)), due_ns + 2)
    assert b.replica.next_deadline_ns(due_ns + 3) is None


def proposed(node: Node) -> list[frozenset[NodeId]]:
    """The ISRs that a leader has proposed."""
    return [effect.isr for effect in node.said if isinstance(effect, fx.ProposeIsr)]
