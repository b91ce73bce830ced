"""How long the end of a process waits where nobody answers."""

import socket
from pathlib import Path
from typing import Any, cast

import pytest
from typing_extensions import override

from penstock.specs import limits
from penstock.specs.emit.delivery.exit_hooks import EXIT_EACH_S, ProcessExit
from penstock.specs.emit.delivery.transport import SocketLink
from penstock.specs.emit.emitter import Emitter
from penstock.specs.otel.exporter import (
    PenstockLogRecordExporter,
    PenstockMetricExporter,
    PenstockSpanExporter,
)
from tests.support.collector_socket import CollectorSocket
from tests.support.waiting import wait_until


class Clock:
    """Time that passes where it is said."""

    now = 0.0

    def monotonic_ns(self) -> int:
        return int(self.now * 1e9)


class Unanswered:
    """An emitter that nobody answers: it waits as long as it may, or until ``answer_s``."""

    process_exit: ProcessExit
    trouble = ""

    def __init__(self, clock: Clock, answer_s: float = 1e9, *, no_listener: bool = False) -> None:
        self.clock = clock
        self.no_listener = no_listener
        self.answer_s = answer_s
        self.waited: list[float] = []
        self.sent_at = 1e9

    def flush(self, timeout_s: float) -> bool:
        self.waited.append(min(timeout_s, self.answer_s))
        self.sent_at = min(self.sent_at, self.clock.now)
        self.clock.now += self.waited[-1]
        return self.answer_s <= timeout_s

    def remove_empty_journal(self) -> None:
        """Nothing is left behind."""

    def end(self) -> None:
        """It has no thread."""

    def lost(self, *, waiting: bool = True) -> dict[str, int]:
        return {}


BUDGET_S = limits.EXIT_FLUSH_MS / 1000


def exit_of(*emitters: Unanswered) -> ProcessExit:
    """The end of a process that has these emitters, by their clock."""
    found = ProcessExit(emitters, monotonic_ns=emitters[0].clock.monotonic_ns, budget_s=BUDGET_S)
    for emitter in emitters:
        emitter.process_exit = found
    return found


def end(*emitters: Unanswered, between_s: float = 0) -> None:
    """As a process ends: first the emitters flush, then the SDK shuts its exporters down."""
    exit_of(*emitters).flush_last()
    emitter = cast("Emitter", emitters[0])
    exporters: list[Any] = [
        PenstockSpanExporter(emitter),
        PenstockMetricExporter(emitter),
        PenstockLogRecordExporter(emitter),
    ]
    for exporter in exporters:
        emitters[0].clock.now += between_s
        exporter.shutdown()


def test_all_that_flush_at_exit_wait_no_longer_than_one() -> None:
    clock = Clock()
    end(Unanswered(clock), Unanswered(clock))
    assert clock.now == pytest.approx(BUDGET_S + EXIT_EACH_S)


def test_an_emitter_that_nobody_answers_takes_no_time_of_others() -> None:
    """Whichever is first: all have sent before one is waited for, and each is waited for."""
    clock = Clock()
    dead = Unanswered(clock)
    healthy = [Unanswered(clock, answer_s=0.125) for _ in range(2)]
    for emitters in ([dead, *healthy], [*healthy, dead]):
        began = clock.now
        for emitter in emitters:
            emitter.sent_at = 1e9
        exit_of(*emitters).flush_last()
        assert [emitter.sent_at for emitter in emitters] == [began] * 3
        assert [emitter.waited[-1] for emitter in healthy] == [0.125] * 2


def test_what_others_do_at_exit_takes_nothing_of_it() -> None:
    """Where somebody answers, the last exporter's records are waited for after a long exit, too."""
    emitter = Unanswered(Clock(), answer_s=0.125)
    end(emitter, between_s=60)
    assert emitter.waited == [0.0, *[0.125] * 5]


class Talking(Unanswered):
    """One that other threads use to the end: a record comes behind each of its flushes."""

    waiting = 0

    @override
    def flush(self, timeout_s: float) -> bool:
        self.waiting = 0 if super().flush(timeout_s) else self.waiting
        return self.waiting == 0

    @override
    def remove_empty_journal(self) -> None:
        self.waiting += 1

    @override
    def lost(self, *, waiting: bool = True) -> dict[str, int]:
        return {"not delivered": self.waiting + 1} if waiting else {}


def test_what_other_threads_emit_behind_the_flush_is_sent_and_not_said_to_be_lost(
    capfd: pytest.CaptureFixture[str],
) -> None:
    emitter = Talking(Clock(), answer_s=0.125)
    exit_of(emitter).flush_last()
    assert (emitter.waiting, capfd.readouterr().err) == (0, "")


def test_what_nobody_answers_is_said_to_be_lost(capfd: pytest.CaptureFixture[str]) -> None:
    emitter = Talking(Clock())
    exit_of(emitter).flush_last()
    said = "penstock: 2 records were lost when the process ended (2 not delivered).\n"
    assert capfd.readouterr().err == said


class Slow(Unanswered):
    """One that is answered when the clock says ``answer_s``."""

    @override
    def flush(self, timeout_s: float) -> bool:
        self.clock.now += min(timeout_s, max(0.0, self.answer_s - self.clock.now))
        return self.clock.now >= self.answer_s


def end_child(*emitters: Unanswered) -> None:
    """As a child of `multiprocessing` ends: the SDK's readers flush, then the emitters do."""
    process_exit = exit_of(*emitters)
    exporter = PenstockMetricExporter(cast("Emitter", emitters[0]))
    process_exit.flush_first(process_exit.flush_last)
    process_exit.flush_first(exporter.force_flush)
    process_exit.end_child()


def test_a_child_waits_little_where_nobody_was_ever_there() -> None:
    clock = Clock()
    end_child(Unanswered(clock, no_listener=True))
    assert clock.now == EXIT_EACH_S


@pytest.mark.parametrize(("answer_s", "waited_s"), [(1.5, 1.5), (1e9, BUDGET_S + EXIT_EACH_S)])
def test_a_child_waits_for_a_collector_that_takes_its_time(
    answer_s: float, waited_s: float
) -> None:
    clock = Clock()
    end_child(Slow(clock, answer_s))
    assert clock.now == pytest.approx(waited_s)


def test_in_a_child_nobody_who_is_away_takes_time_of_others() -> None:
    clock = Clock()
    end_child(Unanswered(clock, no_listener=True), Slow(clock, 1.5))
    assert clock.now == pytest.approx(1.5)


def test_whom_to_wait_for_is_in_vain(tmp_path: Path) -> None:
    """Nobody was there; not: who is busy, who was there once, who has nothing to answer."""
    path = tmp_path / "c.sock"
    emitter = Emitter({"service.name": "a"}, socket_path=str(path))
    assert emitter.no_listener
    emitter.emit("log", b"{}")
    wait_until(lambda: emitter.no_listener, what="an attempt")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        link = SocketLink(str(path), "b", b"{}")
        assert link.connect()
        busy = SocketLink(str(path), "c", b"{}")
        while busy.connect():
            pass
        assert not busy.is_absent
        wait_until(lambda: not emitter.no_listener, what="another attempt")
        link.close()
    emitter.close(0)


def test_who_was_there_once_and_is_away_is_not_waited_for(tmp_path: Path) -> None:
    collector = CollectorSocket(tmp_path / "c.sock")
    collector.start()
    emitter = Emitter({"service.name": "a"}, socket_path=str(collector.path))
    emitter.emit("log", b"{}")
    assert emitter.flush(20)
    collector.stop()
    emitter.emit("log", b"{}")
    wait_until(lambda: emitter.no_listener, what="an attempt in vain")
    assert "No such file" in emitter.trouble
    assert emitter.lost() == {"not delivered": 1}
    emitter.close(0)
