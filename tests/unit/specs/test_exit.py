"""How long the end of a process waits where nobody answers."""

from typing import Any, cast

import pytest

from penstock.specs import emit, limits
from penstock.specs.otel import (
    PenstockLogRecordExporter,
    PenstockMetricExporter,
    PenstockSpanExporter,
)


class Clock:
    """Time that passes where it is said."""

    now = 0.0

    def monotonic_ns(self) -> int:
        return int(self.now * 1e9)


class Unanswered:
    """An emitter that nobody answers: it waits as long as it may, or until ``answer_s``."""

    def __init__(self, clock: Clock, answer_s: float = 1e9) -> None:
        self.clock = clock
        self.answer_s = answer_s
        self.waited: list[float] = []
        self.sent_at = 1e9

    def flush(self, timeout_s: float) -> bool:
        self.waited.append(min(timeout_s, self.answer_s))
        self.sent_at = min(self.sent_at, self.clock.now)
        self.clock.now += self.waited[-1]
        return self.answer_s <= timeout_s

    def retire(self) -> None:
        """Nothing is left behind."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(emit, "clock", clock)
    monkeypatch.setattr(emit, "_ending", False)
    monkeypatch.setattr(emit, "_exit_left_s", limits.EXIT_FLUSH_MS / 1000)
    return clock


def end(monkeypatch: pytest.MonkeyPatch, *emitters: Unanswered, between_s: float = 0) -> None:
    """As a process ends: first the emitters flush, then the SDK shuts its exporters down."""
    monkeypatch.setattr(emit, "_EMITTERS", set(emitters))
    emit._flush_at_exit()
    emitter = cast("emit.Emitter", emitters[0])
    exporters: list[Any] = [
        PenstockSpanExporter(emitter),
        PenstockMetricExporter(emitter),
        PenstockLogRecordExporter(emitter),
    ]
    for exporter in exporters:
        emitters[0].clock.now += between_s
        exporter.shutdown()


def test_all_that_flush_at_exit_wait_no_longer_than_one(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    emitters = Unanswered(clock), Unanswered(clock)
    end(monkeypatch, *emitters)
    assert [len(emitter.waited) for emitter in emitters] == [5, 2]
    assert clock.now == limits.EXIT_FLUSH_MS / 1000 + emit._EXIT_EACH_S


def test_an_emitter_that_nobody_answers_takes_no_time_of_others(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever is first: all have sent before one is waited for, and each is waited for."""
    dead = Unanswered(clock)
    healthy = [Unanswered(clock, answer_s=0.125) for _ in range(2)]
    for emitters in ([dead, *healthy], [*healthy, dead]):
        monkeypatch.setattr(emit, "_exit_left_s", limits.EXIT_FLUSH_MS / 1000)
        began = clock.now
        monkeypatch.setattr(emit, "_EMITTERS", dict.fromkeys(emitters))
        for emitter in emitters:
            emitter.sent_at = 1e9
        emit._flush_at_exit()
        assert [emitter.sent_at for emitter in emitters] == [began] * 3
        assert [emitter.waited[-1] for emitter in healthy] == [0.125] * 2


def test_what_others_do_at_exit_takes_nothing_of_it(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where somebody answers, the last exporter's records are waited for after a long exit, too."""
    emitter = Unanswered(clock, answer_s=0.125)
    end(monkeypatch, emitter, between_s=60)
    assert emitter.waited == [0.0, *[0.125] * 4]
