"""Which batches of a sender are repeats, also after the process was killed."""

from penstock.collector.spool.dedup import SenderTable

ONE, OTHER = b"1" * 16, b"2" * 16


def test_a_batch_that_was_taken_is_a_repeat_unless_it_is_retracted() -> None:
    table = SenderTable()
    table.record(ONE, 1)
    table.record(ONE, 2)
    assert table.is_repeat(ONE, 2)
    assert not table.is_repeat(OTHER, 1)
    table.retract(ONE, 2)
    assert table.is_repeat(ONE, 1)
    assert not table.is_repeat(ONE, 2)


def test_only_what_is_durable_is_a_repeat_after_a_kill() -> None:
    table = SenderTable()
    for sequence in range(1, 6):
        table.record(ONE, sequence)
    table.record(OTHER, 1)
    table.kept(ONE, 3)
    again = SenderTable()
    again.restore(table.snapshot())
    assert again.is_repeat(ONE, 3)
    assert not again.is_repeat(ONE, 4)
    assert not again.is_repeat(OTHER, 1)
    assert (again.durable(ONE), again.durable(OTHER)) == (3, 0)
    assert again.snapshot() == table.snapshot(), "it is durable still, and stays in checkpoints"


def test_the_sender_that_was_silent_for_longest_is_forgotten() -> None:
    table = SenderTable(senders_max=1)
    table.record(ONE, 1)
    table.kept(ONE, 1)
    table.record(OTHER, 1)
    table.kept(ONE, 1)
    table.kept(OTHER, 1)
    assert table.snapshot() == {OTHER.hex(): 1}
