"""The steps of a lease of a store, each with an answer of our own."""

from collections.abc import Generator

from penstock.router.storage.lease import (
    Answer,
    Beat,
    Claim,
    Lease,
    Look,
    Sighting,
    Step,
    Steps,
    Wait,
    outlast,
    renew,
    take,
)

SECOND_NS = 1_000_000_000
LENGTH_NS = 30 * SECOND_NS
OTHER = Sighting(term=4, holder="other", beat=9, length_ns=LENGTH_NS)
FREE = Sighting(term=4, holder="other", beat=9, released=True, length_ns=LENGTH_NS)
MINE = Sighting(term=5, holder="me", length_ns=LENGTH_NS)


class Run:
    """Takes steps one by one; a step is answered at the second that is named."""

    def __init__(self, steps: Generator[Step, Answer, Lease | None]) -> None:
        self._steps = steps
        self.step: Step | None = next(steps)
        self.lease: Lease | None = None

    def answer(self, found: Sighting | bool | None, second: int = 0) -> Step | None:
        """The next step; None: it is done."""
        time_ns = second * SECOND_NS
        try:
            self.step = self._steps.send(Answer(found, time_ns, time_ns))
        except StopIteration as done:
            self.step, self.lease = None, done.value
        return self.step


def claimed(steps: Steps, found: Sighting, before_claim: Sighting) -> Run:
    """A run whose claim of term 5 was answered at second 40."""
    run = Run(steps)
    step = run.answer(found, 0)
    while step == Wait():
        run.answer(None, 30)
        step = run.answer(found, 30)
    assert step == Claim(5, "me", LENGTH_NS)
    assert run.answer(True, 40) == Look()
    run.answer(MINE, 40)
    if run.step == Look(4):
        run.answer(before_claim, 40)
    return run


def test_a_holder_that_was_silent_to_the_end_is_not_waited_for_again() -> None:
    run = claimed(take("me", LENGTH_NS), OTHER, OTHER)
    assert run.step == Beat(5, 1)
    assert run.answer(None, 41) == Look()
    assert run.answer(MINE, 41) is None
    assert run.lease == Lease(5, LENGTH_NS, since_ns=41 * SECOND_NS, beats=1)


def test_a_holder_that_beat_just_before_the_claim_is_waited_for_as_long_again() -> None:
    late = Sighting(term=4, holder="other", beat=10, length_ns=LENGTH_NS)
    run = claimed(take("me", LENGTH_NS), OTHER, late)
    assert run.step == Wait()
    assert run.answer(None, 69) == Wait()
    assert run.answer(None, 70) == Beat(5, 1)


def test_a_lease_that_was_let_go_is_had_at_once() -> None:
    run = claimed(take("me", LENGTH_NS), FREE, FREE)
    assert run.step == Beat(5, 1)


def test_a_holder_that_comes_back_does_not_wait_for_itself_once_it_has_beaten() -> None:
    own = Sighting(term=4, holder="me", beat=1, length_ns=LENGTH_NS)
    assert Run(take("me", LENGTH_NS)).answer(own) == Claim(5, "me", LENGTH_NS)
    assert Run(take("me", LENGTH_NS)).answer(Sighting()) == Claim(1, "me", LENGTH_NS)
    claimed_only = Sighting(term=4, holder="me", beat=0, length_ns=LENGTH_NS)
    assert Run(take("me", LENGTH_NS)).answer(claimed_only) == Wait()


def test_a_claim_that_somebody_else_made_first_begins_again() -> None:
    run = Run(take("me", LENGTH_NS))
    run.answer(FREE)
    assert run.step == Claim(5, "me", LENGTH_NS)
    assert run.answer(False) == Look()
    assert run.answer(FREE) == Claim(5, "me", LENGTH_NS)


def test_a_claim_below_the_newest_term_begins_again() -> None:
    run = Run(take("me", LENGTH_NS))
    run.answer(FREE)
    assert run.answer(True) == Look()
    assert run.answer(Sighting(term=6, holder="third")) == Look()
    assert run.answer(Sighting(term=6, holder="third", released=True)) == Claim(7, "me", LENGTH_NS)


def test_silence_lasts_from_the_end_of_one_look_to_the_beginning_of_another() -> None:
    run = Run(take("me", LENGTH_NS))
    assert run.answer(OTHER, 5) == Wait()
    for second in (10, 34):
        assert run.answer(None, second) == Look()
        assert run.answer(OTHER, second) == Wait()
    assert run.answer(None, 35) == Look()
    assert run.answer(OTHER, 35) == Claim(5, "me", LENGTH_NS)


def test_a_lease_is_renewed_from_when_the_beat_was_asked_for_until_somebody_makes_a_term() -> None:
    lease = Lease(5, LENGTH_NS, since_ns=0)
    run = Run(renew(lease))
    assert run.step == Beat(5, 1)
    run.answer(None, 20)
    assert run.answer(MINE, 25) is None
    assert (lease.since_ns, lease.lost) == (20 * SECOND_NS, False)
    assert lease.is_held(50 * SECOND_NS - 1)
    assert not lease.is_held(50 * SECOND_NS)
    run = Run(renew(lease))
    run.answer(None, 30)
    run.answer(Sighting(term=6, holder="other"), 30)
    assert lease.lost
    assert (lease.since_ns, lease.is_held(30 * SECOND_NS)) == (20 * SECOND_NS, False)


def test_an_end_is_waited_for_and_no_longer() -> None:
    run = Run(outlast(0, LENGTH_NS))
    assert run.answer(None, 29) == Wait()
    assert run.answer(None, 30) is None
