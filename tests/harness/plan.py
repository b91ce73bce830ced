"""A plan says what runs, which faults meet it, for how long; `execute` does it and reports.

    a system     what runs under load, and how it is judged (`tests/harness/systems`)
    faults       what happens to it (`tests/harness/faults`)
    a ledger     what senders were promised (`ledger.py`)
    checkers     what was read back, held against that (`tests/harness/checkers`)

In each run of a plan one fault happens, or a few beside one another; then the system recovers and
checks what can be checked by now. In the end nothing more is sent, and everything is judged.
"""

import random
import shutil
import threading
import traceback
from abc import ABC, abstractmethod
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from penstock.base.clock import SystemClock
from penstock.logd.errors import LogdError
from tests.bench.figures import percentile

SECOND_NS: Final = 1_000_000_000


class BrokenPromiseError(AssertionError):
    """A promise was broken."""


@dataclass
class Report:
    """What came of a plan.

    Attributes:
        runs: That were made.
        broken: A line for each promise that was not kept.
        counts: Faults, exit codes, records by what became of them: how often each.
        times_s: Seconds that something took, by what it is.
        facts: Whatever else a plan wants to say.
    """

    runs: int = 0
    broken: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    times_s: dict[str, list[float]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def took(self, what: str, seconds: float) -> None:
        self.times_s.setdefault(what, []).append(seconds)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        begun_ns = SystemClock().monotonic_ns()
        yield
        self.took(what, (SystemClock().monotonic_ns() - begun_ns) / SECOND_NS)

    def add(self, other: "Report") -> None:
        """Take in what came of another round of the same plan."""
        self.runs += other.runs
        self.broken += other.broken
        self.counts += other.counts
        for what, times in other.times_s.items():
            self.times_s.setdefault(what, []).extend(times)
        self.facts |= other.facts

    def summary(self) -> dict[str, Any]:
        """For JSON; of times the number, the median, the 99th percentile and the longest."""
        times = {
            what: {
                "times": len(all_s),
                "p50": round(percentile(all_s, 50), 3),
                "p99": round(percentile(all_s, 99), 3),
                "max": round(max(all_s), 3),
            }
            for what, all_s in sorted(self.times_s.items())
        }
        return {
            "runs": self.runs,
            "broken": self.broken,
            "counts": dict(sorted(self.counts.items())),
            "times_s": times,
            **self.facts,
        }


@dataclass
class Run:
    """What the system, the faults and the checkers of one round share.

    Attributes:
        directory: For data and logs.
        seed: Of everything that is drawn.
        options: From the command line, those of the plan included.
        number: Of the current run, from 1.
        program: What to run instead of the component: a twin that is broken on purpose.
    """

    directory: Path
    seed: int
    options: Namespace
    tell: Callable[[str], None]
    program: Sequence[str] | None = None
    number: int = 0
    report: Report = field(default_factory=Report)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.clock = SystemClock()
        self._nothing = threading.Event()
        self.begin()

    def begin(self) -> None:
        """The system runs: its time counts from now."""
        self._begun_ns = self.clock.monotonic_ns()

    @property
    def elapsed_s(self) -> float:
        return (self.clock.monotonic_ns() - self._begun_ns) / SECOND_NS

    def pause(self, seconds: float) -> None:
        """Let the load go on for a time: it is that time that the plan asks for."""
        self._nothing.wait(max(0.0, seconds))

    def pause_between(self, low_s: float, high_s: float) -> None:
        self.pause(self.rng.uniform(low_s, high_s))

    def demand(self, holds: bool, message: str) -> None:
        """Raise unless it holds."""
        if not holds:
            raise BrokenPromiseError(message)


class System(ABC):
    """What a plan runs, with its load: from the start of a `with` block to its end."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.begin(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, at)

    @abstractmethod
    def begin(self, stack: ExitStack) -> None:
        """Start everything; the stack ends it, also what was started before an error."""

    @abstractmethod
    def recover(self) -> str:
        """End the faults, wait until all is well, check what can be checked; what to tell."""

    @abstractmethod
    def conclude(self) -> None:
        """Send no more, read everything back, and hold it against what was promised."""


S = TypeVar("S", bound=System)
Fault = Callable[[S], str]
"""Brings a fault about, and says what it is."""


def at_random(faults: Sequence[Fault[S]], rng: random.Random) -> Iterator[Fault[S]]:
    """Any of them each time; one that is there twice comes twice as often."""
    while True:
        yield rng.choice(faults)


def shuffled(faults: Sequence[Fault[S]], rng: random.Random) -> Iterator[Fault[S]]:
    """All of them in some order, and then again in another."""
    while True:
        yield from rng.sample(faults, len(faults))


def in_turn(faults: Sequence[Fault[S]], _: random.Random) -> Iterator[Fault[S]]:
    while True:
        yield from faults


@dataclass(frozen=True, kw_only=True)
class Plan(Generic[S]):
    """What to run, which faults, how to judge.

    Attributes:
        about: For `--help`.
        system: Makes what runs; it is not started yet.
        faults: What happens to the system, one in each run.
        order: In which they come.
        also: Faults that come before the one of the run, each with its own probability.
        calm_s: Seconds without a fault at the start of a run.
        lasts_s: Seconds, at least and at most, from a fault to the next one or to recovery.
        more: The probability of a further fault before recovery.
        can_take_more: Whether the system can take one.
        runs, seconds: The plan ends after so many, whichever is given; see `--runs`, `--seconds`.
        round_runs: After so many runs everything is judged, and a new system begins.
        options: Adds the plan's own to the command line.
        twins: Programs, by name, that are broken on purpose: the plan must find each out.
        review: Looks at the report of all rounds.
    """

    about: str
    system: Callable[[Run], S]
    faults: Callable[[S], Sequence[Fault[S]]]
    order: Callable[[Sequence[Fault[S]], random.Random], Iterator[Fault[S]]] = at_random
    also: Mapping[Fault[S], float] = field(default_factory=dict)
    calm_s: Callable[[Run], float] = lambda _: 0.0
    lasts_s: tuple[float, float] = (0.0, 0.0)
    more: float = 0.0
    can_take_more: Callable[[S], bool] = lambda _: True
    runs: int | None = None
    seconds: float | None = None
    round_runs: int | None = None
    options: Callable[[ArgumentParser], None] = lambda _: None
    twins: Mapping[str, Sequence[str]] = field(default_factory=dict)
    review: Callable[[Report], None] = lambda _: None

    def strike(self, system: S, run: Run, draw: Iterator[Fault[S]]) -> list[str]:
        """Bring about the faults of one run; what they are."""
        told: list[str] = []
        while not told or (self.can_take_more(system) and run.rng.random() < self.more):
            told += [fault(system) for fault, p in self.also.items() if run.rng.random() < p]
            told.append(next(draw)(system))
            run.pause_between(*self.lasts_s)
        return told


def execute(
    plan: Plan[Any], options: Namespace, directory: Path, tell: Callable[[str], None]
) -> Report:
    """Carry a plan out.

    Args:
        plan: Which.
        options: `runs`, `seconds`, `round`, `seed`, `twin`, `keep` and those of the plan.
        directory: For everything; what was sound is removed at the end of its round.
        tell: Called with a line about each run.
    """
    whole, length = Report(), _Length(options)
    is_over = False
    while not is_over:
        number = whole.counts["rounds"]
        place = directory / f"round-{number + 1}"
        place.mkdir(parents=True)
        program = plan.twins[options.twin] if options.twin else None
        run = Run(place, options.seed + number, options, tell, program)
        try:
            _round(plan, run, length)
        except (AssertionError, LogdError) as error:  # logd refused what it had promised
            tell(traceback.format_exc())
            run.report.broken.append(str(error) or repr(error))
            is_over = True
        finally:
            whole.add(run.report)
        whole.counts["rounds"] += 1
        is_over = is_over or length.is_over
        if not run.report.broken and not options.keep:
            shutil.rmtree(place)
        told = f"broken: {run.report.broken}" if run.report.broken else "every promise was kept"
        tell(f"round {number + 1}, seed {run.seed}: {told}")
    plan.review(whole)
    return whole


class _Length:
    """How long a plan goes on: the time counts from when the first system runs."""

    def __init__(self, options: Namespace) -> None:
        self.runs = 0
        self._options = options
        self._clock = SystemClock()
        self._begun_ns: int | None = None

    def begin(self) -> None:
        if self._begun_ns is None:
            self._begun_ns = self._clock.monotonic_ns()

    @property
    def is_over(self) -> bool:
        """There is one run at least."""
        if not self.runs or self._begun_ns is None:
            return False
        passed_s = (self._clock.monotonic_ns() - self._begun_ns) / SECOND_NS
        runs, seconds = self._options.runs, self._options.seconds
        enough = runs is not None and self.runs >= runs
        return enough or (seconds is not None and passed_s >= seconds)


def _round(plan: Plan[S], run: Run, length: _Length) -> None:
    round_runs = run.options.round
    with plan.system(run) as system:
        draw = plan.order(plan.faults(system), run.rng)
        length.begin()
        run.begin()
        while not length.is_over and not (round_runs and run.number >= round_runs):
            run.number += 1
            run.pause(plan.calm_s(run))
            told = plan.strike(system, run, draw)
            told.append(system.recover())
            run.report.runs = run.number
            length.runs += 1
            run.tell(f"run {length.runs}, {run.elapsed_s:.0f} s: {'; '.join(told)}")
        system.conclude()
