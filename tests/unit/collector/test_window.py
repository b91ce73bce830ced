"""The in-flight window against a simulated way to the log."""

import heapq
from random import Random

import pytest

from penstock.collector.delivery.core import Window

STEP = 100
MS = 1_000_000


class Way:
    """A queue served at a rate, and a delay for the way there and back.

    Attributes:
        rate: Bytes a millisecond.
    """

    def __init__(self, seed: int, *, rate: float, delay_ms: float) -> None:
        self.random = Random(seed)
        self.rate = rate
        self.delay_ms = delay_ms
        self.window = Window(step=STEP, size_max=64 * STEP)
        self.now_ns = 0
        self.free_ns = 0
        self.flight: list[tuple[int, int]] = []

    def run(self, milliseconds: float, *, load: float = 1.0) -> list[int]:
        """Send as much as the window allows, or a share of the time; returns windows over time."""
        end_ns = self.now_ns + int(milliseconds * MS)
        sizes: list[int] = []
        while self.now_ns < end_ns:
            while len(self.flight) * STEP < self.window.size and self.random.random() < load:
                self._send()
            if not self.flight:
                self.now_ns += MS
                continue
            done_ns, sent_ns = heapq.heappop(self.flight)
            self.now_ns = done_ns
            held_back = load == 1.0 and (len(self.flight) + 1) * STEP >= self.window.size
            self.window.acked(STEP, done_ns - sent_ns, done_ns, held_back=held_back)
            sizes.append(self.window.size)
        return sizes

    def _send(self) -> None:
        jitter = 1 + self.random.random() * 0.1
        self.free_ns = max(self.free_ns, self.now_ns) + int(STEP / self.rate * MS)
        done_ns = self.free_ns + int(self.delay_ms * jitter * MS)
        heapq.heappush(self.flight, (done_ns, self.now_ns))


@pytest.mark.parametrize("seed", range(20))
def test_it_fills_the_way_and_little_more(seed: int) -> None:
    random = Random(seed)
    rate, delay_ms = random.choice([20, 50, 100]), random.choice([2, 10, 20])
    way = Way(seed, rate=rate, delay_ms=delay_ms)
    settled = way.run(4000)[-500:]
    fits = rate * delay_ms
    assert min(settled) >= min(0.8 * fits, 63 * STEP), "the way is not left empty"
    assert max(settled) <= fits * 1.2 + 9 * STEP, "no queue is built"


@pytest.mark.parametrize("seed", range(10))
def test_it_shrinks_when_the_way_becomes_slow_and_grows_again(seed: int) -> None:
    way = Way(seed, rate=100, delay_ms=20)
    fast = way.run(4000)[-1]
    way.rate = 10
    slow = way.run(4000)[-1]
    assert slow < fast / 2
    way.rate = 100
    assert way.run(8000)[-1] > slow * 2


def test_a_quiet_collector_keeps_its_window() -> None:
    way = Way(1, rate=100, delay_ms=5)
    assert set(way.run(1000, load=0.1)) == {4 * STEP}


def test_failures_halve_it_once_and_never_below_a_batch() -> None:
    window = Window(step=STEP, size_max=64 * STEP)
    window.acked(STEP, 10 * MS, 0, held_back=True)
    before = window.size
    for _ in range(5):
        window.failed(MS)
    assert window.size == before // 2
    for second in range(1, 20):
        window.failed(second * 1000 * MS)
    assert window.size == STEP


def test_batches_that_were_sent_together_fail_together_for_the_time_of_an_ack() -> None:
    window = Window(step=STEP, size_max=64 * STEP)
    window.acked(STEP, 10 * MS, 0, held_back=False)
    sizes = []
    for now_ns in (MS, 11 * MS - 1, 11 * MS):
        window.failed(now_ns)
        sizes.append(window.size)
    assert sizes == [2 * STEP, 2 * STEP, STEP]


def test_the_shortest_time_is_forgotten_when_the_way_changed_for_good() -> None:
    window = Window(step=STEP, size_max=64 * STEP)
    window.acked(STEP, MS, 0, held_back=True)
    for second in range(1, 100):
        window.acked(STEP, 50 * MS, second * 1000 * MS, held_back=True)
    assert window.base_ns == 50 * MS


def test_other_limits_hold_at_once() -> None:
    window = Window(step=STEP, size_max=64 * STEP)
    window.resize(step=STEP, size_max=2 * STEP)
    assert window.size == 2 * STEP
    window.resize(step=3 * STEP, size_max=64 * STEP)
    assert window.size == 3 * STEP
