"""What a person sees while a launch runs."""

import errno
import io
from pathlib import Path

from rich.console import Console
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.deploy.up.layout import Layout
from penstock.deploy.up.progress import Screen
from penstock.deploy.up.supervision import Phase, TerminatePart


class StoppedClock(SystemClock):
    """The time stands still unless it is moved."""

    now_s = 0

    @override
    def monotonic_ns(self) -> int:
        return self.now_s * 10**9


class FullDisk(io.StringIO):
    """Takes nothing."""

    refused = 0

    @override
    def write(self, text: str) -> int:
        self.refused += 1
        raise OSError(errno.ENOSPC, "No space left on device")


def test_the_live_table_says_how_long_it_still_collects(tmp_path: Path) -> None:
    output, clock = io.StringIO(), StoppedClock()
    console = Console(file=output, force_terminal=True, width=100)
    with Screen(Layout(tmp_path), console=console, clock=clock) as screen:

        def shown() -> str:
            output.seek(0)
            output.truncate()
            screen.show({"logd": Phase.READY}, {})
            return output.getvalue()

        assert "collecting" not in shown()
        screen.count_down(60)
        clock.now_s = 18
        assert "collecting for 42 s more" in shown()
        screen.tell(TerminatePart("app"))
        assert "collecting" not in shown()


def test_on_a_low_terminal_no_part_is_out_of_sight(tmp_path: Path) -> None:
    stages = [
        {"name": f"{kind}/{number}", "received": 1000, "sent": 900, "lag": 100, "errors": errors}
        for kind, errors in (("source", 0), ("publish", 2))
        for number in range(12)
    ]
    parts = ["collector", "logd-1", "router", "console"]
    phases = dict.fromkeys(parts, Phase.READY)
    statuses = {"collector": {"component": "collector", "health": "ready", "stages": stages}}
    for height, low in ((24, True), (60, False)):
        output = io.StringIO()
        console = Console(file=output, force_terminal=True, width=100, height=height)
        with Screen(Layout(tmp_path), console=console, clock=StoppedClock()) as screen:
            screen.show(phases, statuses)
            shown = output.getvalue()
        assert all(part in shown for part in parts)
        assert "..." not in shown
        assert ("source/*" in shown, "publish/7" in shown) == (low, not low)
        if low:
            assert "12,000" in shown
            assert " 24" in shown


def test_what_a_stopped_part_said_last_is_not_shown(tmp_path: Path) -> None:
    stage = {"name": "source/app", "received": 1000, "sent": 900, "lag": 100, "errors": 0}
    statuses = {"collector": {"component": "collector", "health": "ready", "stages": [stage]}}
    for terminal in (True, False):
        for phase, lag in ((Phase.READY, True), (Phase.STOPPED, False)):
            output, clock = io.StringIO(), StoppedClock()
            console = Console(file=output, force_terminal=terminal, width=100)
            with Screen(Layout(tmp_path), console=console, clock=clock) as screen:
                clock.now_s = 60
                screen.show({"collector": phase}, statuses)
                shown = output.getvalue()
            assert ("100" in shown) == lag


def test_a_launch_goes_on_where_its_output_cannot_be_written(tmp_path: Path) -> None:
    """Output cannot be written on a full disk, or after the terminal has gone."""
    for live in (False, True):
        disk = FullDisk()
        console = Console(file=disk, force_terminal=live)
        with Screen(Layout(tmp_path), console=console, clock=StoppedClock()) as screen:
            screen.tell(TerminatePart("app"))
            screen.show({"logd": Phase.READY}, {})
        assert disk.refused > 1
