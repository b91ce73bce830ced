"""The delivery core, step by step; `tests/sim` drives it through bad days."""

from penstock.collector.delivery.core import (
    Behind,
    Delivery,
    Failed,
    Flush,
    Publish,
    Quarantine,
    Read,
    Reconnected,
    Refused,
    Settled,
    Stored,
    Take,
    Tick,
)
from penstock.collector.delivery.ordered_queue import Batch, Limits, QueueKey
from penstock.collector.ledger import Ledger
from penstock.collector.telemetry import settle_accounts

QUEUE = QueueKey("spool", "app", "telemetry.logs.x")
LIMITS = Limits(batch_records_max=2, batch_age_ns=100, backoff_min_ns=1000)


def delivery(**done: int) -> Delivery:
    return Delivery(LIMITS, jitter=lambda: 1.0, done={QUEUE: done["done"]} if done else None)


def records(first: int, end: int, *, start: int = 0) -> Take:
    sequences = list(range(first, end))
    lines = [b"%d" % number for number in sequences]
    return Take(QUEUE, Batch(start, sequences, sequences[:], lines, sum(map(len, lines))))


def published(effects: list[object]) -> list[tuple[int, list[int]]]:
    return [(e.previous, e.batch.sequences) for e in effects if isinstance(e, Publish)]


def settled(core: Delivery) -> tuple[int, int]:
    """The records of the source that count as delivered, and those of them that are repeated."""
    ledger = Ledger()
    settle_accounts(ledger, core)
    return ledger["app"].delivered, ledger["app"].repeated


def test_full_batches_go_at_once_and_chain() -> None:
    core = delivery()
    assert published([*core.handle(records(1, 6), 0)]) == [(0, [1, 2]), (2, [3, 4])]
    assert core.next_deadline_ns() == 100
    assert published([*core.handle(Tick(), 100)]) == [(4, [5])]


def test_a_batch_takes_what_its_bytes_allow_and_a_larger_record_is_alone() -> None:
    core = Delivery(Limits(batch_records_max=9, batch_bytes_max=10), jitter=lambda: 1.0)
    sizes = [4, 6, 1, 3, 7, 11, 2, 10, 12, 3]
    for first in (0, 4):
        sequences = [*range(first + 1, len(sizes) + 1 if first else 5)]
        lines = [b"x" * sizes[number - 1] for number in sequences]
        core.handle(Take(QUEUE, Batch(0, sequences, sequences[:], lines, sum(map(len, lines)))), 0)
    core.handle(Flush(), 0)
    batches = [batch.sequences for batch in core.queues[QUEUE].pending()]
    assert batches == [[1, 2], [3, 4], [5], [6], [7], [8], [9], [10]]


def test_an_ack_covers_everything_before_it() -> None:
    core = delivery()
    core.handle(Read("spool", 9), 0)
    first, second = core.handle(records(1, 5, start=7), 0)
    assert isinstance(second, Publish)
    core.handle(Stored(second.request), 0)
    assert (core.pending_records, core.cursor("spool"), core.done()) == (0, 9, {QUEUE: 4})
    assert isinstance(first, Publish)
    core.handle(Failed(first.request, "ack_timeout"), 0)
    assert core.next_deadline_ns() is None, "a failure of what is stored is history"


def test_a_late_ack_of_something_earlier_takes_nothing_back() -> None:
    core = delivery()
    first, second = core.handle(records(1, 5), 0)
    assert isinstance(first, Publish)
    assert isinstance(second, Publish)
    core.handle(Stored(second.request), 0)
    core.handle(Stored(first.request), 0)
    assert core.done() == {QUEUE: 4}
    (third,) = core.handle(records(5, 7), 0)
    assert published([third]) == [(4, [5, 6])]


def test_the_cursor_stays_before_what_is_pending() -> None:
    core = delivery()
    core.handle(records(1, 2, start=7), 0)
    core.handle(Read("spool", 9), 0)
    assert core.cursor("spool") == 7


def test_records_done_before_a_restart_are_skipped() -> None:
    core = delivery(done=3)
    assert published([*core.handle(records(1, 6), 0)]) == [(3, [4, 5])]
    assert core.queues[QUEUE].repeated == 3
    assert settled(core) == (3, 3)


def requests(effects: list[object]) -> list[int]:
    return [effect.request for effect in effects if isinstance(effect, Publish)]


def test_what_logd_has_before_it_is_sent_is_repeated() -> None:
    core = delivery()
    first, second = requests([*core.handle(records(1, 5), 0)])
    core.handle(Stored(second, duplicate=True), 0)
    assert settled(core) == (4, 4)
    core.handle(Stored(first, duplicate=True), 0)
    (third,) = requests([*core.handle(records(5, 7), 0)])
    core.handle(Stored(third), 0)
    assert settled(core) == (6, 4)


def test_what_is_sent_again_because_an_answer_was_lost_is_delivered() -> None:
    core = delivery()
    (first,) = requests([*core.handle(records(1, 3), 0)])
    core.handle(Failed(first, "ack_timeout", may_be_stored=True), 0)
    (again,) = requests([*core.handle(Tick(), 1000)])
    core.handle(Stored(again, duplicate=True), 1000)
    assert settled(core) == (2, 0)


def test_what_nobody_got_and_logd_has_all_the_same_is_repeated() -> None:
    core = delivery()
    (first,) = requests([*core.handle(records(1, 3), 0)])
    core.handle(Failed(first, "no_responders"), 0)
    (again,) = requests([*core.handle(Tick(), 1000)])
    core.handle(Stored(again, duplicate=True), 1000)
    assert settled(core) == (2, 2)


def test_an_attempt_without_its_answer_may_be_what_logd_has() -> None:
    core = delivery()
    first, _ = requests([*core.handle(records(1, 5), 0)])
    core.handle(Failed(first, "no_responders"), 0)
    again, last = requests([*core.handle(Tick(), 1000)])
    core.handle(Stored(again), 1000)
    core.handle(Stored(last, duplicate=True), 1000)
    assert settled(core) == (4, 0), "the first attempt of the second batch was stored"


def test_only_what_logd_names_of_a_batch_is_repeated() -> None:
    core = delivery()
    (first,) = requests([*core.handle(records(1, 3), 0)])
    again, rest = requests([*core.handle(Behind(first, 1), 0)])
    core.handle(Stored(again, duplicate=True), 0)
    core.handle(Stored(rest), 0)
    assert settled(core) == (2, 1)


def test_a_failure_waits_with_doubling_and_sends_again_in_order() -> None:
    core = delivery()
    first, _ = core.handle(records(1, 5), 0)
    assert isinstance(first, Publish)
    assert core.handle(Failed(first.request, "no_responders"), 0) == []
    assert core.next_deadline_ns() == 1000
    assert core.troubles == {QUEUE: "no_responders"}
    again = core.handle(Tick(), 1000)
    assert published([*again]) == [(0, [1, 2]), (2, [3, 4])]
    assert isinstance(again[0], Publish)
    core.handle(Failed(again[0].request, "no_responders"), 1000)
    assert core.next_deadline_ns() == 3000
    assert published([*core.handle(Reconnected(), 1500)]) == [(0, [1, 2]), (2, [3, 4])]


def test_a_gap_is_closed_from_the_sequence_that_logd_names() -> None:
    core = delivery()
    _, second = core.handle(records(1, 5), 0)
    assert isinstance(second, Publish)
    assert published([*core.handle(Behind(second.request, 0), 0)]) == [(0, [1, 2]), (2, [3, 4])]


def test_what_logd_names_is_sent_again_to_be_acked_and_cut_there() -> None:
    core = delivery()
    (first,) = core.handle(records(1, 3), 0)
    assert isinstance(first, Publish)
    assert published([*core.handle(Behind(first.request, 1), 0)]) == [(0, [1]), (1, [2])]


def test_a_producer_that_logd_forgot_goes_on_from_zero() -> None:
    core = delivery(done=5)
    (first,) = core.handle(records(6, 8), 0)
    assert isinstance(first, Publish)
    assert first.previous == 5
    assert published([*core.handle(Behind(first.request, 0), 0)]) == [(0, [6, 7])]


def test_a_refused_batch_is_halved_until_the_culprit_is_alone() -> None:
    core = delivery()
    (whole,) = core.handle(records(1, 3), 0)
    assert isinstance(whole, Publish)
    (half,) = core.handle(Refused(whole.request, "bad"), 0)
    assert isinstance(half, Publish)
    assert half.batch.sequences == [1]
    (effect,) = core.handle(Refused(half.request, "bad"), 0)
    assert isinstance(effect, Quarantine)
    (rest,) = core.handle(Settled(QUEUE, effect.batch), 0)
    assert published([rest]) == [(0, [2])], "the chain goes on around what is in quarantine"
    assert (core.queues[QUEUE].quarantined, core.queues[QUEUE].done) == (1, 1)


def test_the_common_window_is_shared_and_refilled() -> None:
    core = Delivery(Limits(batch_records_max=1, flight_bytes_max=2), jitter=lambda: 0.0)
    sent = core.handle(records(1, 6), 0)
    assert len(sent) == 2
    assert isinstance(sent[0], Publish)
    assert len(core.handle(Stored(sent[0].request), 0)) == 1


def test_other_limits_hold_for_queues_that_exist() -> None:
    core = delivery()
    core.handle(records(1, 2), 0)
    core.limit(Limits(batch_records_max=3, batch_age_ns=100, backoff_min_ns=1000))
    assert published([*core.handle(records(2, 5), 0)]) == [(0, [1, 2, 3])]


def test_a_source_is_pending_until_its_records_are_acked() -> None:
    core = delivery()
    (first,) = core.handle(records(1, 3), 0)
    assert isinstance(first, Publish)
    assert (core.is_pending("app"), core.is_pending("other")) == (True, False)
    core.handle(Stored(first.request), 0)
    assert not core.is_pending("app")


def test_what_queues_of_a_source_did_is_added_when_they_are_forgotten() -> None:
    queues = [QUEUE, QueueKey("spool", "app", "telemetry.logs.y")]
    core = Delivery(LIMITS, jitter=lambda: 1.0, done=dict.fromkeys(queues, 2))
    for queue in queues:
        (sent,) = core.handle(Take(queue, records(1, 5).records), 0)
        assert isinstance(sent, Publish)
        core.handle(Stored(sent.request), 0)
    core.retire_idle()
    assert core.queues == {}
    assert core.retired == {"app": (2 + 2, 0, 2 + 2)}
    assert settled(core) == (4 + 4, 4)


def test_flush_sends_what_waits() -> None:
    core = delivery()
    assert core.handle(records(1, 2), 0) == []
    assert published([*core.handle(Flush(), 0)]) == [(0, [1])]


def test_idle_queues_are_forgotten_when_there_are_too_many() -> None:
    core = Delivery(Limits(batch_records_max=1, queues_max=2), jitter=lambda: 0.0)
    for number in range(5):
        queue = QueueKey("spool", "app", f"telemetry.logs.{number}")
        (sent,) = core.handle(Take(queue, Batch(0, [1], [1], [b"x"], 1)), 0)
        assert isinstance(sent, Publish)
        core.handle(Stored(sent.request), 0)
    assert len(core.queues) <= 2
    delivered = sum(queue.delivered for queue in core.queues.values())
    assert delivered + core.retired["app"][0] == 5


def settling() -> tuple[Delivery, int, Quarantine]:
    """A queue whose first record goes to quarantine, and then is stored after all with the rest.

    Its origin is forgotten; returns a request that has no answer, and what goes to quarantine.
    """
    core = delivery()
    core.handle(Read("spool", 9), 0)
    first, second, third = (
        one.request for one in core.handle(records(1, 7), 0) if isinstance(one, Publish)
    )
    (half,) = core.handle(Refused(first, "bad"), 0)
    assert isinstance(half, Publish)
    (effect,) = core.handle(Refused(half.request, "bad"), 0)
    assert isinstance(effect, Quarantine)
    assert core.handle(Stored(third), 0) == []
    assert (core.cursor("spool"), core.pending_records) == (9, 0)
    core.forget("spool")
    return core, second, effect


def test_a_queue_that_is_forgotten_while_it_settles_stays_so() -> None:
    core, unanswered, effect = settling()
    assert core.handle(Settled(QUEUE, effect.batch), 1) == []
    core.handle(Failed(unanswered, "ack_timeout"), 1)
    assert core.queues == {}
    assert (core.next_deadline_ns(), core.pending_records) == (None, 0)


def test_what_settles_of_a_forgotten_queue_is_not_of_the_one_in_its_place() -> None:
    core, _, effect = settling()
    core.handle(records(7, 8), 1)
    assert core.handle(Settled(QUEUE, effect.batch), 1) == []
    assert (core.pending_records, core.queues[QUEUE].quarantined) == (1, 0)


def test_a_late_answer_to_a_forgotten_queue_is_not_for_the_one_in_its_place() -> None:
    limits = Limits(batch_records_max=2, batch_age_ns=100, backoff_min_ns=1000, queues_max=1)
    for late in (Stored, lambda request: Failed(request, "ack_timeout")):
        core = Delivery(limits, jitter=lambda: 1.0)
        core.handle(Read("spool", 0), 0)
        first, second = core.handle(records(1, 5), 0)
        assert isinstance(first, Publish)
        assert isinstance(second, Publish)
        core.handle(Stored(second.request), 1)
        other = Batch(5, [5, 6], [5, 6], [b"5", b"6"], 2)
        (third,) = core.handle(Take(QUEUE._replace(subject="telemetry.logs.y"), other), 2)
        assert list(core.queues) == [QUEUE._replace(subject="telemetry.logs.y")]
        core.handle(records(7, 8, start=6), 3)
        core.handle(Read("spool", 9), 3)
        core.handle(late(first.request), 4)
        assert core.cursor("spool") <= 6, "a record that is not delivered is before the cursor"
        assert core.next_deadline_ns() == 103
        assert isinstance(third, Publish)
        core.handle(Stored(third.request), 5)
        assert published([*core.handle(Flush(), 6)])[-1][1] == [7]
