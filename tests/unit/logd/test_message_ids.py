"""The window of message ids: what leaves it, and how much at a time."""

from penstock.logd.intake.dedup import MessageIds


def test_ids_out_of_the_window_go_a_few_at_a_time() -> None:
    ids = MessageIds(window_ns=10, ids_max=100)
    for number in range(6):
        ids.record(b"%d" % number, number, number)
    ids.expire(13, 2)
    assert len(ids) == 4
    ids.expire(13, 2)
    assert len(ids) == 3, "the others are in the window"
    assert ids.offset(b"3", 13) == 3
    ids.expire(14)
    assert ids.snapshot()[0] == [b"4", b"5"]
