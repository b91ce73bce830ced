"""The delivery core under thousands of bad days; each safety rule has a twin that breaks it."""

from collections.abc import Callable

import pytest

from penstock.collector.delivery.core import Delivery
from penstock.collector.delivery.ordered_queue import OrderedQueue
from tests.sim.delivery_world import ModelLogd, World, run
from tests.sim.twins import Mutation

SEEDS = 100


@pytest.mark.parametrize("block", range(4))
def test_every_record_arrives_once_and_in_order(block: int) -> None:
    marks: set[str] = set()
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        world = run(seed)
        try:
            world.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        marks |= world.marks
    rare = {"behind", "refused", "collector restarted", "logd restarted"}
    assert marks >= rare, "the schedules are too kind to mean anything"


def caught(make_logd: Callable[[], ModelLogd] = ModelLogd) -> bool:
    """Whether some seed shows a violation."""
    for seed in range(SEEDS):
        try:
            run(seed, logd=make_logd()).check()
        except AssertionError:
            return True
    return False


def test_the_world_catches_a_logd_that_ignores_the_previous_sequence() -> None:
    assert caught(lambda: ModelLogd(checks_previous=False))


def test_the_world_catches_a_logd_that_acks_before_its_sync() -> None:
    assert caught(lambda: ModelLogd(acks_before_sync=True))


def test_the_world_catches_a_cursor_that_passes_pending_records(code: Mutation) -> None:
    code.replace(Delivery, "cursor", lambda self, origin: self._read[origin])
    assert caught()


def test_the_world_catches_a_queue_that_takes_the_sequence_in_a_refusal_for_an_ack(
    code: Mutation,
) -> None:
    def believe(self: OrderedQueue, last: int, now_ns: int, jitter: float) -> None:
        self.chain = last
        self.done = max(self.done, last)
        self.requeue()
        self._forget_done()

    code.replace(OrderedQueue, "resume_after", believe)
    assert caught()


def test_the_world_catches_a_queue_that_skips_to_what_logd_names_without_cutting(
    code: Mutation,
) -> None:
    def rechain(self: OrderedQueue, last: int, now_ns: int, jitter: float) -> None:
        self.requeue()
        self.chain = last

    code.replace(OrderedQueue, "resume_after", rechain)
    assert caught()


def test_the_world_catches_a_queue_that_trusts_refusals_of_earlier_attempts(code: Mutation) -> None:
    def skip_what_was_refused(self: OrderedQueue, request: int) -> None:
        del request
        lost = self.flight[0].batch
        self.requeue()
        self.waiting.popleft()
        self.done = max(self.done, lost.last)

    code.replace(OrderedQueue, "refuse", skip_what_was_refused)
    assert caught()


def test_the_world_catches_a_queue_that_takes_a_failure_for_an_ack(code: Mutation) -> None:
    def give_up(self: OrderedQueue, reason: str, now_ns: int, jitter: float) -> None:
        for flight in list(self.flight):
            self.stored(flight.batch.last)

    code.replace(OrderedQueue, "back_off", give_up)
    assert caught()


def test_the_same_seed_gives_the_same_run() -> None:
    def story(world: World) -> object:
        return world.logd.stored, world.quarantined, world.now_ns, world.count

    assert story(run(7)) == story(run(7))
