"""The lease of a store of checkpoints under thousands of bad days, and twins that break it."""

from collections.abc import Callable, Generator

import pytest

from penstock.router.storage import lease
from penstock.router.storage.lease import Lease, Rules
from tests.sim.lease_world import ModelStore, Ways, run

SEEDS = 300


@pytest.mark.parametrize("block", range(4))
def test_never_do_two_hold_it(block: int) -> None:
    marks: set[str] = set()
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        try:
            marks |= run(seed).marks
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    rare = {"handed over", "released", "lost", "renewal failed", "paused", "killed"}
    assert marks >= rare, "the schedules are too kind to mean anything"


def caught(make_store: Callable[[], ModelStore] = ModelStore, ways: Ways | None = None) -> bool:
    """Whether some seed shows two holders."""
    for seed in range(4 * SEEDS):
        try:
            run(seed, make_store(), ways)
        except AssertionError:
            return True
    return False


def test_the_world_catches_a_store_in_which_two_make_one_name() -> None:
    assert caught(lambda: ModelStore(exclusive=False))


def test_the_world_catches_a_store_in_which_a_late_beat_hides_a_later_one() -> None:
    assert caught(lambda: ModelStore(one_beat=True))


def test_the_world_catches_a_longer_lease_that_nobody_knows_of() -> None:
    assert caught(lambda: ModelStore(no_lengths=True))


def test_the_world_catches_a_lease_that_counts_from_the_answer() -> None:
    def renew(held: Lease) -> lease.Steps:
        beat = yield lease.Beat(held.term, held.beats)
        held.beats += 1
        look = yield lease.Look()
        assert isinstance(look.found, lease.Sighting)
        held.lost = look.found.term > held.term
        held.since_ns = look.answered_ns
        del beat
        return held

    assert caught(ways=Ways(renew=renew))


def test_the_world_catches_a_beat_without_a_look() -> None:
    def renew(held: Lease) -> lease.Steps:
        held.beats += 1
        beat = yield lease.Beat(held.term, held.beats)
        held.since_ns = beat.asked_ns
        return held

    assert caught(ways=Ways(renew=renew))


def by(rules: Rules) -> Ways:
    return Ways(take=lambda holder, length_ns: lease.take(holder, length_ns, rules))


def test_the_world_catches_a_holder_that_is_not_outlasted() -> None:
    def at_once(claimed_ns: int, length_ns: int) -> Generator[lease.Step, lease.Answer, None]:
        del claimed_ns, length_ns
        yield from ()

    assert caught(ways=by(Rules(outlast=at_once)))


def test_the_world_catches_who_takes_its_own_claim_for_a_lease() -> None:
    def is_free(found: lease.Sighting, holder: str) -> bool:
        return found.term == 0 or found.released or found.holder == holder

    assert caught(ways=by(Rules(is_free=is_free)))


def test_the_world_catches_an_old_term_that_was_tidied_away() -> None:
    def take(holder: str, length_ns: int) -> lease.Steps:
        while True:
            found = yield from lease.given_up(holder, length_ns, Rules())
            claim = yield lease.Claim(found.term + 1, holder, length_ns)
            if claim.found:
                return Lease(found.term + 1, length_ns, claim.asked_ns)

    assert caught(ways=Ways(take=take))
