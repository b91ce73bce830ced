"""How far moves are, and what is shown of it."""

import io
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.logd.api.models import StreamList
from penstock.logd.cli.cluster import (
    QUIET_S,
    STUCK_S,
    Place,
    ProgressPoller,
    StillUnderWayError,
    Work,
    left_of_drain,
    left_of_move,
    left_of_rebalance,
    watch,
)
from penstock.logd.client import LogClient, PartitionInfo, StreamInfo
from penstock.logd.errors import UnavailableError

MIB = 1_000_000


class ManualClock(SystemClock):
    """A clock that goes as the test says."""

    def __init__(self) -> None:
        self.now_ns = 0

    @override
    def monotonic_ns(self) -> int:
        return self.now_ns

    def advance(self, span_ns: int) -> None:
        self.now_ns += span_ns


def part(nodes: str, isr: str | None = None, *, size: int = 10 * MIB, **more: Any) -> PartitionInfo:
    """A partition on nodes named by letters; the first one leads."""
    return PartitionInfo(
        partition=0,
        start_offset=0,
        high_watermark=9,
        end_offset=10,
        epoch=1,
        size_bytes=size,
        leader=more.pop("leader", nodes[:1]),
        replicas=tuple(nodes),
        isr=tuple(nodes if isr is None else isr),
        **more,
    )


def stream(name: str, found: PartitionInfo) -> StreamInfo:
    return StreamInfo(name=name, subject=name, incarnation="1", partitions=(found,), options={})


@dataclass
class Script:
    """A cluster that is one step further each time it is asked.

    Attributes:
        steps: Streams, or what it fails with.
        copied: Bytes a node has by its name, at each step.
    """

    steps: Sequence[dict[str, PartitionInfo] | BaseException]
    copied: Sequence[dict[str, int]] = ()
    at: int = -1
    asked: list[str] = field(default_factory=list)

    def streams(self, *, internal: bool) -> list[StreamInfo]:
        assert internal
        self.at = min(self.at + 1, len(self.steps) - 1)
        now = self.steps[self.at]
        if isinstance(now, BaseException):
            raise now
        return [stream(name, found) for name, found in now.items()]

    def ask(self, call: Any) -> StreamList:
        node = call.to.node
        self.asked.append(node)
        now = self.steps[self.at]
        assert isinstance(now, dict)
        size = self.copied[self.at].get(node) if self.copied else None
        if size is None:
            raise UnavailableError("away")
        return StreamList(node, [stream(name, part("x", size=size)) for name in now])


MOVE = (
    {"s": part("ab", target=("a", "c"))},
    {"s": part("abc", "ab", target=("a", "c"))},
    {"s": part("abc", "ab", target=("a", "c"))},
    {"s": part("abc", target=("a", "c"))},
    {"s": part("ac")},
)
COPIED: tuple[dict[str, int], ...] = ({}, {"c": 0}, {"c": 4 * MIB}, {"c": 10 * MIB}, {})


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def run(script: Script, clock: ManualClock, *, as_json: bool = False, **work: Any) -> Any:
    asked = Work(**{"label": "s/0", "hint": "look", "is_left": left_of_move(S, "ac"), **work})
    return watch(
        cast("LogClient", script),
        asked,
        as_json=as_json,
        clock=clock,
        pause=lambda seconds: clock.advance(round(seconds * 1e9)),
    )


S = Place("s", 0)


def test_without_a_terminal_each_step_is_a_line(
    clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script(MOVE, COPIED)
    course = run(script, clock)
    assert (course.done, course.total, course.copied_bytes) == (1, 1, 10 * MIB)
    out, error = capsys.readouterr()
    assert out == ""
    assert error.splitlines() == [
        "s/0: on a, b, c, led by a; copying to c; 0 of 1 partitions, 0 B of 10.0 MB",
        "s/0: on a, c, led by a; 1 of 1 partitions, 10.0 MB of 10.0 MB",
        "s/0: done; 1 of 1 partitions, 10.0 MB of 10.0 MB",
    ]
    assert set(script.asked) == {"c"}  # nobody is asked who has nothing new


class Terminal(io.StringIO):
    """What is written to a terminal."""

    @override
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_bar_has_bytes_and_time(
    clock: ManualClock,
) -> None:
    with redirect_stderr(Terminal()) as terminal:
        run(Script(MOVE, COPIED), clock)
    shown = terminal.getvalue().split("\r")
    first = "s/0  [--------------------]    0%  0 of 1 partitions, "
    assert any(f"{first}4.0 MB of 10.0 MB, some 2 s left" in line for line in shown), shown
    assert "100%  1 of 1 partitions, 10.0 MB of 10.0 MB" in shown[-1]


def test_with_json_nothing_is_shown(clock: ManualClock, capsys: pytest.CaptureFixture[str]) -> None:
    with redirect_stderr(Terminal()) as terminal:
        run(Script(MOVE, COPIED), clock, as_json=True)
    assert (*capsys.readouterr(), terminal.getvalue()) == ("", "", "")


def test_ctrl_c_leaves_the_work_going_and_says_so(clock: ManualClock) -> None:
    script = Script([MOVE[0], KeyboardInterrupt()])
    with pytest.raises(StillUnderWayError, match="the work goes on") as found:
        run(script, clock)
    assert found.value.exit_code == 75


def test_what_does_not_move_is_told_with_what_it_needs(clock: ManualClock) -> None:
    before = clock.monotonic_ns()
    stuck = Script([{"s": part("abc")}])
    with pytest.raises(StillUnderWayError, match="1 of 1 partitions are left") as found:
        run(stuck, clock, is_left=left_of_drain("b"), hint="start nodes")
    assert found.value.fix == "start nodes"
    assert clock.monotonic_ns() - before >= STUCK_S * 1e9


def test_a_cluster_that_does_not_answer_is_asked_again_for_a_while(clock: ManualClock) -> None:
    away = UnavailableError("nobody answers")
    assert run(Script([away, *MOVE]), clock).is_done
    with pytest.raises(UnavailableError, match="nobody answers"):
        run(Script([MOVE[0], away]), clock)


def test_a_rebalance_is_over_when_nothing_was_under_way_for_a_while(clock: ManualClock) -> None:
    steps = [
        {"s": part("ab"), "t": part("ab", leader="b")},
        {"s": part("ab"), "t": part("ab")},
        {"s": part("ab", target=("b", "c")), "t": part("ab")},
        {"s": part("bc"), "t": part("ab")},
    ]
    course = run(Script(steps), clock, is_left=left_of_rebalance, lasting=True)
    assert (course.done, course.total) == (1, 1)
    assert clock.monotonic_ns() >= QUIET_S * 1e9


def test_a_drain_counts_what_comes_later_and_observers_too() -> None:
    survey = ProgressPoller(left_of_drain("b"))
    first = {S: part("ab"), Place("t", 0): part("a", observers=("b",)), Place("u", 0): part("ac")}

    def nothing(_: str) -> dict[Place, PartitionInfo]:
        return {}

    assert survey.look(first, nothing).total == 2
    later = {**first, Place("v", 0): part("b"), Place("t", 0): part("a")}
    course = survey.look(later, nothing)
    assert (course.done, course.total) == (1, 3)
    gone = survey.look({Place("u", 0): part("ac")}, nothing)
    assert gone.is_done
    assert "s/0: is gone" in gone.steps
