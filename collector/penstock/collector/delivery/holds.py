"""Positions of records that transforms hold in memory: reading begins there after a kill.

A transform such as `reduce` takes records in and gives something else out later. Until that is
durable, the records exist in memory alone, and the position of their origin may not move past them.
A mark says of the records that were taken within some time where reading meets the first of them.

Each transform has its marks of an origin, some `MARKS_MAX` at most: each is of a share of the time
that is held. So a record may be held back a little longer than it must, and never shorter.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

MARKS_MAX: Final = 64
"""Marks of one transform; a position is exact to a thirtieth of what is held."""


@dataclass(slots=True)
class _Mark:
    """Records that a transform took from an origin within some time.

    Attributes:
        position: Position from which reading again meets all of them.
    """

    position: int
    first_ns: int
    last_ns: int


@dataclass(slots=True)
class _Marks:
    """The marks of one transform and origin, the oldest first.

    Attributes:
        step_ns: Time of one mark.
    """

    step_ns: int = 0
    marks: deque[_Mark] = field(default_factory=deque)

    def add(self, mark: _Mark) -> None:
        """Add the latest mark, and make fewer of too many."""
        self._append(mark)
        if len(self.marks) > MARKS_MAX:
            self.step_ns = _step_ns(mark.last_ns - self.marks[0].first_ns)
            before, self.marks = self.marks, deque()
            for one in before:
                self._append(one)

    def release(self, before_ns: int) -> None:
        while self.marks and self.marks[0].last_ns < before_ns:
            self.marks.popleft()
        if self.marks:  # after a long hold, marks are again as fine as what is held needs
            held_ns = self.marks[-1].last_ns - self.marks[0].first_ns
            self.step_ns = min(self.step_ns, _step_ns(held_ns))

    def _append(self, mark: _Mark) -> None:
        """Add a mark, or let the one before it stand for its records, too."""
        before = self.marks[-1] if self.marks else None
        if before is not None and (
            before.position == mark.position or mark.last_ns - before.first_ns < self.step_ns
        ):
            before.last_ns = mark.last_ns
        else:
            self.marks.append(mark)


def _step_ns(held_ns: int) -> int:
    """Return the time of one mark where so much time is held."""
    return 2 * held_ns // MARKS_MAX + 1


class Holds:
    """The marks of all origins and transforms; times are monotonic, in nanoseconds."""

    def __init__(self) -> None:
        self._origins: dict[str, dict[str, _Marks]] = {}
        self._forgotten: set[str] = set()

    def hold(self, origin: str, transform: str, position: int, now_ns: int) -> None:
        """A transform took records that reading meets again from `position` on.

        Positions of an origin, and times, never decrease.
        """
        known = self._origins.setdefault(origin, {})
        known.setdefault(transform, _Marks()).add(_Mark(position, now_ns, now_ns))

    def release(self, since_ns: Mapping[str, int], now_ns: int) -> None:
        """Each transform has nothing left that it took before a time.

        Args:
            since_ns: The time, by transform.
            now_ns: The time for every other transform.
        """
        for origin, transforms in list(self._origins.items()):
            for name, marks in list(transforms.items()):
                marks.release(since_ns.get(name, now_ns))
                if not marks.marks:
                    del transforms[name]
            if not transforms:
                del self._origins[origin]

    def forget(self, origin: str) -> bool:
        """Hold nothing of an origin back; whether there was anything."""
        found = self._origins.pop(origin, None)
        self._forgotten.update(found or ())
        return found is not None

    def holds_all_of(self, transform: str) -> bool:
        """Return whether reading meets again all that a transform took and has not given out.

        Once an origin of it was forgotten, that is not known any more.
        """
        is_held = any(transform in transforms for transforms in self._origins.values())
        return is_held and transform not in self._forgotten

    def positions(self, origin: str) -> dict[str, int]:
        """The position that each transform holds an origin back at, of those that do."""
        transforms = self._origins.get(origin, {})
        return {name: one.marks[0].position for name, one in transforms.items()}

    def position(self, origin: str) -> int | None:
        """The position that an origin is held back at; None: it is not."""
        return min(self.positions(origin).values(), default=None)

    def __bool__(self) -> bool:
        """Whether anything is held back."""
        return bool(self._origins)
