"""Which partitions of which streams are read, and from when, as options say it."""

from typing import Any

import pytest

from penstock.router.errors import BadOptionError
from penstock.router.read.offset_spec import Subscription, assigned, times_by_partition
from penstock.router.read.offsets import StreamPartition


def test_partitions_are_assigned_by_stream() -> None:
    assert assigned({"logs": [0, 1], "traces": [7]}) == {
        StreamPartition("logs", 0), StreamPartition("logs", 1), StreamPartition("traces", 7),
    }  # fmt: skip


@pytest.mark.parametrize(
    "document",
    [{}, [], "logs", {"logs": []}, {"logs": 0}, {"logs": [-1]}, {"logs": ["0"]}, {"logs": [True]},
     {"logs": [0], "traces": []}],
)  # fmt: skip
def test_partitions_of_another_form_are_refused(document: Any) -> None:
    with pytest.raises(BadOptionError, match="option assign"):
        assigned(document)


def test_times_are_by_stream_and_partition() -> None:
    found = times_by_partition({"logs": {"0": 5, "12": 0}, "traces": {"1": 7}}, "startingTime")
    assert found == {
        StreamPartition("logs", 0): 5,
        StreamPartition("logs", 12): 0,
        StreamPartition("traces", 1): 7,
    }


@pytest.mark.parametrize(
    "document",
    [[], 5, {"logs": 5}, {"logs": {"x": 5}}, {"logs": {"-1": 5}}, {"logs": {"0": -1}},
     {"logs": {"0": "5"}}, {"logs": {"0": True}}],
)  # fmt: skip
def test_times_of_another_form_are_refused(document: Any) -> None:
    with pytest.raises(BadOptionError, match="option startingTime"):
        times_by_partition(document, "startingTime")


def test_a_subscription_covers_the_partitions_that_it_names_or_all() -> None:
    first, second = (StreamPartition("logs", number) for number in range(2))
    some, every = Subscription(partitions=frozenset({first})), Subscription(names=("logs",))
    assert (some.covers(first), some.covers(second)) == (True, False)
    assert every.covers(first)
    assert every.covers(second)
    assert (some.streams(()), every.streams(())) == (("logs",), ("logs",))
    assert Subscription(pattern="l.*").streams(["traces", "logs", "all"]) == ("logs",)
