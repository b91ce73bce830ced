"""The queue, compared with one that is too simple to be wrong."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.specs.emit.delivery.queue import (
    AUDIT,
    DEBUG,
    EVENT,
    NORMAL,
    WARNING,
    RecordQueue,
    line_of,
    rank_of,
)


class SimpleQueue:
    """One list, searched from the start each time."""

    def __init__(self, records_max: int, bytes_max: int) -> None:
        self.records_max, self.bytes_max = records_max, bytes_max
        self.held: list[tuple[int, bytes]] = []

    def size(self) -> int:
        return sum(len(line) for _, line in self.held)

    def offer(self, rank: int, line: bytes) -> list[bytes]:
        if len(line) > self.bytes_max:
            return [line]
        dropped: list[bytes] = []
        while len(self.held) >= self.records_max or self.size() + len(line) > self.bytes_max:
            lowest = min(held for held, _ in self.held)
            if lowest > rank:
                return [*dropped, line]
            index = next(i for i, (held, _) in enumerate(self.held) if held == lowest)
            dropped.append(self.held.pop(index)[1])
        self.held.append((rank, line))
        return dropped

    def take(self, records_max: int, bytes_max: int) -> list[bytes]:
        taken: list[bytes] = []
        while self.held and len(taken) < records_max:
            line = self.held[0][1]
            if taken and sum(map(len, taken)) + len(line) > bytes_max:
                break
            taken.append(self.held.pop(0)[1])
        return taken


Offer = tuple[int, int]
OFFERS = st.tuples(st.integers(0, 4), st.integers(0, 12))
TAKES = st.tuples(st.integers(1, 4), st.integers(1, 20))
STEPS = st.lists(st.one_of(OFFERS.map(lambda o: ("offer", o)), TAKES.map(lambda t: ("take", t))))


@given(STEPS, st.integers(1, 6), st.integers(1, 30))
def test_queue_does_what_the_simple_one_does(
    steps: list[tuple[str, Offer]], records_max: int, bytes_max: int
) -> None:
    queue = RecordQueue(records_max=records_max, bytes_max=bytes_max)
    simple = SimpleQueue(records_max, bytes_max)
    for number, (verb, (first, second)) in enumerate(steps):
        if verb == "offer":
            line = b"%d" % (number % 10) * second
            dropped = [line_of(record) for record in queue.offer("log", first, line)]
            assert dropped == simple.offer(first, line)
        else:
            taken = queue.take(records_max=first, bytes_max=second)
            assert [line_of(record) for record in taken] == simple.take(first, second)
        assert (queue.records, queue.held_bytes) == (len(simple.held), simple.size())


def test_audit_and_events_rank_above_any_log() -> None:
    assert rank_of("log", 5) == DEBUG
    assert rank_of("log", 9) == rank_of("span", 9) == rank_of("metric", 9) == NORMAL
    assert rank_of("log", 13) == rank_of("span", 17) == WARNING
    assert rank_of("event", 9) == EVENT
    assert rank_of("audit", 1) == AUDIT


def test_a_full_batch_of_one_rank_leaves_in_bulk_and_in_order() -> None:
    queue = RecordQueue(records_max=100, bytes_max=1_000)
    for number in range(20):
        assert not queue.offer("log", NORMAL, b"%02d" % number)
    taken = [line_of(record) for record in queue.take(records_max=8, bytes_max=100)]
    assert taken == [b"%02d" % number for number in range(8)]
    assert (queue.records, queue.held_bytes) == (12, 24)
    assert len(queue.take(records_max=8, bytes_max=10)) == 5
    assert (queue.records, queue.held_bytes) == (7, 14)
