"""Nothing is missing and nothing too much, whatever reaches which replica first."""

from collections.abc import Callable
from typing import Any

import pytest
from typing_extensions import override

from penstock.logd.intake.standby_buffer import Released, Window
from penstock.logd.intake.turn import Message
from tests.sim.standby_world import S, StandbyWorld

SEEDS = 300
STEPS = 250


def test_every_message_is_stored_as_often_as_it_was_published() -> None:
    reached = set()
    for seed in range(SEEDS):
        world = StandbyWorld(seed)
        world.run(STEPS)
        assert world.verdict() == "", f"seed {seed}"
        reached |= world.reached
    assert reached == {"a leader is paid", "a log is cut", "something is released"}


class _NoDebts(Window):
    @override
    def append(self, offset: int, identity: bytes, now_ns: int, *, recorded_ns: int) -> None:
        super().append(offset, identity, now_ns, recorded_ns=0 if self.covered else recorded_ns)
        self._debts.clear()
        self._debts_by_age.clear()


class _DebtsOutliveTheirRecords(Window):
    @override
    def cut(self, end_offset: int, now_ns: int) -> None:
        debts, by_age = self._debts, self._debts_by_age
        self._debts, self._debts_by_age = {}, type(by_age)()
        super().cut(end_offset, now_ns)
        self._debts, self._debts_by_age = debts, by_age


class _CutIsForgotten(Window):
    @override
    def cut(self, end_offset: int, now_ns: int) -> None:
        self._matched = [entry for entry in self._matched if entry[0] < end_offset]
        super().cut(end_offset, now_ns)


class _OwnIsForgotten(Window):
    @override
    def took(self, offset: int, message: Message, identity: bytes, now_ns: int) -> None:
        pass


class _PaysNothingAsLeader(Window):
    @override
    def pay(self, message: Message, identity: bytes, now_ns: int) -> bool:
        return False


class _EqualAreOne(Window):
    @override
    def append(self, offset: int, identity: bytes, now_ns: int, *, recorded_ns: int) -> None:
        super().append(offset, identity, now_ns, recorded_ns=recorded_ns)
        while identity in self._orders:
            self._take_out(self._orders[identity][0])


class _ForgetsTheLog(Window):
    @override
    def arrive(self, message: Message, identity: bytes, now_ns: int, *, known: Any = None) -> None:
        super().arrive(message, identity, now_ns)


class _KeepsWhatItGave(Window):
    @override
    def release(self, now_ns: int, led_ns: int) -> Released:
        held = dict(self._held)
        released = super().release(now_ns, led_ns)
        for order, heard in held.items():
            self._hold(order, heard)
        return released


@pytest.mark.parametrize(
    "twin",
    [
        _NoDebts,
        _DebtsOutliveTheirRecords,
        _CutIsForgotten,
        _OwnIsForgotten,
        _PaysNothingAsLeader,
        _EqualAreOne,
        _ForgetsTheLog,
        _KeepsWhatItGave,
    ],
)
def test_a_worse_window_is_found_out(twin: Callable[..., Window]) -> None:
    def make() -> Window:
        return twin(10 * S, 2 * S, held_bytes_max=1 << 20)

    for seed in range(SEEDS):
        world = StandbyWorld(seed, make_window=make)
        world.run(STEPS)
        if world.verdict():
            return
    pytest.fail(f"{twin} is as good in {SEEDS} runs")
