"""A collector's delivery whose records go into other queues after a restart, or a reload.

The checkpoint is the collector's own, with what it knows of how records were sorted; so are the
steps of a reload. A reload takes its time between its announcement and the change.
"""

import dataclasses
from collections.abc import Coroutine
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar, cast

from typing_extensions import override

from penstock.collector.agent.agent import Rerouting
from penstock.collector.checkpoint.state import SPOOL_ORIGIN, URGENT_ORIGIN, State, read_state
from penstock.collector.delivery.ordered_queue import QueueKey
from penstock.collector.sources.files.identity import FileState
from penstock.service import ServiceError
from tests.sim.delivery_world import LIMITS, MS, POISON, ModelLogd, World

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
        self.announced = False
        self.positions: dict[str, int] = {}
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
        elif dice < 0.3 or self._is_full:
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
        self.announced = False
        return {SPOOL_ORIGIN: state.cursor, FILE_ORIGIN: state.files[0].position}, state.queues

    @property
    def _is_full(self) -> bool:
        """Whether no checkpoint can be written: the disk is full, but in kind times."""
        return self.now_ns < self.full_until_ns and not self.kind

    @override
    def save(self) -> None:
        if self._is_full:
            return
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
        if dice < 1 - self.reloads or self.announced:
            return False
        self.announced, after = True, self.random.randrange(4)
        fingerprint = fingerprint_of(after)
        life, resorting = self.life, self._rerouting()
        try:
            _done(resorting.announce(fingerprint))
        except ServiceError:
            self.announced = False
            self.marks.add("refused a reload")
            return True

        def crash() -> None:
            if life == self.life and not self.kind:
                self.start()

        def apply() -> None:
            if life == self.life:
                incarnation = self.checkpointer.incarnation
                if resorting.apply(fingerprint) != incarnation:
                    self.marks.add("begun again while it runs")
                self.before, self.version, self.announced = self.version, after, False
                if self.random.random() < 0.5:
                    self.full_until_ns = self.now_ns + 200 * MS
                    self.later(crash, 100)
                self.marks.add("reloaded")

        self.later(apply)
        return True

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

    def _rerouting(self) -> Rerouting:
        return Rerouting(
            self.delivery, cast("Any", self.checkpointer), fingerprint_of(self.version)
        )

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
