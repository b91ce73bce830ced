"""Processes that want one lease, over a store that is slow and fails, driven by one seed.

A request is applied at any moment between its asking and its answer, or not at all, or is applied
and answered with an error, or once more long after its process gave up. Processes stop for a while
at any moment, as a suspended machine does, die, and start again under the same name.
"""

import heapq
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from random import Random

from penstock.router.storage.lease import (
    Answer,
    Beat,
    Claim,
    Lease,
    Look,
    Release,
    Sighting,
    Step,
    Steps,
    Wait,
    release,
    renew,
    take,
)

MS = 1_000_000
LENGTH_NS = 3_000 * MS
TERMS_KEPT = 2
"""So few that slow ones meet what was tidied away."""


@dataclass
class ModelStore:
    """What the store has; a name is made by one only, unless `exclusive` is off."""

    holders: dict[int, str] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    beats: dict[int, int] = field(default_factory=dict)
    released: set[int] = field(default_factory=set)
    exclusive: bool = True
    one_beat: bool = False
    """A late beat takes the place of a later one."""
    no_lengths: bool = False
    """It is not known how long another one's lease is."""

    def apply(self, step: Step) -> Sighting | bool | None:
        if isinstance(step, Look):
            term = step.term or max(self.holders, default=0)
            holder, beat = self.holders.get(term, ""), self.beats.get(term, 0)
            length_ns = 0 if self.no_lengths else self.lengths.get(term, 0)
            return Sighting(term, holder, beat, term in self.released, length_ns)
        if isinstance(step, Claim):
            if self.exclusive and step.term in self.holders:
                return False
            self.holders[step.term] = step.holder
            self.lengths[step.term] = step.length_ns
            for old in sorted(self.holders)[:-TERMS_KEPT]:
                del self.holders[old]
                self.beats.pop(old, None)
            return True
        if isinstance(step, Beat):
            known = 0 if self.one_beat else self.beats.get(step.term, 0)
            self.beats[step.term] = max(known, step.number)
        if isinstance(step, Release):
            self.released.add(step.term)
        return None


class FailedError(Exception):
    """A request of which its process does not know what came of it."""


@dataclass
class Process:
    """Takes the lease, uses it and renews it until it is lost; then begins again."""

    name: str
    length_ns: int
    stream_id: int = 0
    lease: Lease | None = None
    paused_until_ns: int = 0
    running: Generator[Step, Answer, None] | None = None

    def is_working(self, now_ns: int) -> bool:
        return self.lease is not None and self.lease.is_held(now_ns)


@dataclass(frozen=True)
class Ways:
    """How processes take and renew the lease; broken ones are known by their two holders."""

    take: Callable[[str, int], Steps] = take
    renew: Callable[[Lease], Steps] = renew


class World:
    """One run of it."""

    def __init__(self, seed: int, store: ModelStore, length_ns: int, ways: Ways) -> None:
        self._ways = ways
        self.random = Random(seed)
        self.store = store
        self.now_ns = 0
        self.marks: set[str] = set()
        self._length_ns = length_ns
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        # Somebody has changed the setting, and not everywhere.
        self._processes = [
            Process(name, self.random.choice([length_ns, length_ns, length_ns // 3]))
            for name in "abc"
        ]
        self._last = ""
        for process in self._processes:
            self._start(process)

    def run(self, until_ns: int) -> None:
        while self._events and self.now_ns < until_ns:
            self.now_ns, _, event = heapq.heappop(self._events)
            event()
            self._check()
            if self.random.random() < 0.01:
                self._disturb()

    def _check(self) -> None:
        working = [it.name for it in self._processes if it.is_working(self.now_ns)]
        assert len(working) <= 1, f"{working} hold it at {self.now_ns / 1e9:.3f} s"
        if working and working[0] != self._last:
            self.marks.add("handed over" if self._last else "taken")
            self._last = working[0]

    def _disturb(self) -> None:
        process = self.random.choice(self._processes)
        if self.random.random() < 0.5:
            long = self.random.random() < 0.5
            pause_ns = self.random.randrange(1, 3 * self._length_ns if long else 500 * MS)
            process.paused_until_ns = self.now_ns + pause_ns
            self.marks.add("paused")
            return
        self.marks.add("killed")
        process.stream_id += 1
        process.lease = None
        self._at(self.random.randrange(1, 2 * self._length_ns), lambda: self._start(process))

    def _at(self, delay_ns: int, event: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now_ns + delay_ns, self._count, event))

    def _start(self, process: Process) -> None:
        process.stream_id += 1
        process.lease = None
        process.running = self._live(process)
        self._ask(process, next(process.running))

    def _live(self, process: Process) -> Generator[Step, Answer, None]:
        while True:
            try:
                lease = yield from self._ways.take(process.name, process.length_ns)
            except FailedError:
                continue
            process.lease = lease
            while not lease.lost:
                try:
                    if self.random.random() < 0.01:
                        self.marks.add("released")
                        process.lease = None
                        yield from release(lease)
                        break
                    yield Wait()
                    yield from self._ways.renew(lease)
                except FailedError:
                    self.marks.add("renewal failed")
            self.marks.add("gone" if process.lease is None else "lost")
            process.lease = None

    def _ask(self, process: Process, step: Step) -> None:
        asked_ns, stream_id = self.now_ns, process.stream_id
        outcome: list[Sighting | bool | None] = []
        if isinstance(step, Wait):
            delay_ns = self.random.randrange(self._length_ns // 2)
            self._at(delay_ns, lambda: self._answer(process, stream_id, step, asked_ns, [None]))
            return
        slow = self.random.random() < 0.05
        apply_ns = self.random.randrange(1, 2 * self._length_ns if slow else 50 * MS)
        if self.random.random() < 0.97:
            self._at(apply_ns, lambda: outcome.append(self.store.apply(step)))
        if self.random.random() < 0.05:  # a client sent it twice, and both get there
            again_ns = self.random.randrange(1, 2 * self._length_ns)
            self._at(again_ns, lambda: self._apply_again(step))
        gives_up = self.random.random() < 0.05
        wait_ns = self.random.randrange(1, 100 * MS) if gives_up else apply_ns + 20 * MS
        self._at(wait_ns, lambda: self._answer(process, stream_id, step, asked_ns, outcome))

    def _apply_again(self, step: Step) -> None:
        self.store.apply(step)

    def _answer(
        self,
        process: Process,
        stream_id: int,
        step: Step,
        asked_ns: int,
        outcome: list[Sighting | bool | None],
    ) -> None:
        if process.stream_id != stream_id:
            return
        if (late_ns := process.paused_until_ns - self.now_ns) > 0:
            self._at(late_ns, lambda: self._answer(process, stream_id, step, asked_ns, outcome))
            return
        assert process.running is not None
        if outcome and self.random.random() < 0.98:
            upcoming = process.running.send(Answer(outcome[0], asked_ns, self.now_ns))
        else:
            upcoming = process.running.throw(FailedError())
        self._ask(process, upcoming)


def run(seed: int, store: ModelStore | None = None, ways: Ways | None = None) -> World:
    world = World(seed, store or ModelStore(), LENGTH_NS, ways or Ways())
    world.run(120 * 1000 * MS)
    return world
