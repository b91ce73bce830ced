"""The emitter's delivery core, simulated; and twins of it that are wrong, which must be caught."""

import os
from collections import Counter
from collections.abc import Callable

import pytest
from typing_extensions import override

from penstock.specs import EmitterLimits
from penstock.specs.emit.delivery.core import Batch, Delivery, Effect, Send
from penstock.specs.emit.delivery.queue import RecordQueue
from tests.sim.emitter_world import World

SEEDS = range(1000)
Make = Callable[[RecordQueue, EmitterLimits], Delivery]


class ForgetsOnReconnect(Delivery):
    """Does not send the unanswered batch again."""

    @override
    def _connected(self, now_ns: int) -> list[Effect]:
        self._flight = None
        return super()._connected(now_ns)


class RenumbersOnReconnect(Delivery):
    """Sends the unanswered batch again under a new sequence."""

    @override
    def _connected(self, now_ns: int) -> list[Effect]:
        if self._flight is not None:
            self._sequence += 1
            self._flight = Batch(self._sequence, self._flight.records)
        return super()._connected(now_ns)


class RefillsOnReconnect(Delivery):
    """Puts newer records under a sequence that may have been taken already."""

    @override
    def _connected(self, now_ns: int) -> list[Effect]:
        if self._flight is not None and self._queue.records:
            more = self._queue.take(records_max=3, bytes_max=100)
            self._flight = Batch(self._flight.sequence, (*self._flight.records, *more))
        return super()._connected(now_ns)


class DropsWhatIsRefusedForNow(Delivery):
    """Takes every nack as final."""

    @override
    def _nacked(self, sequence: int, retry: bool, jitter: float, now_ns: int) -> list[Effect]:
        return super()._nacked(sequence, False, jitter, now_ns)


class TrustsTheSocket(Delivery):
    """Takes a batch for delivered when it was written."""

    @override
    def _cut(self, now_ns: int) -> Send:
        effect = super()._cut(now_ns)
        self._answered(effect.batch.sequence, self.acked)
        return effect


class SendsAhead(Delivery):
    """Goes on with the next batch while one that was refused for now waits."""

    _waiting: Batch | None = None

    @override
    def _nacked(self, sequence: int, retry: bool, jitter: float, now_ns: int) -> list[Effect]:
        if retry and self._flight is not None and self._flight.sequence == sequence:
            self._waiting, self._flight = self._flight, None
            return []
        return super()._nacked(sequence, retry, jitter, now_ns)

    @override
    def _answered(self, sequence: int, counts: Counter[str]) -> list[Effect]:
        effects = super()._answered(sequence, counts)
        if self._waiting is not None and self._flight is None:
            self._flight, self._waiting = self._waiting, None
            return [*effects, Send(self._flight)]
        return effects


class NeverGivesUpWaiting(Delivery):
    """Waits for an answer for ever."""

    @override
    def _expire(self, now_ns: int) -> list[Effect]:
        return []


def world(seed: int, make: Make = Delivery) -> World:
    run = World(seed, make)
    run.run()
    run.check()
    return run


def test_every_record_is_taken_once_in_order_or_counted() -> None:
    only = os.environ.get("SEED")
    marks: Counter[str] = Counter()
    for seed in [int(only)] if only else SEEDS:
        try:
            marks += world(seed).marks
        except AssertionError as error:
            pytest.fail(f"make sim SEED={seed}: {error}")
    assert marks
    if not only:
        reached = {"close", "repeat", "nack", "refused", "silence", "break"}
        assert reached <= marks.keys(), "the simulation is too kind"


@pytest.mark.parametrize(
    "twin",
    [
        ForgetsOnReconnect,
        RenumbersOnReconnect,
        RefillsOnReconnect,
        DropsWhatIsRefusedForNow,
        TrustsTheSocket,
        SendsAhead,
        NeverGivesUpWaiting,
    ],
)
def test_wrong_twin_is_caught(twin: Make) -> None:
    def survives(seed: int) -> bool:
        try:
            world(seed, twin)
        except AssertionError:
            return False
        return True

    assert not all(survives(seed) for seed in SEEDS)
