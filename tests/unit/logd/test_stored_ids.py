"""Message ids out of stored headers, and the window they go to: as one by one."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.format.batch import SCHEMA
from penstock.logd.intake.dedup import MessageIds, integers, stored_message_ids
from penstock.logd.intake.options import MESSAGE_ID, stored_message_id

HEADERS = SCHEMA.field("headers").type
NAMES = st.sampled_from([MESSAGE_ID, "a", "nats-msg-id", ""])
PAIRS = st.lists(st.tuples(NAMES, st.binary(max_size=3)), max_size=4)
ROWS = st.lists(
    st.one_of(
        st.none(), PAIRS, st.binary(min_size=1, max_size=2).map(lambda one: [(MESSAGE_ID, one)])
    ),
    max_size=9,
)


@given(ROWS, st.data())
def test_ids_of_a_column_are_those_of_its_rows(
    rows: list[list[tuple[str, bytes]] | None], data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(rows)))
    length = data.draw(st.integers(0, len(rows) - first))
    column = pa.array(rows, HEADERS).slice(first, length)
    part = rows[first : first + length]
    each = [stored_message_id(tuple(pairs or ())) for pairs in part]
    numbers, ids = stored_message_ids(column)
    assert list(zip(numbers, ids, strict=True)) == [
        (number, one) for number, one in enumerate(each) if one is not None
    ]


def test_an_id_of_the_row_after_a_slice_is_none_of_its_own() -> None:
    column = pa.array([None, [], [(MESSAGE_ID, b"one")]], HEADERS)
    assert stored_message_ids(column.slice(1, 1)) == ([], [])


def test_a_null_row_has_no_id_though_arrow_keeps_pairs_for_it() -> None:
    keys, values = pa.array([MESSAGE_ID] * 2), pa.array([b"one", b"two"])
    column = pa.MapArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()), keys, values, mask=pa.array([True, False])
    )
    assert stored_message_ids(column) == ([1], [b"two"])


@given(st.lists(st.integers(-9, 9), max_size=9), st.data())
def test_integers_are_the_values(values: list[int], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(values)))
    assert integers(pa.array(values, pa.int32())[first:], "i") == values[first:]
    assert integers(pa.array(values, pa.int64())[first:], "q") == values[first:]


SEEN = st.lists(st.tuples(st.sampled_from([b"1", b"2", b"3", b"4", b"5"]), st.integers(0, 20)))


@given(SEEN, st.integers(1, 6), st.integers(0, 12))
def test_many_ids_are_recorded_as_one_by_one(
    seen: list[tuple[bytes, int]], ids_max: int, window_ns: int
) -> None:
    one_by_one = MessageIds(window_ns=window_ns, ids_max=ids_max)
    for offset, (name, now_ns) in enumerate(seen):
        one_by_one.record(name, offset, now_ns)
    at_once = MessageIds(window_ns=window_ns, ids_max=ids_max)
    at_once.record_all(
        [name for name, _ in seen], [(offset, now_ns) for offset, (_, now_ns) in enumerate(seen)]
    )
    assert _ordered(at_once) == _ordered(one_by_one)
    assert at_once.evicted == one_by_one.evicted
    again = MessageIds(window_ns=window_ns, ids_max=ids_max)
    again.restore(*one_by_one.snapshot())
    assert _ordered(again) == _ordered(one_by_one)
    smaller, oracle = (MessageIds(window_ns=window_ns, ids_max=2) for _ in range(2))
    smaller.restore(*one_by_one.snapshot())
    for name, (offset, now_ns) in _ordered(one_by_one):
        oracle.record(name, offset, now_ns)
    assert (_ordered(smaller), smaller.evicted) == (_ordered(oracle), oracle.evicted)


def _ordered(ids: MessageIds) -> list[tuple[bytes, tuple[int, int]]]:
    """What is remembered, the oldest first."""
    return sorted(zip(*ids.snapshot(), strict=True), key=lambda one: one[1])
