"""a. Plain messages without reply: what is stored, and what is lost when publishing outruns it.

Nothing holds the publisher back but the server's socket. Lost is what was sent and cannot be read
afterwards; silently lost, what the system that lost it neither counts nor could have lost in a time
of which it says that it may have missed messages. The limit is a subscriber that only counts.
"""

from collections.abc import Iterator
from time import perf_counter_ns

from tests.bench.figures import Aim, Case
from tests.bench.harness import Bench, Limit
from tests.bench.machine import cpu_seconds
from tests.bench.systems import COMMIT, COUNTED, DEFAULT, System, await_stored, running, settle
from tests.bench.worker import Run, workers

TITLE = "plain 256 B messages, no reply, publisher not held back"
COUNTING = "counting subscriber"
SIZE_BYTES = 256
QUIET_S = 3.0
"""Seconds without a new record, after which no more will come."""


def run(bench: Bench) -> Iterator[Case]:
    """One publisher, then four: nats-server holds back each one that outruns its subscriber."""
    count = bench.pick(1_000_000, 200_000, 2_000)
    with running(bench.directory / "a", (COMMIT, DEFAULT)) as systems:
        yield from measure(bench, "a", systems, count=count)


def measure(bench: Bench, letter: str, systems: list[System], *, count: int) -> Iterator[Case]:
    """The same of systems that run, the first of them a logd."""
    takers: list[System | Limit] = [*systems, Limit(COUNTING)]
    for publishers in bench.some((1, 4)):
        found = _Cases(letter, publishers, count)
        for system, counts in bench.turns(f"{letter}, {found.who}", takers):
            settle(systems)
            if isinstance(system, Limit):
                rate = _count(bench, systems[0], publishers, count)
                if counts:
                    found.rate.add(system.name, rate)
            else:
                found.measure(bench, system, counts=counts)
        yield from found.all()


class _Cases:
    """What is asked with one number of publishers."""

    def __init__(self, letter: str, publishers: int, count: int) -> None:
        self.who = f"plain, {publishers} publisher{'s' * (publishers > 1)}"
        self._publishers = publishers
        self._count = count
        self.rate = Case(
            letter, f"{self.who}, stored of {count:,}", "records/s",
            compare={COMMIT: (DEFAULT, COUNTING)}, aims=(Aim(COMMIT, DEFAULT, 1.5),),
        )  # fmt: skip
        name = f"{self.who}, CPU time"
        self.cost = Case(letter, name, "µs/record", "lower", {COMMIT: (DEFAULT,)})
        self.lost = Case(letter, f"{self.who}, lost", "records", "lower")
        name = f"{self.who}, lost silently"
        self.silent = Case(letter, name, "records", "lower", aims=(Aim(COMMIT, None, 0),))

    def all(self) -> list[Case]:
        return [self.rate, self.cost, self.lost, self.silent]

    def measure(self, bench: Bench, system: System, *, counts: bool) -> None:
        """Publish, wait until nothing more is stored, compare with what was sent."""
        before, reported = system.stored(), system.reported()
        used_s = sum(map(cpu_seconds, system.pids()))
        job = {"count": self._count, "size_bytes": SIZE_BYTES}
        published = bench.publish("plain", system, publishers=self._publishers, **job)
        sent = published.total("sent")
        ended_ns = await_stored(system, before + sent, quiet_s=QUIET_S, clock=perf_counter_ns)
        stored = system.stored() - before
        used_s = sum(map(cpu_seconds, system.pids())) - used_s
        if not counts:
            return
        said = {name: n - reported.get(name, 0) for name, n in system.reported().items()}
        self.rate.add(system.name, stored / (ended_ns - published.begun_ns) * 1e9)
        self.rate.notes[system.name] = f"published at {published.rate('sent'):,.0f}/s"
        self.cost.add(system.name, used_s * 1e6 / max(1, stored))
        self.lost.add(system.name, sent - stored)
        told = said.get(COUNTED, 0) + _sent_in(system.gaps(), published)
        self.silent.add(system.name, max(0, sent - stored - told))
        if stored < sent:
            words = ", ".join(f"{name}: {n}" for name, n in said.items())
            self.lost.notes[system.name] = f"the system says: {words}"


def _sent_in(gaps: list[tuple[int, int]], published: Run) -> int:
    """Messages whose sending touched a gap."""
    blocks = [block for result in published.results for block in result["when"]]
    return sum(
        size
        for begun_ns, ended_ns, size in blocks
        if any(begun_ns <= until and since <= ended_ns for since, until in gaps)
    )


def _count(bench: Bench, system: System, publishers: int, count: int) -> float:
    """Records a second that reach a subscriber; on a subject that nobody stores."""
    subject = f"nobody.{system.subject}"
    job = {"kind": "counted", "address": system.url, "subject": subject, "count": count}
    with workers("reader", [job]) as reader:
        reader.go()
        job = {"subject": subject, "count": count, "size_bytes": SIZE_BYTES}
        begun_ns = bench.publish("plain", system, publishers=publishers, **job).begun_ns
        result = reader.results()
        return result.total("records") / (result.ended_ns - begun_ns) * 1e9
