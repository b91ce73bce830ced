"""What every scenario uses: where it works, how much it does, whose turn it is."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tests.bench.machine import cpu_seconds
from tests.bench.systems import System
from tests.bench.worker import Run, run_workers

Taking = TypeVar("Taking")


class Effort(IntEnum):
    """How much is done: to measure, for a first look, or only to see that it works."""

    FULL = 0
    QUICK = 1
    SMOKE = 2


class Progress(Protocol):
    """Where a scenario says what it does."""

    def step(self, text: str) -> None:
        """It does something else now."""
        ...


@dataclass(frozen=True, slots=True)
class Limit:
    """What takes its turn among systems to show what could be reached."""

    name: str


@dataclass
class Bench:
    """One run of the bench.

    Attributes:
        directory: For everything the systems keep; on the disk that is measured.
        rounds: How often each system has its turn, besides the first, which does not count.
    """

    directory: Path
    effort: Effort
    rounds: int
    progress: Progress

    def pick(self, full: int, quick: int, smoke: int) -> int:
        """One of three amounts, by effort."""
        return (full, quick, smoke)[self.effort]

    def some(self, values: Iterable[Taking]) -> list[Taking]:
        """All of them; when it only has to work, the first."""
        found = list(values)
        return found[:1] if self.effort is Effort.SMOKE else found

    def turns(
        self, what: str, systems: Sequence[Taking], *, warm_up: bool = True
    ) -> Iterator[tuple[Taking, bool]]:
        """Whose turn it is: each once, then each again, `rounds` times.

        Before each turn everything written so far goes to the disk, so that nobody pays for what
        others left to the kernel.

        Args:
            what: For the progress.
            systems: Who takes turns.
            warm_up: Whether there is a round before the first that counts.

        Yields:
            The system, and whether the turn counts.
        """
        first = 0 if warm_up and self.effort is not Effort.SMOKE else 1
        for number in range(first, self.rounds + 1):
            for system in systems:
                name = getattr(system, "name", system)
                shown = f"round {number} of {self.rounds}" if number else "warm-up"
                self.progress.step(f"{what}: {shown}: {name}")
                os.sync()
                yield system, number > 0

    def publish(self, kind: str, system: System, *, publishers: int = 1, **job: Any) -> Run:
        """Publish with processes that start together; see `tests.bench.publisher`.

        Args:
            kind: Of publisher.
            system: To whom.
            publishers: How many; `count` is divided among them.
            job: Further fields of the publishers' `Job`.

        Raises:
            AssertionError: A publisher failed or was refused something.
        """
        count = job.pop("count") // publishers
        target = {"kind": kind, "url": system.url, "subject": system.subject}
        jobs = [target | {"count": count, "number": n} | job for n in range(publishers)]
        run = _watched(system, "publisher", jobs)
        refused = run.total("refused")
        assert not refused, f"{system.name} refused {refused}: {run.results[0].get('refusal')}"
        return run

    def read(self, system: System, **job: Any) -> Run:
        """Read with one process; see `tests.bench.reader`."""
        return _watched(system, "reader", [job])


def _watched(system: System, module: str, jobs: Sequence[dict[str, Any]]) -> Run:
    """Run workers, and see what CPU time the system uses meanwhile."""
    before_s = sum(map(cpu_seconds, system.pids()))
    run = run_workers(module, jobs)
    return replace(run, processor_s=sum(map(cpu_seconds, system.pids())) - before_s)
