"""What a majority of the voters says."""

from collections.abc import Collection, Iterable, Mapping
from enum import Enum

from penstock.logd.core.node import NodeId


class Verdict(Enum):
    """The state of a vote."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def majority(voters: int) -> int:
    """The least number of voters that is more than half of them."""
    return voters // 2 + 1


def reached_by_majority(values: Iterable[int]) -> int:
    """The largest value that a majority of the voters has reached; one value for each, any order.

    After etcd's MajorityConfig.CommittedIndex: it is in the middle of the sorted values, or, when
    their number is even, the lower of the two there.
    """
    ordered = sorted(values)
    assert ordered, "no voters"
    return ordered[len(ordered) - majority(len(ordered))]


def verdict(voters: Collection[NodeId], votes: Mapping[NodeId, bool]) -> Verdict:
    """What the votes that have come mean; those of others than voters do not count."""
    granted = sum(1 for voter in voters if votes.get(voter) is True)
    refused = sum(1 for voter in voters if votes.get(voter) is False)
    needed = majority(len(voters))
    if granted >= needed:
        return Verdict.WON
    return Verdict.LOST if len(voters) - refused < needed else Verdict.PENDING
