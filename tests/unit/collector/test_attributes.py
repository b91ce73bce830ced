"""Foreign values as attributes: what is taken as it stands is what the slow way makes of it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.collector.decode import attributes
from penstock.collector.decode.attributes import flatten
from penstock.collector.decode.timestamps import iso_time_ns
from penstock.specs.limits import KEY_CHARACTERS_MAX, STRING_CHARACTERS_MAX

TEXT = st.text(max_size=4) | st.sampled_from(["\ud800", "é", "a" * (STRING_CHARACTERS_MAX + 1)])
SCALARS = TEXT | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.booleans() | st.none()
VALUES = st.recursive(
    SCALARS | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
KEYS = TEXT | st.integers() | st.binary(max_size=3) | st.just("k" * (KEY_CHARACTERS_MAX + 1))


@given(st.dictionaries(KEYS, VALUES, max_size=5), st.integers(0, 5))
def test_what_is_fit_is_taken_as_the_slow_way_would(fields: dict[Any, Any], room: int) -> None:
    quick = flatten(fields, count_max=room)
    with pytest.MonkeyPatch.context() as patch:
        # private: the short way is to make what the long way makes, which is asked by itself
        patch.setattr(attributes, "_is_fit", lambda _key, _value: False)
        assert repr(flatten(fields, count_max=room)) == repr(quick)


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("2026-01-02T03:04:05Z", 1_767_323_045_000_000_000),
        ("2026-01-02T03:04:05.123456Z", 1_767_323_045_123_456_000),
        ("2026-01-02T03:04:05.123456789Z", 1_767_323_045_123_456_789),
        ("20260102T030405.123456789", 1_767_323_045_123_456_789),
        ("20260102T03:04:05.12345678Z", 1_767_323_045_123_456_780),
        ("20260102T030405.1234567891Z", 1_767_323_045_123_456_789),
        ("2026-01-02T03:04:05.1234567+01:00", 1_767_319_445_123_456_700),
        ("2026-01-02", 1_767_312_000_000_000_000),
        ("1969-12-31T23:59:59Z", None),
        ("yesterday", None),
    ],
)
def test_times_keep_their_nanoseconds(text: str, time_ns: int | None) -> None:
    assert iso_time_ns(text) == time_ns
