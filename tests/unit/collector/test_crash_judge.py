"""The judge of the crash harness finds what it is there to find."""

import pytest

from tests.collector_crash.judge import Claims, judge, text_of


def texts(*numbers: int, sender: str = "a") -> list[str]:
    return [text_of(sender, number) for number in numbers]


def verdict(
    delivered: list[str], quarantined: list[str] | None = None, *, crashes: int = 1
) -> list[str]:
    claims = {"a": Claims(issued=5, acked={0, 1, 3}), "b": Claims(issued=2, ordered=False)}
    return judge(claims, delivered, quarantined or [], crashes=crashes)


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
        (texts(0, 1, 3), ["a x y"], "in quarantine and never issued"),
        (texts(0, 0, 1, 1, 3), [], "2 repeats for 1 crashes"),
    ],
)
def test_what_is_broken_is_named(delivered: list[str], quarantined: list[str], said: str) -> None:
    assert any(said in line for line in verdict(delivered, quarantined))
