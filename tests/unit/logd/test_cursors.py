"""The table of cursors, against a dumb one; and what it refuses."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.metadata.cursors import (
    CursorKey,
    CursorPosition,
    CursorTable,
    check_consumer,
    decode_change,
)

KEYS = st.builds(CursorKey, st.sampled_from(["a", "b"]), st.sampled_from(["s", "t"]), st.just(0))
POSITIONS = st.builds(CursorPosition, st.integers(0, 9), st.sampled_from(["1", "2"]))
REQUESTS = st.tuples(
    st.lists(st.tuples(KEYS, st.none() | POSITIONS), min_size=1, max_size=3), st.booleans()
)


@given(st.lists(REQUESTS, max_size=20))
def test_the_table_agrees_with_a_dict_that_only_takes_what_was_checked(
    requests: list[tuple[list[tuple[CursorKey, CursorPosition | None]], bool]],
) -> None:
    table = CursorTable(3)
    model: dict[CursorKey, CursorPosition] = {}
    for changes, rewind in requests:
        with contextlib.suppress(RefusedError):
            table.check(changes, rewind=rewind)
            for key, position in changes:
                before = model.get(key)
                if position is None:
                    model.pop(key, None)
                    continue
                if not rewind and before and before.incarnation == position.incarnation:
                    assert position.offset >= before.offset
                model[key] = position
            table.append(changes)
            table.commit(changes)
    assert dict(table.walk()) == model
    assert list(table.walk()) == sorted(model.items())
    assert len(table) == len(model) <= 3


def test_what_is_under_way_counts_for_checks_and_not_for_answers() -> None:
    table = CursorTable(1)
    key = CursorKey("a", "s", 0)
    table.append([(key, CursorPosition(5, "1"))])
    assert table.get(key) is None
    with pytest.raises(RefusedError) as behind:
        table.check([(key, CursorPosition(4, "1"))], rewind=False)
    assert (behind.value.code, behind.value.detail) == ("CURSOR_BEHIND", {"offset": 5})
    with pytest.raises(RefusedError) as full:
        table.check([(CursorKey("b", "s", 0), CursorPosition(4, "1"))], rewind=False)
    assert full.value.code == "TOO_MANY_CURSORS"
    table.check([(key, CursorPosition(4, "1"))], rewind=True)
    table.check([(key, CursorPosition(0, "2"))], rewind=False)


def test_a_walk_goes_on_after_a_key_that_is_no_more() -> None:
    table = CursorTable(9)
    keys = [CursorKey("c", stream, 0) for stream in "abc"]
    changes = [(key, CursorPosition(1, "1")) for key in keys]
    table.append(changes)
    table.commit(changes)
    table.append([(keys[1], None)])
    table.commit([(keys[1], None)])
    assert [key for key, _ in table.walk(keys[1])] == [keys[2]]


@given(KEYS, st.none() | POSITIONS)
def test_a_record_says_what_was_written(key: CursorKey, position: CursorPosition | None) -> None:
    value = None if position is None else position.encode()
    assert decode_change(key.encode(), value) == (key, position)


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, b"{}"), (b"a,b", b"{}"), (b"a,b,x", None), (b"a,b,0", b"{}"), (b"a,b,0", b"no")],
)
def test_a_record_that_is_no_cursor_is_said_to_be_none(key: bytes | None, value: bytes) -> None:
    with pytest.raises(CorruptError):
        decode_change(key, value)


@pytest.mark.parametrize("consumer", ["", "a,b", "a b", "ä", "x" * 129])
def test_names_that_a_key_cannot_hold_are_refused(consumer: str) -> None:
    with pytest.raises(RefusedError) as raised:
        check_consumer(consumer)
    assert raised.value.code == "BAD_CONSUMER"
