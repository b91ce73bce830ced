"""What each sink holds against what the log holds: pure, so that it can be tested itself.

- each record of the log is in each sink exactly once
- nothing else is there, and what is there is as it was published
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

OTHER: Final = -1
"""The number of what no record of the log is."""

_SHOWN: Final = 5


def judge(issued: int, stored: Mapping[str, Counter[int]]) -> list[str]:
    """Say which promises were broken.

    Args:
        issued: Records in the log; their numbers run from 0.
        stored: By sink, how often it holds each number.

    Returns:
        A line for each; empty when all were kept.
    """
    broken: list[str] = []
    wanted = range(issued)
    for sink, held in stored.items():
        missing = [number for number in wanted if not held[number]]
        twice = [number for number in wanted if held[number] > 1]
        foreign = sum(count for number, count in held.items() if number not in wanted)
        if missing:
            broken.append(f"{sink}: {len(missing)} records are lost, as {missing[:_SHOWN]}")
        if twice:
            broken.append(f"{sink}: {len(twice)} records are there again, as {twice[:_SHOWN]}")
        if foreign:
            broken.append(f"{sink}: {foreign} are no records of the log")
    return broken
