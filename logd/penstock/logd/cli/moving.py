"""Replicas and leaderships on their way: what is left to do, as the nodes of a cluster say.

The controller does the work, whoever watches. What is copied is measured where it is copied to:
each node that a replica is new on is asked how much of it there is.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from typing_extensions import override

from penstock.logd.client import LogClient, PartitionInfo, StreamInfo, calls
from penstock.logd.errors import RefusedError, UnavailableError


class Place(NamedTuple):
    """A partition of a stream."""

    stream: str
    partition: int

    @override
    def __str__(self) -> str:
        """As people write it."""
        return f"{self.stream}/{self.partition}"


Parts = dict[Place, PartitionInfo]
IsLeft = Callable[[Place, PartitionInfo], bool]
Standing = Callable[[str], Parts]


def parts_of(streams: Sequence[StreamInfo]) -> Parts:
    """The partitions of streams."""
    return {
        Place(stream.name, part.partition): part for stream in streams for part in stream.partitions
    }


def left_of_move(place: Place, replicas: Sequence[str]) -> IsLeft:
    """A partition is to be on these nodes, and nothing else is asked."""

    def is_left(one: Place, part: PartitionInfo) -> bool:
        there = part.replicas == tuple(replicas) and part.target is None
        return one == place and not (there and set(part.replicas) <= set(part.isr))

    return is_left


def left_of_drain(node: str) -> IsLeft:
    """Nothing is to be on a node."""

    def is_left(_: Place, part: PartitionInfo) -> bool:
        return node in (*part.replicas, *part.observers, part.leader)

    return is_left


def left_of_rebalance(_: Place, part: PartitionInfo) -> bool:
    """Nothing is to be under way. Who leads is spread evenly, to whichever of the replicas."""
    return part.target is not None or part.leader is None


@dataclass(frozen=True, slots=True)
class Course:
    """How far work is.

    Attributes:
        done: Partitions that nothing is left to do of.
        total: Partitions that there was something to do of, as far as was seen.
        copied_bytes: On nodes that replicas are new on.
        total_bytes: That those need.
        steps: What has changed since the last look, a line each.
    """

    done: int
    total: int
    copied_bytes: int
    total_bytes: int
    steps: tuple[str, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return self.done == self.total


class Survey:
    """Looks at a cluster again and again, and says how far work is. Pure but for what it is given.

    Args:
        is_left: Whether something is left to do of a partition.
    """

    def __init__(self, is_left: IsLeft) -> None:
        self._is_left = is_left
        self._first: Parts = {}
        self._last: Parts = {}
        self._need: dict[Place, int] = {}
        self._copied: dict[Place, int] = {}

    def look(self, parts: Parts, standing: Standing) -> Course:
        """Take in how it is now.

        Args:
            parts: Each as its leader says.
            standing: What a node has.
        """
        left = {place for place, part in parts.items() if self._is_left(place, part)}
        for place in left - self._first.keys():
            self._first[place] = parts[place]
        nodes: dict[str, Parts] = {}
        for place in sorted(left):
            self._measure(place, parts[place], nodes, standing)
        for place in self._need.keys() - left:
            self._copied[place] = self._need[place]
        steps = tuple(self._steps(parts, left))
        self._last = {place: parts[place] for place in self._first if place in parts}
        gone = self._first.keys() - left
        return Course(
            done=len(gone),
            total=len(self._first),
            copied_bytes=sum(self._copied.values()),
            total_bytes=sum(self._need.values()),
            steps=steps,
        )

    def _measure(
        self, place: Place, part: PartitionInfo, nodes: dict[str, Parts], standing: Standing
    ) -> None:
        """Note what is copied of a partition, and what is to be."""
        before = self._first[place].replicas
        new = [node for node in (part.target or part.replicas) if node not in before]
        size = max(part.size_bytes, 0)
        self._need[place] = max(self._need.get(place, 0), size * len(new))
        copied = 0
        for node in new:
            if node not in part.replicas:
                continue
            if node not in nodes:
                nodes[node] = standing(node)
            found = nodes[node].get(place)
            copied += 0 if found is None else min(max(found.size_bytes, 0), size)
        self._copied[place] = max(copied, self._copied.get(place, 0))

    def _steps(self, parts: Parts, left: set[Place]) -> Iterator[str]:
        for place, before in sorted(self._last.items()):
            part = parts.get(place)
            if part is None:
                yield f"{place}: is gone"
                continue
            if (part.replicas, part.leader) != (before.replicas, before.leader):
                behind = sorted(set(part.replicas) - set(part.isr))
                words = f"{place}: on {', '.join(part.replicas)}, led by {part.leader or 'nobody'}"
                yield f"{words}; copying to {', '.join(behind)}" if behind else words
            if place not in left and self._is_left(place, before):
                yield f"{place}: done"


def whole(log: LogClient) -> Parts:
    """The partitions of a cluster, logd's own too, each as its leader says."""
    return parts_of(log.streams(internal=True))


def standing_at(log: LogClient, node: str) -> Parts:
    """What a node has; nothing of one that does not answer."""
    try:
        return parts_of(log.ask(calls.describe(internal=True, node=node)).streams)
    except (UnavailableError, RefusedError):
        return {}


QUIET_S: Final = 3.0
"""Seconds without anything under way, after which a rebalance is over: its steps come one by one,
and the controller plans the next within a second."""

STUCK_S: Final = 60.0
"""Seconds without any change, after which it is said what work waits for."""
