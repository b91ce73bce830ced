"""Failures as scripts: the numbers are those of the catalogue of what may happen to a stream."""

import pytest
from msgspec.structs import replace

from penstock.logd.replication import events as ev
from penstock.logd.replication import events as fx
from penstock.logd.replication.events import Diverged, Fetch, Frames, LeaderAndIsr, NodeId, Span
from penstock.logd.replication.leader import Leader, Stage
from penstock.logd.replication.log_state import Epochs
from penstock.logd.replication.replica import Failed, Idle
from tests.support.replicas import LEASE_NS, VIEW, A, B, C, Node, cluster, exchange

LAG_NS = 1_500_000_000


def elect(leader: NodeId, epoch: int, **changes: object) -> LeaderAndIsr:
    return replace(VIEW, leader=leader, leader_epoch=epoch, version=epoch, **changes)


def test_what_all_have_is_committed_and_known_to_all() -> None:
    nodes = cluster("x", "y")
    assert [node.replica.high_watermark for node in nodes] == [1, 1, 1]
    assert nodes[0].log == nodes[1].log == nodes[2].log == [(1, "x"), (1, "y")]


def test_a_record_that_only_the_dead_leader_had_is_cut_when_it_returns() -> None:
    """2: kill -9 right after the local append."""
    a, b, c = cluster("x")
    a.publish("never acked")
    assert a.replica.high_watermark == 0
    a.start()
    second = elect(B, 2)
    for node in (b, c, a):
        node.lead(second)
    b.publish("y")
    exchange(a, b, c)
    assert a.log == b.log == c.log == [(1, "x"), (2, "y")]
    assert b.replica.high_watermark == 1


def test_a_new_leader_keeps_what_was_committed_behind_its_back_and_acks_it() -> None:
    """1, 3: kill -9 after the high watermark rose, before followers learn of it (KIP-101)."""
    a, b, c = Node(A), Node(B), Node(C)
    for node in (a, b, c):
        node.lead(VIEW)
    exchange(a, b, c)
    a.publish("x")
    exchange(a, b, c)
    b.high_watermark = c.high_watermark = -1
    b.start()
    c.start()
    second = elect(B, 2)
    b.lead(second)
    c.lead(second)
    assert b.has(fx.InheritedAcks) == [fx.InheritedAcks(0, 1)]
    assert b.replica.high_watermark == -1  # nobody has agreed under this epoch yet
    exchange(b, c)
    assert b.replica.high_watermark == -1  # the dead one still counts
    b.take(ev.LeaderAndIsrChanged(replace(second, version=3, isr=frozenset({B, C}))))
    assert b.replica.high_watermark == 0
    assert b.log == c.log == [(1, "x")]


def test_two_that_lost_unsynced_tails_agree_in_whatever_order_they_return() -> None:
    """4: both restart in opposite orders (KIP-101, the second case)."""
    a, b, c = cluster("x")
    for node in (a, b, c):
        node.holds_syncs = True
    a.publish("lost here")
    exchange(a, b, c)
    a.start(keeps=1)
    b.start(keeps=1)
    for node in (b, c, a):
        node.holds_syncs = False
        node.lead(elect(B, 2))
    b.publish("y")
    exchange(a, b, c)
    assert a.log == b.log == c.log == [(1, "x"), (2, "y")]


def test_a_follower_that_missed_an_epoch_is_cut_where_the_logs_part() -> None:
    """5: two fast failovers (KIP-279)."""
    a, b, c = cluster("x")
    a.publish("a only")
    a.publish("a only")
    b.lead(elect(B, 2))
    b.publish("b only")
    c.lead(elect(C, 3))
    c.publish("c")
    third = elect(C, 3)
    a.take(ev.LeaderAndIsrChanged(third))
    b.take(ev.LeaderAndIsrChanged(third))
    exchange(a, b, c)
    assert a.log == b.log == c.log == [(1, "x"), (3, "c")]


def test_a_leader_that_slept_through_its_lease_acks_nothing() -> None:
    """6, 7: SIGSTOP, or a partition from the controller."""
    a, b, c = cluster("x")
    a.holds_syncs = True
    a.publish("late")
    a.said.clear()
    a.sync(LEASE_NS)
    assert a.said == [fx.Stop(fx.StopReason.LEASE_ENDED)]
    exchange(a, b, c, now_ns=LEASE_NS)
    assert a.replica.high_watermark == 0
    a.take(ev.LeaseRenewed(3 * LEASE_NS), 2 * LEASE_NS)  # nobody else was elected
    assert a.has(fx.Lead)[-1] == fx.Lead(1, 2)
    assert a.replica.high_watermark == 1


def test_a_deposed_leader_finishes_its_append_before_it_cuts() -> None:
    """6: the hole that a wait for nothing leaves."""
    a, b, _ = cluster("x")
    a.take(ev.Submitted(2))
    a.said.clear()
    a.take(ev.LeaderAndIsrChanged(elect(B, 2)))
    assert a.said == [fx.Stop(fx.StopReason.DEPOSED)]
    b.lead(elect(B, 2))
    b.publish("y")
    a.write([(1, "running")])
    assert a.has(fx.SendFetch)
    exchange(a, b)
    assert a.log == b.log


def test_a_fetch_of_a_newer_epoch_deposes_and_one_of_an_older_counts_nothing() -> None:
    """21: both old and new leader take messages."""
    a, b, _ = cluster("x")
    a.said.clear()
    older = Fetch(
        node=B,
        boot="b1",
        number=99,
        incarnation="i",
        leader_epoch=0,
        offset=1,
        last_epoch=1,
        synced=1,
    )
    a.publish("y")
    a.take(ev.FetchCame(replace(older, offset=2, synced=2)))
    assert a.replica.high_watermark == 0
    a.take(ev.FetchCame(replace(older, leader_epoch=2)))
    assert fx.Stop(fx.StopReason.DEPOSED) in a.said
    assert isinstance(a.replica.state, Leader)
    assert a.replica.state.stage is Stage.RESIGNED
    a.take(ev.FetchCame(replace(older, incarnation="another")))
    assert b.replica.high_watermark == 0


def test_a_slow_follower_counts_until_the_controller_has_agreed() -> None:
    """9: a stuck disk."""
    a, b, c = cluster("x")
    c.holds_syncs = True
    a.publish("y")
    exchange(a, b, c)
    assert a.replica.next_deadline_ns(0) == LEASE_NS
    a.take(ev.LeaseRenewed(9 * LAG_NS), 1)
    assert a.replica.next_deadline_ns(1) == LAG_NS
    a.take(ev.Ticked(), LAG_NS)
    assert a.has(fx.ProposeIsr) == [fx.ProposeIsr(1, "i", 1, 1, frozenset({A, B}))]
    assert a.replica.high_watermark == 0
    a.take(ev.IsrAnswered(1, 1, ev.Outcome.COMMITTED), LAG_NS)
    assert a.replica.high_watermark == 0
    a.take(ev.LeaderAndIsrChanged(replace(VIEW, version=2, isr=frozenset({A, B}))), LAG_NS)
    assert a.replica.high_watermark == 1


def test_who_is_to_enter_counts_until_a_later_version_says_otherwise() -> None:
    """10: the leader is killed at the instant of the change; a refusal ends nothing."""
    view = replace(VIEW, isr=frozenset({A, B}))
    a, b, c = cluster("x", view=view)
    proposal = fx.ProposeIsr(1, "i", 1, 1, frozenset({A, B, C}))
    assert a.has(fx.ProposeIsr) == [proposal]
    a.take(ev.IsrAnswered(1, 1, ev.Outcome.REFUSED))
    c.holds_syncs = True
    a.publish("y")
    exchange(a, b, c)
    assert a.replica.high_watermark == 0
    a.take(ev.NodeLost(C), LAG_NS // 3)
    assert a.has(fx.ProposeIsr)[-1] == replace(proposal, number=2, isr=frozenset({A, B}))
    a.take(ev.LeaderAndIsrChanged(replace(view, version=2)), LAG_NS // 3)
    assert a.replica.high_watermark == 1


def test_a_follower_enters_only_with_what_the_epoch_began_with() -> None:
    """10: a new leader's high watermark is lower than the last one's (KAFKA-7128)."""
    view = elect(B, 2, isr=frozenset({A, B}))
    b = Node(B, log=[(1, "x"), (1, "acked")], epochs=Epochs([(1, 0)]))
    c = Node(C, log=[(1, "x")], epochs=Epochs([(1, 0)]))
    b.lead(view)
    c.take(ev.LeaderAndIsrChanged(view))
    fetch = c.sent[0]
    assert isinstance(fetch, fx.SendFetch)
    b.take(ev.FetchCame(fetch.fetch))
    assert b.has(fx.ProposeIsr) == []
    exchange(b, c)
    assert b.has(fx.ProposeIsr) == [fx.ProposeIsr(1, "i", 2, 2, frozenset({A, B, C}))]


def test_below_the_minimum_nothing_is_taken_or_committed_and_the_isr_is_kept() -> None:
    """11: the publisher is told; recovery commits."""
    a, b, c = cluster("x")
    a.take(ev.NodeLost(C))
    a.take(ev.LeaderAndIsrChanged(replace(VIEW, version=2, isr=frozenset({A, B}))))
    a.said.clear()
    a.take(ev.NodeLost(B))
    assert a.said == [fx.Refuse(fx.Refusing.NOT_ENOUGH_REPLICAS)]
    a.publish("under way")
    assert a.replica.high_watermark == 0
    b.take(ev.AnswerLost())
    exchange(a, b, c)
    assert a.has(fx.Refuse)[-1] == fx.Refuse(fx.Refusing.NOTHING)
    assert a.replica.high_watermark == 1


def test_a_read_only_stream_takes_nothing_and_goes_on_replicating() -> None:
    a, *_ = cluster("x")
    a.take(ev.LeaderAndIsrChanged(replace(VIEW, version=2, read_only=True)))
    assert a.has(fx.Refuse) == [fx.Refuse(fx.Refusing.READ_ONLY)]


def test_committed_records_are_given_up_only_for_an_unclean_election_that_was_told() -> None:
    """12: all members are down but a stale replica."""
    a, b, c = cluster("x", "y")
    c.high_watermark = 0
    c.start(keeps=1)
    told = elect(C, 2, isr=frozenset({C}), min_isr=1)
    c.lead(replace(told, unclean_epoch=2))
    c.publish("z")
    a.take(ev.LeaderAndIsrChanged(told))
    exchange(a, c)
    assert fx.Tell(fx.Finding.DIVERGED, 1, 2) in a.said
    assert a.log == [(1, "x"), (1, "y")]
    b.take(ev.LeaderAndIsrChanged(replace(told, unclean_epoch=2)))
    exchange(b, c)
    assert fx.Tell(fx.Finding.UNCLEAN_LOSS, 1, 2) in b.said
    assert b.log == c.log == [(1, "x"), (2, "z")]


def test_who_is_not_in_the_isr_or_ends_too_low_resigns() -> None:
    """12, 13: an election that raced with a change of the ISR."""
    node = Node(B)
    node.lead(elect(B, 2, isr=frozenset({A})))
    assert node.has(fx.ReleaseLeadership) == [fx.ReleaseLeadership(2, "it is not in the ISR")]
    assert isinstance(node.replica.state, Idle)
    short = Node(B, log=[(1, "x")], epochs=Epochs([(1, 0)]), high_watermark=3)
    short.lead(elect(B, 2))
    assert short.has(fx.ReleaseLeadership) == [
        fx.ReleaseLeadership(2, "its log ends below what was committed")
    ]
    assert fx.Tell(fx.Finding.COMMITTED_LOST, 1, 4) in short.said


def test_a_process_never_goes_on_with_the_epoch_of_the_one_before() -> None:
    a, *_ = cluster("x")
    a.start(keeps=0)
    a.said.clear()
    a.lead(VIEW)
    assert a.has(fx.Lead) == []
    assert a.has(fx.ReleaseLeadership) == [
        fx.ReleaseLeadership(1, "an earlier process of this node began this epoch")
    ]


def test_a_damaged_range_is_fetched_from_a_peer_and_its_holder_not_elected() -> None:
    """16: a bit flip in the middle of a segment."""
    a, b, c = cluster("x", "y", "z")
    b.take(ev.RangeCorrupt(1, 2))
    assert b.has(fx.AskRange) == [fx.AskRange(A, 1, 2)]
    assert b.has(fx.Electable) == [fx.Electable("hole", "its log has a damaged range")]
    exchange(a, b, c)
    assert a.has(fx.ProposeIsr) == [fx.ProposeIsr(1, "i", 1, 1, frozenset({A, C}))]
    a.take(ev.RangeAsked(B, 1, 2))
    assert a.said[-1] == fx.SendRange(B, 1, 2)
    b.take(ev.RangeCame(A, 1, 2, (Span(1, 2, 7),)))
    assert b.has(fx.Patch) == []  # a record of another epoch is another record
    b.take(ev.RangeCame(A, 1, 2, (Span(1, 2, 1),)))
    assert b.has(fx.Patch) == [fx.Patch(1, 2, (Span(1, 2, 1),), 0)]
    b.take(ev.RangePatched(1, 2, 0))
    assert b.has(fx.Electable)[-1] == fx.Electable()


@pytest.mark.parametrize("reason", ["ENOSPC", "EIO in fsync"])
def test_a_leader_whose_storage_fails_steps_down(reason: str) -> None:
    """18, 19: no phantom offset, no second try."""
    a, *_ = cluster("x")
    a.take(ev.Submitted(2))
    a.said.clear()
    a.take(ev.StorageFailed(reason))
    assert a.said == [
        fx.Stop(fx.StopReason.STORAGE_FAILED),
        fx.ReleaseLeadership(1, reason),
        fx.Electable("failed", reason),
    ]
    assert isinstance(a.replica.state, Failed)
    a.take(ev.Synced(2))
    assert a.replica.high_watermark == 0


def test_a_follower_behind_the_leaders_retention_begins_where_it_begins() -> None:
    a, b, c = cluster("x", "y", "z")
    a.take(ev.LogStartMoved(2))
    b.start(keeps=0)
    b.epochs = Epochs()
    b.high_watermark = -1
    b.start()
    b.take(ev.LeaderAndIsrChanged(VIEW))
    exchange(a, b, c)
    assert fx.Tell(fx.Finding.SKIPPED, 0, 2) in b.said
    assert b.has(fx.Reset) == [fx.Reset(2, 1)]
    c.take(ev.AnswerLost())
    exchange(a, c)
    assert c.has(fx.DeleteBefore) == [fx.DeleteBefore(2)]


def test_a_follower_goes_back_to_where_a_compacted_frame_begins() -> None:
    _, b, _ = cluster("x", "y", "z")
    state = b.replica.log
    fetch = [effect for effect in b.said if isinstance(effect, fx.SendFetch) and effect.fetch.wants]
    answer = Frames(
        boot="b1",
        number=fetch[-1].fetch.number,
        incarnation="i",
        leader_epoch=1,
        offset=3,
        upto=9,
        high_watermark=8,
        log_start=0,
    )
    b.take(ev.AnswerCame(answer, (Span(1, 9, 1),)))
    assert b.has(fx.Truncate) == [fx.Truncate(1, 1)]
    assert (state.written, b.replica.high_watermark) == (1, 0)
    assert b.has(fx.Electable)[-1] != fx.Electable()


def test_an_observer_is_fed_and_never_counts() -> None:
    view = replace(VIEW, replicas=(A, B), isr=frozenset({A, B}), observers=frozenset({C}))
    a, b, c = cluster("x", view=view)
    c.holds_syncs = True
    a.publish("y")
    exchange(a, b, c)
    assert a.replica.high_watermark == 1
    assert a.has(fx.ProposeIsr) == []
    assert len(c.log) == 2


def test_a_leader_acks_by_its_own_policy_before_all_have_it() -> None:
    """20: what is acked early is told apart from what is committed."""
    a, *_ = cluster("x")
    a.said.clear()
    a.publish("y")
    assert a.said == [fx.LeaderDurable(2)]


def test_a_leader_that_wrote_nothing_forgets_its_epoch_when_it_follows() -> None:
    """5: what it fetches next at the same offset may be of a smaller epoch."""
    a, b, c = cluster("x")
    a.publish("a only")
    b.lead(elect(B, 2))
    third = elect(A, 3)
    for node in (a, b, c):
        node.lead(third)
    exchange(a, b, c)
    assert b.log == a.log == [(1, "x"), (1, "a only")]
    assert len(b.has(fx.AppendFetched)) == 2  # and not once more


def test_a_sync_of_what_has_been_cut_since_is_not_believed() -> None:
    a, b, c = cluster("x")
    a.publish("a only")
    for node in (b, c, a):
        node.lead(elect(B, 2))
    exchange(a, b, c)
    a.holds_syncs = True
    b.publish("y")
    exchange(a, b, c)
    a.take(ev.Synced(2, cuts=0))
    assert a.replica.log.synced == 1


def test_a_follower_begins_anew_where_the_leaders_log_begins_with_a_later_epoch() -> None:
    """No epoch tells whether they agreed before: that is not divergence."""
    _, b, _ = cluster("x", "y")
    b.take(ev.LeaderAndIsrChanged(elect(A, 5)))
    answer = Diverged(
        boot="b1",
        number=[effect.fetch.number for effect in b.said if isinstance(effect, fx.SendFetch)][-1],
        incarnation="i",
        leader_epoch=5,
        epoch=0,
        end_offset=2,
        log_start=2,
    )
    b.take(ev.AnswerCame(answer))
    assert b.has(fx.Reset) == [fx.Reset(2, 1)]
    assert fx.Finding.DIVERGED not in [tell.finding for tell in b.said if isinstance(tell, fx.Tell)]
