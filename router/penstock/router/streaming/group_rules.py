"""Which sinks read together, which must leave their group, and until when one stays alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.base.backoff import Backoff, Restarts
from penstock.router.read.offsets import Offsets

ALONE_MIN_S: Final = 30.0
ALONE_MAX_S: Final = 600.0
"""Seconds for which a sink that has left its group stays alone; they double from the first to the
last where it leaves again."""

STAYED_S: Final = 600.0
"""Seconds in a group after which leaving it counts as the first time again."""

WAITED_MIN_S: Final = 0.5
"""Seconds of waiting in the tasks of one batch that no sink has to leave its group for."""


class ApartError(Exception):
    """A sink cannot have a batch that others have; the message says why."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sink that may read together with others.

    Attributes:
        name: The sink's name.
        position: Where it is.
        in_work: End of a batch that was begun and is not done; None: there is none.
        measures: Whether its batches are planned with every frame measured.
        publishes: Whether its destination is asked while a batch begins.
    """

    name: str
    position: Offsets
    in_work: Offsets | None = None
    measures: bool = False
    publishes: bool = False


def form_groups(candidates: Sequence[Candidate], max_records: int) -> list[list[str]]:
    """Return the names of the sinks that read together, those that lead first; some are alone.

    Args:
        candidates: Sinks whose queries begin now.
        max_records: Offsets by which one may be behind another.
    """
    left = sorted(candidates, key=lambda it: (_offsets_of(it.position), it.publishes))
    groups = []
    while left:
        leader, *others = left
        together = [it for it in others if _may_follow(leader, it, max_records)]
        groups.append([leader.name, *(it.name for it in together)])
        left = [it for it in others if it not in together]
    return groups


def _may_follow(leader: Candidate, other: Candidate, max_records: int) -> bool:
    if other.in_work not in (None, leader.in_work) or other.measures != leader.measures:
        return False
    behind = distance(leader.position, other.position)
    return behind is not None and behind <= max_records


def distance(behind: Offsets, ahead: Offsets) -> int | None:
    """Return by how many offsets one position is behind another; None: they are not comparable."""
    if (behind.stream_ids, behind.generations) != (ahead.stream_ids, ahead.generations):
        return None
    if behind.next.keys() != ahead.next.keys():
        return None
    steps = [ahead.next[at] - offset for at, offset in behind.next.items()]
    return None if any(step < 0 for step in steps) else sum(steps)


def _offsets_of(position: Offsets) -> int:
    return sum(position.next.values())


def is_part_of(known: Offsets, before: Offsets, planned: Offsets) -> bool:
    """Return whether a batch of others has something for a sink; False: the sink has all of it.

    Args:
        known: Position of the sink.
        before: Position before the batch.
        planned: Position behind it.

    Raises:
        ApartError: The sink cannot have it as a batch of its own.
    """
    if not known.next.keys() <= planned.next.keys():
        raise ApartError("it has been in other streams or partitions")
    if any(known.stream_ids.get(it) != name for it, name in before.stream_ids.items()):
        raise ApartError("its streams were made again")
    if known.generations != before.generations:
        raise ApartError("the log was truncated between its batch and the others'")
    if any(known.next.get(at, 0) < first for at, first in before.next.items()):
        raise ApartError("it is behind")
    if all(known.next.get(at, 0) >= end for at, end in planned.next.items()):
        return False
    if any(known.next.get(at, 0) > end for at, end in planned.next.items()):
        raise ApartError("it is ahead in some partitions only")
    is_level = all(known.next.get(at, 0) == first for at, first in before.next.items())
    same_ids = all(
        planned.stream_ids.get(it, name) == name for it, name in known.stream_ids.items()
    )
    if not is_level and not (same_ids and planned.generations == known.generations):
        raise ApartError("the log changed between its batch and the others'")
    return True


def waits_too_long(waited_ns: int, others_ns: int) -> bool:
    """Return whether a sink has kept its group waiting in a batch's tasks.

    Args:
        waited_ns: Nanoseconds for which tasks waited for the sink.
        others_ns: Nanoseconds that the same tasks took for everything else.
    """
    return waited_ns > max(others_ns, WAITED_MIN_S * 1e9)


class Return:
    """When a sink that has left its group may return; times are monotonic."""

    def __init__(self) -> None:
        self._alone = Restarts(Backoff(ALONE_MIN_S, ALONE_MAX_S), calm=STAYED_S)
        self._at_ns = self._joined_ns = 0

    def joined(self, now_ns: int) -> None:
        """The sink reads together with others."""
        self._joined_ns = now_ns

    def left(self, now_ns: int) -> None:
        """The sink has left them, for a reason that is its own."""
        alone_s = self._alone.failed((now_ns - self._joined_ns) / 1e9)
        self._at_ns = now_ns + int(alone_s * 1e9)

    def is_due(self, now_ns: int) -> bool:
        return now_ns >= self._at_ns
