"""The validator's verdict on a line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeVar, overload

from typing_extensions import override


class Accepted(NamedTuple):
    """The line is a record; pass its bytes on.

    Attributes:
        service: The resource's ``service.name``.
        unknown_fields: Fields that the spec does not have and that were tolerated.
        exact: The record was validated by its very spec, not by a newer minor's predecessor or by
            the base of its kind.
        names: Names of its attributes.
    """

    kind: str
    schema: str
    service: str
    time_unix_nano: int
    unknown_fields: int
    exact: bool
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rejected:
    """The line is not a record.

    Attributes:
        reason: One of a small fixed set, fit for a counter's label.
        detail: The field and the rule it breaks; no values.
    """

    reason: str
    detail: str = ""


class Verdicts(Sequence[Accepted | None]):
    """Verdicts on records that came together, as columns: an `Accepted` each takes longer.

    Attributes:
        shapes: The verdict on each, but for its time: records of one shape share the object. None
            where it is not known.
        times: Time of each record.
    """

    __slots__ = ("shapes", "times")

    def __init__(self, shapes: list[Accepted | None], times: list[int]) -> None:
        self.shapes, self.times = shapes, times

    @classmethod
    def of(cls, verdicts: Sequence[Accepted | None]) -> Self:
        """Lay verdicts out as columns."""
        times = [0 if one is None else one.time_unix_nano for one in verdicts]
        return cls([*verdicts], times)

    def append(self, verdict: Accepted | None) -> None:
        """Append the verdict on one more record."""
        self.shapes.append(verdict)
        self.times.append(0 if verdict is None else verdict.time_unix_nano)

    def extend(self, others: "Verdicts") -> None:
        """Append the verdicts on other records."""
        self.shapes += others.shapes
        self.times += others.times

    @override
    def __len__(self) -> int:
        return len(self.shapes)

    @overload
    def __getitem__(self, place: int) -> Accepted | None: ...
    @overload
    def __getitem__(self, place: slice) -> "Verdicts": ...
    @override
    def __getitem__(self, place: int | slice) -> "Accepted | Verdicts | None":
        if isinstance(place, slice):
            return Verdicts(self.shapes[place], self.times[place])
        return _at(self.shapes[place], self.times[place])

    def __setitem__(self, place: int, verdict: Accepted | None) -> None:
        """Know the verdict on a record."""
        self.shapes[place] = verdict
        self.times[place] = 0 if verdict is None else verdict.time_unix_nano

    @override
    def __iter__(self) -> Iterator[Accepted | None]:
        return map(_at, self.shapes, self.times)


_Shape = TypeVar("_Shape", Accepted, Accepted | None)


def distinct(shapes: Sequence[_Shape]) -> list[_Shape]:
    """Return the verdicts without repetitions; equal ones may be there several times."""
    if shapes and shapes.count(shapes[0]) == len(shapes):  # quicker than a look at each
        return [shapes[0]]
    return list({id(shape): shape for shape in shapes}.values())


def _at(shape: Accepted | None, time_ns: int) -> Accepted | None:
    """Return the verdict on a record of this shape and time."""
    if shape is None:
        return None
    kind, schema, service, _, unknown, exact, names = shape
    return Accepted(kind, schema, service, time_ns, unknown, exact, names)
