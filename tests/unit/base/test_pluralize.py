"""Of one there is one, and of all other numbers more."""

import pytest

from penstock.base.pluralize import pluralize


@pytest.mark.parametrize(
    ("number", "noun", "told"),
    [
        (0, "record", "0 records"),
        (1, "record", "1 record"),
        (2, "record", "2 records"),
        (1, "batch", "1 batch"),
        (3, "batch", "3 batches"),
        (1, "dead letter", "1 dead letter"),
        (1, "entry", "1 entry"),
        (2, "entry", "2 entries"),
        (2, "day", "2 days"),
    ],
)
def test_a_count_has_the_noun_that_goes_with_it(number: int, noun: str, told: str) -> None:
    assert pluralize(number, noun) == told


def test_large_numbers_are_written_as_the_caller_likes() -> None:
    assert pluralize(1234567, "record", form=",") == "1,234,567 records"
