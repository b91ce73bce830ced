"""Figures: what was measured, how it spreads over the rounds, and how it compares.

A `Case` holds one value per round for each system. Ratios pair the values of one round, because
systems take turns and what slows a round down slows all of them; then the median over the rounds
is taken, with the lowest and highest.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Better = Literal["higher", "lower"]


class Spread(NamedTuple):
    """The median of some values, the lowest and the highest."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Aim:
    """What a system should reach.

    Attributes:
        system: Whose figure.
        against: The system it is divided by; None: the figure itself counts.
        bound: At least that where higher is better, else at most that.
    """

    system: str
    against: str | None
    bound: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an aim was reached, by the median."""

    aim: Aim
    value: float
    met: bool


@dataclass(slots=True)
class Case:
    """One question put to several systems.

    Attributes:
        scenario: Its letter.
        compare: For a system, those it is divided by.
        series: Values by system, one per round.
        notes: Text by system, shown beside its figure.
    """

    scenario: str
    name: str
    unit: str
    better: Better = "higher"
    compare: Mapping[str, Sequence[str]] = field(default_factory=dict)
    aims: Sequence[Aim] = ()
    series: dict[str, list[float]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def add(self, system: str, value: float) -> None:
        """Add the value of one round."""
        self.series.setdefault(system, []).append(value)

    def ratio(self, system: str, against: str) -> Spread | None:
        """A system's values divided by another's of the same rounds; None without any."""
        pairs = zip(self.series.get(system, ()), self.series.get(against, ()), strict=False)
        ratios = [ours / theirs for ours, theirs in pairs if theirs]
        return spread(ratios) if ratios else None

    def verdicts(self) -> list[Verdict]:
        """Each aim for which there are values."""
        found = []
        for aim in self.aims:
            if aim.against is not None:
                reached = self.ratio(aim.system, aim.against)
            else:
                values = self.series.get(aim.system)
                reached = spread(values) if values else None
            if reached is not None:
                value = reached.median
                met = value >= aim.bound if self.better == "higher" else value <= aim.bound
                found.append(Verdict(aim, value, met))
        return found

    def document(self) -> dict[str, Any]:
        """The case as JSON."""
        return {
            "scenario": self.scenario,
            "case": self.name,
            "unit": self.unit,
            "better": self.better,
            "systems": {
                system: {
                    **spread(values)._asdict(),
                    "rounds": values,
                    "ratios": {
                        other: found._asdict()
                        for other in self.compare.get(system, ())
                        if (found := self.ratio(system, other)) is not None
                    },
                    "note": self.notes.get(system, ""),
                }
                for system, values in self.series.items()
            },
            "aims": [
                {
                    "system": verdict.aim.system,
                    "against": verdict.aim.against,
                    "bound": verdict.aim.bound,
                    "value": verdict.value,
                    "met": verdict.met,
                }
                for verdict in self.verdicts()
            ],
        }


def spread(values: Sequence[float]) -> Spread:
    """Median, lowest and highest of at least one value."""
    return Spread(statistics.median(values), min(values), max(values))


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: the smallest value that `percent` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
