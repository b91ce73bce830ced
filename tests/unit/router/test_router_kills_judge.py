"""The judge of the router's kill harness finds what it is there to find."""

from collections import Counter

import pytest

from tests.router_kills.destinations import number_in, number_of
from tests.router_kills.judge import OTHER, judge
from tests.router_kills.load import line_of

WHOLE = Counter(range(5))


def test_what_is_there_once_is_fine() -> None:
    assert judge(5, {"a": WHOLE, "b": Counter(range(5))}) == []
    assert judge(0, {"a": Counter()}) == []


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (WHOLE - Counter([3]), "b: 1 records are lost, as [3]"),
        (Counter(), "b: 5 records are lost, as [0, 1, 2, 3, 4]"),
        (WHOLE + Counter([1, 4]), "b: 2 records are there again, as [1, 4]"),
        (WHOLE + Counter([5]), "b: 1 are no records of the log"),
        (WHOLE + Counter([OTHER, OTHER]), "b: 2 are no records of the log"),
    ],
)
def test_what_is_broken_is_named(held: Counter[int], said: str) -> None:
    assert judge(5, {"a": WHOLE, "b": held}) == [said]


def test_a_record_is_known_by_its_number_only_if_it_is_whole() -> None:
    assert number_of(line_of(77)) == 77
    assert number_of(line_of(77) + b" ") == OTHER
    assert number_of(line_of(77).replace(b"checkout", b"x").replace(b"INFO", b"WARN")) == OTHER
    assert [number_of(it) for it in (None, b"", b"{}")] == [OTHER] * 3
    assert number_in("order 12 ☃") == 12
    assert [number_in(it) for it in (None, "", "order x ☃", "order 12")] == [OTHER] * 4
