"""What holds of processes over time: memory that does not grow, errors that a fault explains.

Pure: samples and lines in, verdicts out.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from tests.harness.plan import SECOND_NS

WARM_UP_S: Final = 180
"""Of a process, before its memory counts: caches fill, a JVM's heap grows to its size."""

WATCHED_S: Final = 240
"""A process is judged by its memory if it lived so long after that."""

GROWTH_MIB_PER_HOUR_MAX: Final[Mapping[str, float]] = {"router java heap": 150.0}
GROWTH_MIB_PER_HOUR_DEFAULT: Final = 60.0
"""A leak of 1 KiB a record at 200 records a second is 700 MiB an hour. What lives in a JVM's heap
goes up and down by 10 MiB from batch to batch, which in ten minutes is a slope of its own."""

STEPS_MIB: Final = 20.0
"""What a process may take once beside that: at its first fault of a kind it catches up or leads for
the first time, and keeps the room. A logd beside which 56 faults met the other parts took 13 MiB so
in its first ten minutes, and 3 in the 16 that followed."""

RESIDENT_MIB_MAX: Final[Mapping[str, float]] = {"router java": 900.0}
"""A JVM fills its heap before it looks for room in it, so that it grows for half an hour though the
same 70 MiB live in it. It may have its heap (640) and what it has beside; what lives is looked at
for itself."""

EXPLAINED_S: Final = 60.0
"""An error is explained by a fault that lasted until so many seconds before it."""

_LEVELS: Final = ("error", "critical")


class Sample(NamedTuple):
    """How much memory a process had at a time."""

    at_ns: int
    bytes: int


class FaultSpan(NamedTuple):
    """What was done to a part, from when to when it was back."""

    part: str
    kind: str
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Of one process.

    Attributes:
        lived_s: From its first sample to its last.
        watched_s: Of that, after its warm-up.
        mib_per_hour: The slope of the line that fits best; None: it did not live long enough.
        curve_mib: What it had, minute by minute: what fills up levels off, a leak does not.
    """

    part: str
    pid: int
    lived_s: float
    watched_s: float
    last_mib: float
    mib_per_hour: float | None
    curve_mib: tuple[int, ...] = ()

    @property
    def is_flat(self) -> bool:
        """Whether it is within its bound, or cannot be judged."""
        if self.part in RESIDENT_MIB_MAX:
            return self.last_mib <= RESIDENT_MIB_MAX[self.part]
        if self.mib_per_hour is None:
            return True
        bound = GROWTH_MIB_PER_HOUR_MAX.get(self.part, GROWTH_MIB_PER_HOUR_DEFAULT)
        return (self.mib_per_hour - bound) * self.watched_s / 3600 <= STEPS_MIB


def growth(part: str, pid: int, samples: Sequence[Sample]) -> Growth:
    """How the memory of a process grew after its warm-up."""
    first, last = samples[0], samples[-1]
    counted = [one for one in samples if one.at_ns - first.at_ns >= WARM_UP_S * SECOND_NS]
    watched_s = (counted[-1].at_ns - counted[0].at_ns) / SECOND_NS if counted else 0.0
    slope = _slope(counted) * 3600 / 2**20 if watched_s >= WATCHED_S else None
    lived_s = (last.at_ns - first.at_ns) / SECOND_NS
    return Growth(part, pid, lived_s, watched_s, last.bytes / 2**20, slope, _curve(samples))


def _curve(samples: Sequence[Sample]) -> tuple[int, ...]:
    begin, found = samples[0].at_ns, dict[int, int]()
    for one in samples:
        found.setdefault((one.at_ns - begin) // (60 * SECOND_NS), one.bytes // 2**20)
    return tuple(found.values())


def _slope(samples: Sequence[Sample]) -> float:
    """Bytes a second, by least squares."""
    begin = samples[0].at_ns
    xs = [(one.at_ns - begin) / SECOND_NS for one in samples]
    ys = [float(one.bytes) for one in samples]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    over = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return over / sum((x - mean_x) ** 2 for x in xs)


@dataclass(slots=True)
class Complaints:
    """Errors in the logs of all parts.

    Attributes:
        explained: How many came with a fault, by part and event.
        unexplained: Lines that did not.
    """

    explained: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)


def read_complaints(
    part: str, lines: Iterable[str], faults: Sequence[FaultSpan], complaints: Complaints
) -> None:
    """Take the errors of one part's log."""
    for line in lines:
        document = _error(line)
        if document is None:
            continue
        name = f"{part}: {document.get('event', line)[:80]}"
        at_ns = _time_ns(document)
        if at_ns is not None and any(
            fault.begin_ns <= at_ns <= fault.end_ns + EXPLAINED_S * SECOND_NS for fault in faults
        ):
            complaints.explained[name] += 1
        else:
            complaints.unexplained.append(f"{part}: {line[:400]}")


def _error(line: str) -> dict[str, Any] | None:
    """A line of a log that complains; text that is not JSON is one if it begins a traceback."""
    try:
        document = json.loads(line)
    except json.JSONDecodeError:
        return {"event": line} if line.startswith(("Traceback", "error:")) else None
    if not isinstance(document, dict) or document.get("level") not in _LEVELS:
        return None
    return document


def _time_ns(document: Mapping[str, Any]) -> int | None:
    try:
        return round(datetime.fromisoformat(str(document["timestamp"])).timestamp() * SECOND_NS)
    except (KeyError, ValueError):
        return None
