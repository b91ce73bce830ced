"""Shortcuts of a leader's usual events say the same as the longer ways do."""

from random import Random

import pytest
from msgspec.structs import replace

from penstock.logd.replication import events as ev
from penstock.logd.replication import events as fx
from penstock.logd.replication.events import NodeId, ReplicationSettings
from penstock.logd.replication.leader import Isr, Peer
from penstock.logd.replication.log_state import Epochs, LogState
from tests.support.replicas import LEASE_NS, VIEW, A, B, C, Node, cluster, exchange

LAG_NS = ReplicationSettings().replica_lag_ns


def any_peer(rng: Random, now_ns: int) -> Peer:
    return Peer(
        agreed=rng.random() < 0.9,
        synced=rng.randrange(8, 12),
        whole=rng.random() < 0.9,
        lost=rng.random() < 0.1,
        behind_ns=rng.choice([None, now_ns, now_ns - LAG_NS]),
        dedup_agrees=rng.choice([True, True, True, False, None]),
    )


@pytest.mark.parametrize("seed", range(500))
def test_the_isr_is_proposed_exactly_if_another_one_is_wanted(seed: int) -> None:
    rng, now_ns = Random(seed), 10 * LAG_NS
    log = LogState.opened(start=0, end=10, epochs=Epochs(), high_watermark=8)
    members = frozenset({A, *(node for node in (B, C) if rng.random() < 0.7)})
    view = replace(VIEW, isr=members, min_isr=rng.choice([1, 2]))
    if rng.random() < 0.2:
        view = replace(view, observers=frozenset({C}), isr=members - {C})
    met = [node for node in (B, C) if rng.random() < 0.95]
    peers: dict[NodeId, Peer] = {node: any_peer(rng, now_ns) for node in met}
    isr = Isr(A, view, ReplicationSettings(), epoch_start=9)
    wanted = isr.target(peers, log, now_ns)
    proposal = isr.propose(peers, log, now_ns)
    assert (None if proposal is None else proposal.isr) == (None if wanted == view.isr else wanted)


def leader_with_followers() -> tuple[Node, Node, Node]:
    nodes = cluster("one")
    exchange(*nodes)
    nodes[0].said.clear()
    return nodes


def test_what_is_written_is_noted_as_an_event_would_note_it() -> None:
    (by_event, *_), (noted, *_) = leader_with_followers(), leader_with_followers()
    by_event.take(ev.Submitted(2), 5)
    by_event.take(ev.Written(2, 0), 5)
    noted.replica.note_submitted(2)
    assert noted.replica.note_written(2, 0, 5)
    assert by_event.said == noted.said == []
    for node in (by_event, noted):
        assert node.replica.log.written == node.replica.log.submitted == 2
        answer = node.replica.answer_for(B)
        assert isinstance(answer, fx.Frames)
        assert (answer.offset, answer.upto) == (1, 2)
    late_ns = by_event.replica.next_deadline_ns(5, lease=False)
    assert late_ns == 5 + LAG_NS, "a follower that never fetches it is late then"
    assert noted.replica.next_deadline_ns(5, lease=False) == late_ns


def test_only_a_leader_that_leads_notes_what_is_written() -> None:
    leader, follower, _ = leader_with_followers()
    assert not follower.replica.note_written(1, 0, 0)
    leader.take(ev.RangeCorrupt(0, 1))
    assert not leader.replica.note_written(1, 0, 0), "its log has a damaged range"
    fenced, *_ = leader_with_followers()
    fenced.take(ev.Ticked(), LEASE_NS)
    assert fenced.has(fx.Stop)
    assert not fenced.replica.note_written(1, 0, LEASE_NS)
