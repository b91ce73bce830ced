"""A collector's delivery whose records go into other queues after a restart, or a reload.

The checkpoint is the collector's own, with what it knows of how records were sorted; so are the
steps of a reload. A reload takes its time between its announcement and the change.
"""

import dataclasses
from collections.abc import Callable, Coroutine
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar, cast

from typing_extensions import override

from penstock.collector.agent.agent import Rerouting
from penstock.collector.checkpoint.state import SPOOL_ORIGIN, URGENT_ORIGIN, State, read_state
from penstock.collector.delivery.core import Read
from penstock.collector.delivery.ordered_queue import QueueKey
from penstock.collector.sources.files.identity import FileState
from penstock.service import ServiceError
from tests.sim.delivery_world import LIMITS, MS, POISON, ModelLogd, Unit, World

FILE_ORIGIN = "file/1"
SUBJECTS = 3
FICKLE = 3
"""The version that sorts a record now so, now otherwise."""


class ResortingWorld(World):
    """One seeded run."""

    units: ClassVar = {SPOOL_ORIGIN: 120, FILE_ORIGIN: 60}
    limits = dataclasses.replace(LIMITS, queues_max=100)

    def __init__(self, seed: int, *, logd: ModelLogd | None = None) -> None:
        self.state = State(files=[_file(0)])
        self.saved = self.state.as_document()
        self.incarnations: list[object] = []
        self.version = self.before = 0
        self.full_until_ns = 0
        self.read_before: dict[str, int] = {}
        self.announced: int | None = None
        self.rerouting: Rerouting
        self.rerouted = False
        self.positions: dict[str, int] = {}
        self.ends: dict[str, int] = {}
        self.reloads = Random(seed).choice((0.01, 0.03, 0.1))
        super().__init__(seed, logd=logd)

    @override
    def sorted(self, queue: QueueKey) -> QueueKey:
        number = int(queue.subject.rpartition(".")[2]) * (self.version + 1) % SUBJECTS
        if self.version == FICKLE:
            number = self.random.randrange(SUBJECTS)
        return queue._replace(subject=f"subject.{number}")

    @override
    def producer(self, queue: QueueKey) -> QueueKey:
        incarnation = self.checkpointer.incarnation
        if incarnation not in self.incarnations:
            self.incarnations.append(incarnation)
        return queue._replace(origin=f"{queue.origin}#{self.incarnations.index(incarnation)}")

    @override
    def restored(self) -> tuple[dict[str, int], dict[QueueKey, int]]:
        dice = self.random.random()
        if dice < 0.15:
            self.version = self.random.randrange(4)
        elif dice < 0.5 or self._is_full:
            self.version = self.before  # the reload's change was taken back
        self.before = self.version
        self.closed = f"subject.{self.random.randrange(SUBJECTS)}"
        for origin, position in self.positions.items():
            self.read_before[origin] = max(self.read_before.get(origin, 0), position)
        state = self.state = read_state(self.saved)
        ends = {SPOOL_ORIGIN: len(self.origins[SPOOL_ORIGIN]), URGENT_ORIGIN: 0}
        if state.fit_to_routing(fingerprint_of(self.version), ends) and self.life:
            self.marks.add("begun again")
        self.saved = state.as_document()
        self.checkpointer = SimpleNamespace(
            routing=state.routing, incarnation=state.incarnation, save=self._save_now
        )
        self.checkpointer.settle_routing = lambda: None
        self.announced = None
        self.ends = {}
        return {SPOOL_ORIGIN: state.cursor, FILE_ORIGIN: state.files[0].position}, state.queues

    @property
    def _is_full(self) -> bool:
        """Whether no checkpoint can be written: the disk is full, but in kind times."""
        return self.now_ns < self.full_until_ns and not self.kind

    @override
    def save(self) -> None:
        if self._is_full:
            return
        self.checkpointer.settle_routing()
        if self.rerouted and self.checkpointer.routing:
            self.marks.add("settled")
        cursors = {origin: self.delivery.cursor(origin) for origin in self.origins}
        self.saved = State(
            incarnation=self.checkpointer.incarnation,
            cursor=cursors[SPOOL_ORIGIN],
            queues=self.delivery.done(),
            files=[_file(cursors[FILE_ORIGIN])],
            routing=self.checkpointer.routing,
        ).as_document()

    @override
    def takes(self, subject: str) -> bool:
        return self.kind or subject != self.closed

    @override
    def disturbed(self, dice: float) -> bool:
        if self.random.random() < 0.05:
            self.closed = f"subject.{self.random.randrange(SUBJECTS)}"
        if dice < 1 - self.reloads or self.announced is not None:
            return False
        after = self.random.randrange(4)
        try:
            _done(self.rerouting.announce(fingerprint_of(after)))
        except ServiceError:
            self.marks.add("refused a reload")
            return True
        self.announced = after
        self._in_this_life(self._change, self.random.choice((5, 30)))
        return True

    def _change(self) -> None:
        """Read by the version that was announced, if that has not come within a unit of work."""
        if self.announced is None:
            return
        incarnation = self.checkpointer.incarnation
        if self.rerouting.apply(fingerprint_of(self.announced)) != incarnation:
            self.marks.add("begun again while it runs")
        self.before, self.version, self.announced = self.version, self.announced, None
        self.rerouted = True
        dice = self.random.random()
        if dice < 0.3:
            self.full_until_ns = self.now_ns + 200 * MS
        if dice < 0.8:
            self._in_this_life(self._crash, self.random.choice((50, 100, 150)))
        self.marks.add("reloaded")

    def _crash(self) -> None:
        if not self.kind:
            self.start()

    def _in_this_life(self, action: Callable[[], None], delay_ms: float) -> None:
        life = self.life
        self.later(lambda: action() if life == self.life else None, delay_ms)

    @override
    def check(self) -> None:
        """Each record is in the log, or in quarantine if logd cannot take it; maybe twice."""
        for origin, units in self.origins.items():
            assert self.delivery.cursor(origin) == len(units), f"{origin} is not done"
        logged = [
            (queue.origin.partition("#")[0], *record)
            for queue, log in self.logd.stored.items()
            for record in log
        ]
        kept = {(queue.origin, s, line) for (queue, s), line in self.quarantined.items()}
        found, expected = {*logged, *kept}, set()
        for origin, units in self.origins.items():
            expected |= {(origin, s, line) for unit in units for _, s, line in unit.records}
        assert found == expected, f"{len(expected - found)} records are lost"
        assert {line for *_, line in kept} <= {POISON}
        for queue, log in self.logd.stored.items():
            sequences = [sequence for sequence, _ in log]
            assert sequences == sorted(set(sequences)), queue
        if len(logged) > len(set(logged)):
            self.marks.add("repeated")
            assert self.marks & {"begun again", "begun again while it runs"}

    @override
    def start(self) -> None:
        super().start()
        self.rerouted = False
        self.rerouting = Rerouting(
            self.delivery,
            cast("Any", self.checkpointer),
            fingerprint_of(self.version),
            self._reached,
        )

    def _reached(self) -> dict[str, int]:
        read = self.delivery.reached()
        return {origin: max(at, self.ends.get(origin, 0)) for origin, at in read.items()}

    @override
    def _take(self, origin: str, position: int, unit: Unit) -> None:
        """A reload that was announced may come while a unit is in work."""
        self.ends[origin] = position + 1
        middle = self.random.randrange(len(unit.records) + 1)
        self._hand_over(position, unit.records[:middle])
        if self.announced is not None and self.random.random() < 0.5:
            self.closed = self.sorted(unit.records[0][0]).subject
            self._change()
        self._hand_over(position, unit.records[middle:])
        self.positions[origin] = position + 1
        self._handle(Read(origin, position + 1))

    async def _save_now(self) -> bool:
        self.save()
        return not self._is_full


def fingerprint_of(version: int) -> str:
    """What decides where records go."""
    return "" if version == FICKLE else f"v{version}"


def _file(position: int) -> FileState:
    return FileState("source", 1, 1, 1, "00", 1, "/x.log", position)


def _done(steps: Coroutine[Any, Any, None]) -> None:
    """Take a coroutine to its end that waits for nothing."""
    try:
        steps.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")
