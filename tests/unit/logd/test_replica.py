from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.core.replica import HighWatermark, NodeId, Replica, Synced

ONE, TWO = NodeId("one"), NodeId("two")


def test_a_replica_set_of_one_commits_what_it_synced() -> None:
    replica = Replica(isr=[ONE], epoch=2, high_watermark=-1)
    assert replica.handle(Synced(ONE, 2, 5), 0) == [HighWatermark(4)]
    assert replica.handle(Synced(ONE, 2, 5), 0) == []
    assert replica.handle(Synced(ONE, 2, 3), 0) == []
    assert replica.high_watermark == 4


def test_another_epoch_or_an_outsider_changes_nothing() -> None:
    replica = Replica(isr=[ONE], epoch=2, high_watermark=-1)
    assert replica.handle(Synced(ONE, 1, 5), 0) == []
    assert replica.handle(Synced(TWO, 2, 5), 0) == []


@given(st.lists(st.tuples(st.sampled_from([ONE, TWO]), st.integers(0, 20))))
def test_the_high_watermark_is_the_least_of_the_isr_and_never_falls(
    events: list[tuple[NodeId, int]],
) -> None:
    replica = Replica(isr=[ONE, TWO], epoch=1, high_watermark=-1)
    best = {ONE: 0, TWO: 0}
    before = -1
    for node, upto in events:
        replica.handle(Synced(node, 1, upto), 0)
        best[node] = max(best[node], upto)
        assert replica.high_watermark == min(best.values()) - 1 >= before
        before = replica.high_watermark
