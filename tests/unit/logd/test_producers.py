from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.intake.dedup import Accept, Duplicate, Gap, ProducerTable

ONE = b"1" * 16
TWO = b"2" * 16


def make_table(*, expiry_ns: int = 1 << 60, max_producers: int = 100) -> ProducerTable:
    return ProducerTable(expiry_ns=expiry_ns, max_producers=max_producers)


def test_a_chain_is_accepted_once_and_in_order() -> None:
    table = make_table()
    assert table.check(ONE, 0, 5, 0) == Accept()
    table.record(ONE, 5, 100, 0)
    assert table.check(ONE, 5, 9, 0) == Accept()
    assert table.check(ONE, 0, 5, 0) == Duplicate(100)
    assert table.check(ONE, 0, 3, 0) == Duplicate(-1)
    assert table.check(ONE, 9, 12, 0) == Gap(5)
    assert table.check(ONE, 3, 9, 0) == Gap(5)
    assert table.check(TWO, 0, 1, 0) == Accept()
    assert table.check(TWO, 4, 5, 0) == Gap(0)


def test_idle_producers_are_forgotten_and_live_ones_kept() -> None:
    table = make_table(expiry_ns=100)
    table.record(ONE, 1, 0, 0)
    table.record(TWO, 1, 1, 50)
    assert table.check(ONE, 1, 2, 100) == Accept()
    assert table.check(ONE, 1, 2, 101) == Gap(0)
    assert table.check(TWO, 1, 2, 101) == Accept()


def test_the_producer_idle_longest_goes_when_there_are_too_many() -> None:
    table = make_table(max_producers=2)
    for number, producer in enumerate((ONE, TWO, b"3" * 16)):
        table.record(producer, 1, number, number)
    assert table.last(ONE) is None
    assert (len(table), table.evicted) == (2, 1)


@given(st.lists(st.tuples(st.sampled_from([ONE, TWO, b"3" * 16]), st.integers(1, 9))))
def test_a_snapshot_restores_the_same_table(rows: list[tuple[bytes, int]]) -> None:
    table, copy = make_table(max_producers=2), make_table(max_producers=2)
    for position, (producer, sequence) in enumerate(rows):
        table.record(producer, sequence, position, position)
    pairs = sorted(zip(*table.snapshot(), strict=True), key=lambda pair: pair[1].offset)
    copy.restore((name, one.sequence, one.offset, one.seen_ns) for name, one in pairs)
    for each in (table, copy):
        each.record(b"4" * 16, 1, len(rows), len(rows))
    assert dict(zip(*copy.snapshot(), strict=True)) == dict(zip(*table.snapshot(), strict=True))


def test_a_snapshot_leaves_out_batches_that_may_be_cut_off_again() -> None:
    table = make_table()
    table.record(ONE, 5, 0, 0)
    table.record(TWO, 1, 1, 0)
    table.committed(2)
    table.record(ONE, 6, 2, 0)
    table.record(ONE, 7, 3, 0)
    table.record(b"3" * 16, 1, 4, 0)

    def sequences(end_offset: int) -> dict[bytes, int]:
        return {
            name: state.sequence for name, state in zip(*table.snapshot(end_offset), strict=True)
        }

    assert sequences(2) == {ONE: 5, TWO: 1}
    assert sequences(3) == {ONE: 6, TWO: 1}
    assert sequences(5) == {ONE: 7, TWO: 1, b"3" * 16: 1}
