"""One request to an HTTP destination, with time and dice of our own."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from penstock.router.core.delivery import (
    Answered,
    Broke,
    Delivered,
    Delivery,
    Refused,
    Retrying,
    Send,
    SplitUp,
    Ticked,
)

SECOND_NS = 1_000_000_000


class LoadedDice(random.Random):
    """Always rolls the highest number."""

    @override
    def uniform(self, a: float, b: float) -> float:
        return b


def delivery(*, records: int = 10, dice: random.Random | None = None) -> Delivery:
    return Delivery(records=records, first_s=1.0, max_s=8.0, dice=dice or LoadedDice())


def sent(machine: Delivery, now_ns: int = 0) -> Delivery:
    assert machine.handle(Ticked(), now_ns) == [Send(1)]
    return machine


def test_it_is_done_when_the_destination_has_it() -> None:
    machine = sent(delivery())
    assert machine.handle(Answered(204), 0) == [Delivered()]
    assert machine.next_deadline_ns() is None
    assert machine.handle(Ticked(), 99 * SECOND_NS) == []


@pytest.mark.parametrize("status", [400, 404, 410, 422])
def test_a_refusal_for_good_is_told_with_its_reason(status: int) -> None:
    machine = sent(delivery())
    assert machine.handle(Answered(status, excerpt="no such index"), 0) == [
        Refused(f"HTTP {status} no such index", status, 1)
    ]


@pytest.mark.parametrize("status", [401, 403, 408, 425, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(status: int) -> None:
    machine = sent(delivery())
    assert machine.handle(Answered(status), 0) == [Retrying(f"HTTP {status}")]
    assert machine.next_deadline_ns() == SECOND_NS
    assert machine.handle(Ticked(), SECOND_NS - 1) == []
    assert machine.handle(Ticked(), SECOND_NS) == [Send(2)]


def test_pauses_double_up_to_their_limit() -> None:
    machine, now_ns, pauses = sent(delivery()), 0, []
    for attempt in range(2, 8):
        machine.handle(Broke("refused"), now_ns)
        deadline_ns = machine.next_deadline_ns()
        assert deadline_ns is not None
        pauses.append((deadline_ns - now_ns) / SECOND_NS)
        now_ns = deadline_ns
        assert machine.handle(Ticked(), now_ns) == [Send(attempt)]
    assert pauses == [1, 2, 4, 8, 8, 8]


def test_retry_after_lengthens_a_pause_within_reason() -> None:
    machine = sent(delivery())
    machine.handle(Answered(429, retry_after_s=20), 0)
    assert machine.next_deadline_ns() == 20 * SECOND_NS
    machine.handle(Ticked(), 20 * SECOND_NS)
    machine.handle(Answered(503, retry_after_s=1e9), 20 * SECOND_NS)
    assert machine.next_deadline_ns() == (20 + 300) * SECOND_NS


def test_what_is_too_large_is_split_until_one_record_is_left() -> None:
    assert sent(delivery(records=2)).handle(Answered(413), 0) == [SplitUp()]
    assert sent(delivery(records=1)).handle(Answered(413), 0) == [Refused("HTTP 413", 413, 1)]


@given(seed=st.integers(), failures=st.integers(1, 40))
def test_jitter_stays_within_the_doubled_limit(seed: int, failures: int) -> None:
    machine = sent(delivery(dice=random.Random(seed)))
    now_ns = 0
    for attempt in range(failures):
        machine.handle(Broke("x"), now_ns)
        deadline_ns = machine.next_deadline_ns()
        assert deadline_ns is not None
        assert 0 <= deadline_ns - now_ns <= min(8, 2**attempt) * SECOND_NS
        now_ns = deadline_ns
        assert machine.handle(Ticked(), now_ns) == [Send(attempt + 2)]
