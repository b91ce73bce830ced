"""Answers that are kept for short texts, such as names, of which there are few."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Final, TypeVar

ANSWERS_MAX: Final = 512
LENGTH_MAX: Final = 1024
"""Of a text; what is longer is worked out each time, so that no records fill the memory."""

Text = TypeVar("Text", str, bytes)
Answer = TypeVar("Answer")


def remembered(function: Callable[[Text], Answer]) -> Callable[[Text], Answer]:
    """The same function, which knows what it answered last.

    Args:
        function: Depends on its text alone, and answers what nobody changes.
    """
    known = lru_cache(ANSWERS_MAX)(function)

    @wraps(function)
    def answer(text: Text) -> Answer:
        return known(text) if len(text) <= LENGTH_MAX else function(text)

    return answer
