"""What a member of a group has in hand: nothing is given twice, passed over, or done unasked."""

import pytest

from penstock.logd.client.group_consumer import PartitionConsumer, RecordBuffer
from penstock.logd.format.batch import Record
from penstock.logd.format.rows import batch_records
from penstock.logd.metadata.records import GroupPartition
from tests.support.frames import make_batch_frame

KEPT = [0, 2, 3, 7]
READING = PartitionConsumer(GroupPartition("s", "i", 0), 5)


def full() -> RecordBuffer:
    header, _, batch = make_batch_frame(10, [Record("t", b"", n) for n in range(8)], kept=KEPT)
    hand = RecordBuffer()
    hand.put(READING, (header, batch))
    return hand


def one(hand: RecordBuffer) -> int | None:
    found = hand.record()
    return None if found is None else found.offset


@pytest.mark.parametrize("singles", range(5))
def test_records_and_then_the_rest_are_all_there_is(singles: int) -> None:
    hand = full()
    given = [one(hand) for _ in range(singles)]
    rest = hand.rows()
    if rest is not None:
        given += [offset for offset, _ in batch_records(rest.header, rest.rows)]
        assert rest.next_offset == 18
    assert given == [10 + row for row in KEPT]
    assert hand.rows() is None
    assert hand.record() is None


def test_only_what_is_accounted_for_is_done_with() -> None:
    hand = full()
    assert one(hand) == 10
    assert hand.progress() is None
    hand.account()
    assert one(hand) == 12
    assert hand.progress() == (READING, 11, 1)
    assert hand.progress() is None
    hand.account()
    assert hand.rows() is not None
    hand.account()
    assert hand.progress() == (READING, 18, 3)
    assert one(hand) is None


def test_what_is_dropped_is_not_done_with() -> None:
    hand = full()
    assert one(hand) == 10
    hand.drop()
    hand.account()
    assert hand.progress() is None
    assert one(hand) is None
