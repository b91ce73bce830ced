"""A batch's requests, with time and dice of our own."""

import random
from collections.abc import Callable, Iterable
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from penstock.router.delivery.breaker import Breaker
from penstock.router.delivery.core import (
    Answered,
    Ask,
    Confirmed,
    Delivered,
    Delivery,
    Effect,
    Event,
    Part,
    Policy,
    Refused,
    Retrying,
    Send,
    Ticked,
)
from penstock.router.delivery.rate_limiter import RateLimiter
from penstock.router.delivery.result import (
    Accepted,
    DeliveryResult,
    Failed,
    Fault,
    PartialFailure,
    Paused,
    Rejected,
    Retryable,
    Success,
    TooLarge,
)
from penstock.router.sinks.http.settings import RequestRetry

SECOND_NS = 1_000_000_000
FAULT = Fault("400", "no such field")


class LoadedDice(random.Random):
    """Always rolls the highest number."""

    @override
    def random(self) -> float:
        return 1.0


def delivery(*requests: int, breaker: Breaker | None = None, **policy: float) -> Delivery:
    limits = RequestRetry(
        initial_backoff_s=1.0, max_backoff_s=8.0, max_paused_backoff_s=8.0
    ).limits()
    made = Policy(**policy)  # type: ignore[arg-type]
    return Delivery(requests, policy=made, breaker=breaker or Breaker(limits, LoadedDice()))


def part(*records: int, request: int = 0) -> Part:
    return Part(request, records)


def test_requests_go_one_after_the_other_in_their_order() -> None:
    machine = delivery(2, 1)
    assert machine.handle(Ticked(), 0) == [Send(part(0, 1), 1)]
    assert machine.handle(Ticked(), 0) == []
    assert machine.handle(Answered(Success()), 0) == [
        Delivered(part(0, 1)),
        Send(part(0, request=1), 1),
    ]
    assert machine.handle(Answered(Success()), 0) == [Delivered(part(0, request=1))]
    assert machine.done
    assert machine.next_deadline_ns() is None


@pytest.mark.parametrize("verdict", [Retryable("full"), Paused("401"), Failed(FAULT)])
def test_what_may_pass_is_tried_again_after_a_pause_that_doubles(verdict: DeliveryResult) -> None:
    machine, now_ns, pauses = delivery(1, suspect_after=99), 0, []
    machine.handle(Ticked(), 0)
    for attempt in range(2, 7):
        (effect,) = machine.handle(Answered(verdict), now_ns)
        assert isinstance(effect, Retrying)
        deadline_ns = machine.next_deadline_ns()
        assert deadline_ns is not None
        assert machine.handle(Ticked(), deadline_ns - 1) == []
        assert machine.handle(Ticked(), deadline_ns) == [Send(part(0), attempt)]
        pauses.append((deadline_ns - now_ns) / SECOND_NS)
        now_ns = deadline_ns
    assert pauses == [1, 2, 4, 8, 8]


def test_retry_after_lengthens_a_pause_within_reason() -> None:
    machine = delivery(1)
    machine.handle(Ticked(), 0)
    machine.handle(Answered(Retryable("429", 20)), 0)
    assert machine.next_deadline_ns() == 20 * SECOND_NS
    machine.handle(Ticked(), 20 * SECOND_NS)
    machine.handle(Answered(Retryable("503", 1e9)), 20 * SECOND_NS)
    assert machine.next_deadline_ns() == (20 + 300) * SECOND_NS


def paced(*requests: int) -> tuple[Delivery, RateLimiter]:
    """A delivery of a record a second."""
    limiter = RateLimiter(records_per_s=1, bytes_per_s=None, now_ns=0)
    breaker = Breaker(RequestRetry(initial_backoff_s=1.0).limits(), LoadedDice())
    machine = Delivery(requests, policy=Policy(), breaker=breaker, rate_limiter=limiter)
    return machine, limiter


def test_a_rate_limit_keeps_requests_apart() -> None:
    machine, limiter = paced(3, 1)
    assert machine.handle(Ticked(), 0) == [Send(part(0, 1, 2), 1)]
    limiter.book(records=3, size=0, now_ns=0)
    assert machine.handle(Answered(Success()), 0) == [Delivered(part(0, 1, 2))]
    assert machine.next_deadline_ns() == 2 * SECOND_NS
    assert machine.handle(Ticked(), 2 * SECOND_NS - 1) == []
    assert machine.handle(Ticked(), 2 * SECOND_NS) == [Send(part(0, request=1), 1)]


def test_a_request_that_is_sent_again_waits_for_the_later_of_the_breaker_and_the_rate() -> None:
    machine, limiter = paced(5)
    machine.handle(Ticked(), 0)
    limiter.book(records=5, size=0, now_ns=0)
    machine.handle(Answered(Retryable("503", 2)), 0)
    assert machine.next_deadline_ns() == 4 * SECOND_NS
    assert machine.handle(Ticked(), 4 * SECOND_NS) == [Send(part(*range(5)), 2)]
    machine.handle(Answered(Retryable("503", 9)), 4 * SECOND_NS)
    assert machine.next_deadline_ns() == 13 * SECOND_NS


def test_what_is_accepted_is_asked_for_while_the_next_request_waits_for_the_rate() -> None:
    machine, limiter = paced(100, 1)
    machine.handle(Ticked(), 0)
    limiter.book(records=100, size=0, now_ns=0)
    assert machine.handle(Answered(Accepted("a")), 0) == []
    assert machine.next_deadline_ns() == SECOND_NS
    assert machine.handle(Ticked(), SECOND_NS) == [Ask(("a",))]
    confirmed = machine.handle(Confirmed({"a"}), SECOND_NS)
    assert confirmed == [Delivered(part(*range(100)))]
    assert machine.next_deadline_ns() == 99 * SECOND_NS
    assert machine.handle(Ticked(), 99 * SECOND_NS) == [Send(part(0, request=1), 1)]


@pytest.mark.parametrize("verdict", [TooLarge(FAULT), Rejected(FAULT)])
def test_a_refused_request_is_halved_until_the_lone_record_is_found(
    verdict: DeliveryResult,
) -> None:
    poison = 5
    outcome = run(delivery(8), lambda it: verdict if poison in it.records else Success())
    assert outcome.delivered == [0, 1, 2, 3, 4, 6, 7]
    assert [(refused.part, refused.fault) for refused in outcome.refused] == [(part(5), FAULT)]
    assert outcome.sent <= 2 * 4


@pytest.mark.parametrize("named", [False, True])
def test_a_destination_that_refuses_every_record_gets_them_again_after_pauses(named: bool) -> None:
    """One wrong setting once made 300 dead letters with 599 requests."""
    breaker = Breaker(
        RequestRetry(initial_backoff_s=1.0, max_paused_backoff_s=8.0).limits(), LoadedDice()
    )
    is_wrong = True

    def classify_answer(it: Part) -> DeliveryResult:
        if not is_wrong:
            return Success()
        return (
            PartialFailure(tuple((n, FAULT) for n in range(len(it.records))))
            if named
            else Rejected(FAULT)
        )

    machine = delivery(100, 100, 100, breaker=breaker)
    outcome = run(machine, classify_answer, steps=30)
    rejected = breaker.circuit
    assert (rejected.state, rejected.reason) == ("rejected", FAULT.reason)
    assert outcome.refused == []
    before = outcome.sent
    assert run(machine, classify_answer, steps=10).sent <= 5, "a request a pause"
    assert before < 30
    is_wrong = False
    outcome = run(machine, classify_answer)
    assert machine.done
    assert outcome.delivered == sorted([*range(100)] * 3)
    assert breaker.circuit.state == "closed"


def test_records_that_are_refused_at_the_beginning_are_refused_once_others_are_taken() -> None:
    outcome = run(delivery(40), lambda it: Rejected(FAULT) if min(it.records) < 15 else Success())
    assert sorted(it.part.records[0] for it in outcome.refused) == [*range(15)]
    assert outcome.delivered == [*range(15, 40)]


def test_where_order_is_kept_records_that_are_refused_at_the_beginning_are_overtaken_by_none() -> (
    None
):
    taken: list[int] = []

    def classify_answer(it: Part) -> DeliveryResult:
        if min(it.records) < 50:
            return Rejected(FAULT)
        taken.extend(it.records)
        return Success()

    outcome = run(delivery(80, keeps_order=True), classify_answer)
    assert taken == [*range(50, 80)]
    assert [it.part.records[0] for it in outcome.refused] == [*range(50)]


def test_where_order_is_kept_a_destination_that_refuses_all_gets_no_more_than_a_hundred_alone() -> (
    None
):
    breaker = Breaker(RequestRetry().limits(), LoadedDice())
    machine = delivery(1000, breaker=breaker, keeps_order=True)
    outcome = run(machine, lambda it: Rejected(FAULT), steps=150)
    assert breaker.circuit.state == "rejected"
    assert outcome.refused == []
    assert outcome.sent < 100 + 40


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    refused=st.sets(st.integers(0, 99), max_size=60),
    is_wrong_for=st.integers(0, 200),
    seed=st.integers(),
)
def test_where_order_is_kept_no_record_is_taken_before_an_earlier_one(
    sizes: list[int], refused: set[int], is_wrong_for: int, seed: int
) -> None:
    """Whatever is refused, named or not, too large or later, and whenever a setting is mended."""
    dice = random.Random(seed)
    firsts = [sum(sizes[:number]) for number in range(len(sizes))]
    asked, taken = count(), list[int]()

    def classify_answer(it: Part) -> DeliveryResult:
        numbers = [firsts[it.request] + record for record in it.records]
        bad = tuple((at, FAULT) for at, number in enumerate(numbers) if number in refused)
        if next(asked) < is_wrong_for:
            return Rejected(FAULT) if dice.random() < 0.5 else Retryable("later")
        if dice.random() < 0.2:
            return Retryable("later") if dice.random() < 0.5 else Paused("401")
        if bad and dice.random() < 0.5:
            others = tuple(at for at in range(len(numbers)) if at != bad[0][0])
            return PartialFailure(bad[:1], again=others)
        if bad:
            return Rejected(FAULT) if dice.random() < 0.5 else TooLarge(FAULT)
        taken.extend(numbers)
        return Success()

    machine = delivery(*sizes, keeps_order=True)
    run(machine, classify_answer, steps=2000)
    assert taken == sorted(taken)
    assert refused or is_wrong_for or taken == [*range(sum(sizes))]


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    before=st.integers(0, 3),
    lasts=st.integers(0, 200),
)
def test_where_order_is_kept_an_outage_changes_the_place_of_one_record_at_most(
    sizes: list[int], before: int, lasts: int
) -> None:
    firsts = [sum(sizes[:number]) for number in range(len(sizes))]
    asked, taken = count(), list[int]()

    def classify_answer(it: Part) -> DeliveryResult:
        if before <= next(asked) < before + lasts:
            return Failed(FAULT)
        taken.extend(firsts[it.request] + record for record in it.records)
        return Success()

    machine = delivery(*sizes, keeps_order=True, poison_after_s=1e6)
    run(machine, classify_answer)
    assert machine.done
    moved = [at for at in range(1, len(taken)) if taken[at] < taken[at - 1]]
    assert len(moved) <= 1
    assert sorted(taken) == [*range(sum(sizes))]
    for at in moved:  # without that one, all are in their order
        assert sorted(taken[:at] + taken[at + 1 :]) == taken[:at] + taken[at + 1 :]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("poison", [{0}, {11}, {7, 8, 9}, {3, 4, 12, 13}])
def test_where_order_is_kept_records_that_break_the_destination_alone_lose_their_place(
    poison: set[int], named: bool
) -> None:
    taken: list[int] = []

    def classify_answer(it: Part) -> DeliveryResult:
        bad = tuple((at, FAULT) for at, record in enumerate(it.records) if record in poison)
        if bad and not named:
            return Failed(FAULT, answered=False)
        taken.extend(record for record in it.records if record not in poison)
        return PartialFailure(failed=bad, reason="500 of some") if bad else Success()

    outcome = run(delivery(32, keeps_order=True), classify_answer)
    assert taken == [it for it in range(32) if it not in poison]
    assert {it.part.records[0] for it in outcome.refused} == poison
    assert outcome.now_ns < 1800 * SECOND_NS


def test_records_that_are_refused_for_different_reasons_are_to_blame_themselves() -> None:
    outcome = run(delivery(4), lambda it: Rejected(Fault(f"c{it.records[0]}", "")))
    assert sorted(it.part.records[0] for it in outcome.refused) == [0, 1, 2, 3]


@pytest.mark.parametrize(("after", "dead_letters"), [(3, 2), (0, 9)])
def test_small_batches_that_are_refused_count_together(after: int, dead_letters: int) -> None:
    breaker = Breaker(
        RequestRetry(initial_backoff_s=1.0, max_paused_backoff_s=8.0).limits(), LoadedDice()
    )
    refused = 0
    for _ in range(9):
        machine = delivery(1, breaker=breaker, rejected_after=after)
        refused += len(run(machine, lambda it: Rejected(FAULT), steps=20).refused)
    assert refused == dead_letters
    run(delivery(1, breaker=breaker), lambda it: Success())
    again = run(delivery(1, breaker=breaker), lambda it: Rejected(FAULT))
    assert len(again.refused) == 1, "something was taken in between"


def test_of_a_sorted_request_only_what_is_left_goes_again() -> None:
    machine = delivery(5)
    machine.handle(Ticked(), 0)
    verdict = PartialFailure(refused=((1, FAULT),), again=(3, 4), reason="429 of two")
    delivered, refused, retrying = machine.handle(Answered(verdict), 0)
    assert (delivered, refused) == (Delivered(part(0, 2)), Refused(part(1), FAULT, 1))
    assert isinstance(retrying, Retrying)
    assert retrying.circuit.reason == "429 of two"
    assert machine.handle(Ticked(), SECOND_NS) == [Send(part(3, 4), 2)]
    # Places are those of the part that was sent.
    assert machine.handle(Answered(PartialFailure(refused=((1, FAULT),))), SECOND_NS) == [
        Delivered(part(3)),
        Refused(part(4), FAULT, 2),
    ]
    assert machine.done


def test_what_was_not_looked_at_goes_again_at_once() -> None:
    machine = delivery(3)
    machine.handle(Ticked(), 0)
    effects = machine.handle(Answered(PartialFailure(refused=((1, FAULT),), again=(2,))), 0)
    assert effects[-1] == Send(part(2), 2)


def test_records_that_fail_one_by_one_are_given_up_when_others_pass() -> None:
    def classify_answer(it: Part) -> DeliveryResult:
        bad = tuple((place, FAULT) for place, record in enumerate(it.records) if record == 2)
        return PartialFailure(failed=bad, reason="500 of one")

    outcome = run(delivery(4, 1), classify_answer)
    assert [refused.part.records for refused in outcome.refused] == [(2,)]
    assert outcome.delivered == [0, 0, 1, 3]


def test_a_record_that_breaks_the_destination_is_found_by_what_passes_meanwhile() -> None:
    outcome = run(delivery(16, 4), lambda it: _breaks(it, {(0, 11)}))
    assert [(it.part.request, it.part.records) for it in outcome.refused] == [(0, (11,))]
    assert len(outcome.delivered) == 19


def test_an_outage_gives_nothing_up_however_long_it_lasts() -> None:
    machine = delivery(8)
    outcome = run(machine, lambda _: Failed(FAULT, answered=False), steps=2000)
    assert outcome.refused == []
    assert not machine.done
    assert run(machine, lambda _: Success()).delivered == list(range(8))


def test_a_500_outage_gives_up_at_most_a_record_an_hour() -> None:
    machine = delivery(8, poison_after_s=3600)
    outcome = run(machine, lambda _: Failed(FAULT), steps=2000)
    assert 0 < len(outcome.refused) <= outcome.now_ns / SECOND_NS / 3600


def test_a_lone_poisonous_record_blocks_its_sink_for_so_long_and_no_longer() -> None:
    outcome = run(delivery(1, poison_after_s=60), lambda _: Failed(FAULT))
    assert [refused.part for refused in outcome.refused] == [part(0)]
    assert 60 <= outcome.now_ns / SECOND_NS <= 60 + 8


@pytest.mark.parametrize("sizes", [(1,) * 20, (2,), (10,) * 5])
def test_a_record_that_silences_the_destination_at_the_end_goes_after_an_hour(
    sizes: tuple[int, ...],
) -> None:
    """It has too little evidence against it: its batch has no more to be told by."""
    outcome = run(delivery(*sizes), lambda it: _breaks(it, {(0, 1 if sizes[0] > 1 else 0)}))
    assert [refused.part.request for refused in outcome.refused] == [0]
    assert len(outcome.delivered) == sum(sizes) - 1
    assert outcome.now_ns < 3700 * SECOND_NS


def test_failures_that_take_a_minute_are_evidence_where_a_minute_is_the_timeout() -> None:
    def slow(it: Part) -> DeliveryResult:
        verdict = _breaks(it, {(3, 77)})
        machine_time[0] += 60 if isinstance(verdict, Failed) else 0
        return verdict

    machine_time = [0]
    patient = RequestRetry().policy(60.0)
    machine = Delivery(
        [100] * 8, policy=patient, breaker=Breaker(RequestRetry().limits(), LoadedDice())
    )
    outcome = run(machine, slow, took_s=lambda: machine_time[0])
    assert [it.part.records for it in outcome.refused] == [(77,)]
    assert outcome.now_ns < 1800 * SECOND_NS


def test_what_is_confirmed_counts_and_what_is_not_goes_again() -> None:
    machine = delivery(1, 1, confirm_s=10, confirm_every_s=2)
    assert machine.handle(Ticked(), 0) == [Send(part(0), 1)]
    assert machine.handle(Answered(Accepted("0")), 0) == [Send(part(0, request=1), 1)]
    assert machine.handle(Answered(Accepted("1")), 0) == []
    assert machine.next_deadline_ns() == 2 * SECOND_NS
    assert machine.handle(Ticked(), 2 * SECOND_NS) == [Ask(("0", "1"))]
    assert machine.handle(Confirmed({"1"}), 2 * SECOND_NS) == [Delivered(part(0, request=1))]
    assert machine.handle(Ticked(), 8 * SECOND_NS) == [Ask(("0",))]
    assert machine.handle(Confirmed(()), 8 * SECOND_NS) == []
    assert machine.handle(Ticked(), 10 * SECOND_NS) == [Ask(("0",))]
    (effect,) = machine.handle(Confirmed(()), 10 * SECOND_NS)
    assert isinstance(effect, Retrying)
    assert effect.circuit.reason == "requests not confirmed: 1"
    assert machine.handle(Ticked(), 11 * SECOND_NS) == [Send(part(0), 2)]


def test_no_more_is_left_unconfirmed_than_allowed() -> None:
    machine = delivery(1, 1, max_unconfirmed=1, confirm_every_s=1)
    machine.handle(Ticked(), 0)
    assert machine.handle(Answered(Accepted("0")), 0) == []
    assert machine.handle(Ticked(), SECOND_NS) == [Ask(("0",))]
    effects = machine.handle(Confirmed({"0"}), SECOND_NS)
    assert effects == [Delivered(part(0)), Send(part(0, request=1), 1)]


def test_a_token_given_twice_loses_nothing() -> None:
    """A destination that was started again counts from 0 again."""
    machine = delivery(1, 1)
    machine.handle(Ticked(), 0)
    machine.handle(Answered(Accepted("0")), 0)
    assert machine.handle(Answered(Accepted("0")), 0) == [Send(part(0), 2)]


class Outcome:
    """What became of a machine's records; `now_ns` is when."""

    def __init__(self) -> None:
        self.delivered: list[int] = []
        self.refused: list[Refused] = []
        self.sent = 0
        self.now_ns = 0

    def note(self, effect: Effect) -> None:
        if isinstance(effect, Delivered):
            self.delivered = sorted([*self.delivered, *effect.part.records])
        elif isinstance(effect, Refused):
            self.refused.append(effect)


def run(
    machine: Delivery,
    classify_answer: Callable[[Part], DeliveryResult],
    *,
    steps: int = 10_000,
    took_s: Callable[[], int] = lambda: 0,
) -> Outcome:
    """Drive a machine until it is done or has taken so many steps; time jumps to its deadlines.

    `took_s` is how long all answers together took until now.
    """
    outcome = Outcome()
    event: Event = Ticked()
    for number in count():
        if machine.done or (number >= steps and isinstance(event, Ticked)):
            break
        effects: Iterable[Effect] = machine.handle(event, outcome.now_ns)
        event = Ticked()
        for effect in effects:
            outcome.note(effect)
            if isinstance(effect, Send):
                outcome.sent += 1
                before_s = took_s()
                event = Answered(classify_answer(effect.part))
                outcome.now_ns += (took_s() - before_s) * SECOND_NS
        deadline_ns = machine.next_deadline_ns()
        if isinstance(event, Ticked) and deadline_ns is not None:
            outcome.now_ns = max(outcome.now_ns, deadline_ns)
    assert isinstance(event, Ticked), "an answer was not handed over"
    return outcome


def _breaks(it: Part, poison: set[tuple[int, int]]) -> DeliveryResult:
    hit = any((it.request, record) in poison for record in it.records)
    return Failed(FAULT, answered=False) if hit else Success()


@given(
    sizes=st.lists(st.integers(1, 12), min_size=2, max_size=5),
    poison=st.sets(st.tuples(st.integers(0, 4), st.integers(0, 11)), max_size=4),
    seed=st.integers(),
    keeps_order=st.booleans(),
)
def test_every_record_is_delivered_or_refused_once_and_only_poison_is_refused(
    sizes: list[int], poison: set[tuple[int, int]], seed: int, keeps_order: bool
) -> None:
    """Whatever the poison does: failing, refusing, or being too large."""
    dice = random.Random(seed)
    everything = {(request, record) for request, size in enumerate(sizes) for record in range(size)}
    poison = (poison & everything) - {(0, 0)}  # something good is there to tell an outage by
    kinds = {place: dice.choice(["fail", "unfit", "large"]) for place in sorted(poison)}
    found: list[tuple[int, int]] = []

    def classify_answer(it: Part) -> DeliveryResult:
        hit = sorted(kinds[it.request, r] for r in it.records if (it.request, r) in kinds)
        if not hit:
            return Retryable("now and then") if dice.random() < 0.1 else Success()
        verdicts: dict[str, DeliveryResult] = {
            "fail": Failed(FAULT),
            "unfit": Rejected(FAULT),
            "large": TooLarge(FAULT),
        }
        return verdicts[hit[0]]

    breaker = Breaker(RequestRetry().limits(), dice)
    policy = Policy(poison_after_s=100.0, keeps_order=keeps_order)
    machine = Delivery(sizes, policy=policy, breaker=breaker)
    event: Event = Ticked()
    now_ns = 0
    refused: list[tuple[int, int]] = []
    while not machine.done:
        effects = machine.handle(event, now_ns)
        event = Ticked()
        for effect in effects:
            match effect:
                case Send(sent):
                    event = Answered(classify_answer(sent))
                case Delivered(taken):
                    found += [(taken.request, record) for record in taken.records]
                case Refused(bad):
                    refused += [(bad.request, record) for record in bad.records]
                case _:
                    pass
        now_ns = max(now_ns, machine.next_deadline_ns() or 0)
        assert now_ns < 10**6 * SECOND_NS
    assert sorted(found + refused) == sorted(everything)
    assert set(refused) <= poison


def test_a_circuit_outlives_its_batch_and_the_next_one_waits_for_it() -> None:
    breaker = Breaker(
        RequestRetry(initial_backoff_s=1.0, max_backoff_s=8.0, failure_threshold=1).limits(),
        LoadedDice(),
    )
    first = delivery(1, breaker=breaker)
    first.handle(Ticked(), 0)
    first.handle(Answered(Retryable("503")), 0)
    states = [breaker.circuit.state]
    following = delivery(1, breaker=breaker)
    assert following.handle(Ticked(), SECOND_NS - 1) == []
    assert following.next_deadline_ns() == SECOND_NS
    assert following.handle(Ticked(), SECOND_NS) == [Send(part(0), 1)]
    states.append(breaker.circuit.state)
    assert following.handle(Answered(Rejected(FAULT)), SECOND_NS) == [Refused(part(0), FAULT, 1)]
    states.append(breaker.circuit.state)
    assert states == ["open", "half_open", "closed"], "who refuses a record is well"


def test_a_destination_that_refuses_every_record_by_name_is_well() -> None:
    breaker = Breaker(RequestRetry(failure_threshold=1).limits(), LoadedDice())
    machine = delivery(2, 1, breaker=breaker)
    machine.handle(Ticked(), 0)
    machine.handle(Answered(Retryable("full")), 0)
    machine.handle(Ticked(), breaker.circuit.retry_at_ns or 0)
    states = [breaker.circuit.state]
    machine.handle(Answered(PartialFailure(refused=((0, FAULT), (1, FAULT)))), SECOND_NS)
    assert [*states, breaker.circuit.state] == ["half_open", "closed"]
