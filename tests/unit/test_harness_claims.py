"""The judge of what senders were promised finds what it is there to find."""

from collections import Counter

import pytest

from tests.harness.checkers.claims import Claims, each_once, judge, read_text, text_of


def texts(*numbers: int, sender: str = "a") -> list[str]:
    return [text_of(sender, number) for number in numbers]


def verdict(
    delivered: list[str], quarantined: list[str] | None = None, *, crashes: int = 1
) -> list[str]:
    claims = {"a": Claims(issued=5, acked={0, 1, 3}), "b": Claims(issued=2, ordered=False)}
    return judge(
        claims, map(read_text, delivered), map(read_text, quarantined or []), crashes=crashes
    )


def test_what_is_kept_is_fine() -> None:
    assert verdict(texts(0, 1, 3)) == []
    assert verdict(texts(0, 1, 2, 1, 3, 4)) == [], "one repeat, and what nobody was promised"
    assert verdict(texts(0, 3), texts(1)) == []
    assert verdict(texts(0, 1, 3) + texts(1, 0, sender="b")) == []


@pytest.mark.parametrize(
    ("delivered", "quarantined", "said"),
    [
        (texts(0, 3), [], "1 acknowledged and gone, as [1]"),
        (texts(0, 3, 1), [], "1 came first after 3"),
        (texts(0, 1, 3, 5), [], "never issued"),
        (texts(0, 1, 3, sender="c") + texts(0, 1, 3), [], "never issued"),
        ([*texts(0, 1, 3), text_of("a", 2)[:-1]], [], "never issued"),
        (texts(0, 1, 3), ["a x y"], "1 put aside and never issued"),
        (texts(0, 0, 1, 1, 3), [], "2 repeats for 1 crashes"),
    ],
)
def test_what_is_broken_is_named(delivered: list[str], quarantined: list[str], said: str) -> None:
    assert any(said in line for line in verdict(delivered, quarantined))


WHOLE = Counter(range(5))


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (WHOLE, []),
        (WHOLE + Counter([5, 6]), []),
        (WHOLE - Counter([3]), ["s: 1 acknowledged and gone, as [3]"]),
        (Counter(), ["s: 5 acknowledged and gone, as [0, 1, 2, 3, 4]"]),
        (WHOLE + Counter([1, 4]), ["s: 2 repeats for 0 crashes, as [1, 4]"]),
        (WHOLE + Counter([6, 6]), ["s: 1 repeats for 0 crashes, as [6]"]),
        (WHOLE + Counter([7]), ["1 arrived and never issued, as [\"('s', 7)\"]"]),
        (
            WHOLE + Counter([-1, -1]),
            ["2 arrived and never issued, as [\"('s', -1)\", \"('s', -1)\"]"],
        ),
    ],
)
def test_each_must_be_there_once(held: Counter[int], said: list[str]) -> None:
    arrived = [("s", number) for number in held.elements()]
    assert judge({"s": each_once(5, issued=7)}, arrived) == said
