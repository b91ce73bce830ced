"""The screen while a launch runs: a live table on a terminal, plain lines elsewhere."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TextIO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.base.clock import Clock, SystemClock
from penstock.deploy.up.layout import Layout
from penstock.deploy.up.supervision import (
    AllReady,
    CutShort,
    Effect,
    GaveUp,
    Phase,
    Restarting,
    StartPart,
    TerminatePart,
    WatchCatchUp,
)
from penstock.service.logs import unfailing

_LINE_INTERVAL_S = 5.0
_PLAIN_WIDTH = 120
_LINES_BESIDE = 4
"""Around the live table: its titles, an empty line, what is left, the cursor's."""
_STYLES = {
    "ready": "green",
    "starting": "yellow",
    "degraded": "yellow",
    "draining": "cyan",
    "failed": "red",
    "restarting": "red",
    "stopped": "dim",
    "waiting": "dim",
}
_COUNTING_STAGE = {"collector": "source/", "logd": "stream/", "router": "sink/"}
_PHASES = {
    Phase.WAITING: "waiting",
    Phase.STARTING: "starting",
    Phase.BACKOFF: "restarting",
    Phase.CATCHING_UP: "draining",
    Phase.STOPPING: "draining",
    Phase.STOPPED: "stopped",
}


class Screen:
    """Shows what happens to a person.

    Args:
        layout: The launch's directory, named at the start.
        steady: A launch without an end: plain output, without progress.
        plan: Said when all parts are ready: what happens now, then one line for each thing to know.
        console: Console to write to; standard output by default.
        clock: Clock of the seconds in front of each line.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        steady: bool = False,
        plan: Sequence[str] = ("",),
        console: Console | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.console = console or Console(highlight=False)
        self.console.file = unfailing(cast("TextIO", self.console.file))
        if not self.console.is_terminal:
            self.console.width = _PLAIN_WIDTH
        self._layout = layout
        self._steady = steady
        self._plan = plan
        self._clock = clock or SystemClock()
        self._began_ns = self._clock.monotonic_ns()
        self._live: Live | None = None
        self._last_line_ns = self._began_ns
        self._until_ns: int | None = None
        self.interval_s = 0.5 if self.console.is_terminal else 1.0

    @property
    def shows_progress(self) -> bool:
        return not self._steady

    def __enter__(self) -> Self:
        """Begin to show."""
        self.say(f"state, configuration and logs in {self._layout.root}")
        if self.console.is_terminal and not self._steady:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the live table away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str, style: str = "") -> None:
        """Write one line that stays."""
        line = Text(f"{self._elapsed_s():>5.0f} s  ", style="dim")
        line.append(text, style=style or "not dim")
        self.console.print(line, soft_wrap=True)

    def tell(self, effect: Effect) -> None:
        """Write what supervision decided, where it concerns a person."""
        match effect:
            case StartPart(name):
                self.say(f"starting {name}")
            case AllReady():
                self.say(f"all parts are ready; {self._plan[0]}", "bold green")
                for line in self._plan[1:]:
                    self.console.print(Text(line), soft_wrap=True)
            case WatchCatchUp(name):
                self.say(f"waiting until {name} has caught up")
            case TerminatePart(name):
                self._until_ns = None  # draining, perhaps before the time
                self.say(f"stopping {name}")
            case Restarting(name, code, delay_ns):
                self.say(f"{name} ended with {code}; again in {delay_ns / 1e9:.1f} s", "red")
            case CutShort(name, what):
                self.say(f"{name}: {what}", "red")
            case GaveUp(name, _):
                self.say(f"{name} could not be started", "bold red")
            case _:
                pass

    def count_down(self, seconds: int) -> None:
        """Show from now on how much of so many seconds is left."""
        self._until_ns = self._clock.monotonic_ns() + seconds * 10**9

    def show(self, phases: Mapping[str, Phase], statuses: Mapping[str, dict[str, Any]]) -> None:
        """Bring the table, or from time to time a line, up to date.

        What a part that has stopped said last is left out: it went on counting after that.
        """
        stopped = {name for name, phase in phases.items() if phase is Phase.STOPPED}
        statuses = {name: said for name, said in statuses.items() if name not in stopped}
        if self._live is not None:
            table = stage_table(phases, statuses)
            if table.row_count + _LINES_BESIDE > self.console.height:
                table = part_table(phases, statuses)
            self._live.update(Group(Text(), table, Text(self._left(), "dim")), refresh=True)
            return
        now_ns = self._clock.monotonic_ns()
        if not self._steady and (now_ns - self._last_line_ns) / 1e9 >= _LINE_INTERVAL_S:
            self._last_line_ns = now_ns
            if statuses:
                self.say(summary_line(statuses))

    def _left(self) -> str:
        """Return how long it still collects, while it does."""
        if self._until_ns is None:
            return ""
        left_ns = self._until_ns - self._clock.monotonic_ns()
        return f"collecting for {left_ns / 1e9:.0f} s more" if left_ns > 0 else ""

    def _elapsed_s(self) -> float:
        return (self._clock.monotonic_ns() - self._began_ns) / 1e9


def stage_table(phases: Mapping[str, Phase], statuses: Mapping[str, dict[str, Any]]) -> Table:
    """One row for each stage of each part."""
    table = _empty_table()
    for name, phase in phases.items():
        status = statuses.get(name, {})
        stages = [stage for stage in status.get("stages", ()) if _is_worth_a_row(stage)]
        first = _part_cells(name, phase, status)
        if not stages:
            table.add_row(*first)
        for index, stage in enumerate(stages):
            table.add_row(*(first if index == 0 else ("", "")), *stage_cells(stage))
    return table


def part_table(phases: Mapping[str, Phase], statuses: Mapping[str, dict[str, Any]]) -> Table:
    """One row for each part, for a terminal that is too low for its stages."""
    table = _empty_table()
    for name, phase in phases.items():
        status = statuses.get(name, {})
        first, stages = _part_cells(name, phase, status), status.get("stages", ())
        kind = _COUNTING_STAGE.get(str(status.get("component")), "")
        if any(map(_is_worth_a_row, stages)):
            of_kind = [stage for stage in stages if stage["name"].startswith(kind)]
            keys = ("received", "sent", "lag")
            summed = {key: sum(int(stage[key]) for stage in of_kind) for key in keys}
            errors = sum(int(stage["errors"]) for stage in stages)
            table.add_row(*first, *stage_cells({"name": f"{kind}*", "errors": errors, **summed}))
        else:
            table.add_row(*first)
    return table


def _empty_table() -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for title in ("part", "health", "stage"):
        table.add_column(title)
    for title in ("in", "out", "lag", "errors"):
        table.add_column(title, justify="right")
    return table


def _part_cells(name: str, phase: Phase, status: Mapping[str, Any]) -> tuple[Text, Text]:
    health = _PHASES.get(phase) or str(status.get("health", "ready"))
    return Text(name, style="bold"), Text(health, style=_STYLES.get(health, ""))


def stage_cells(stage: Mapping[str, Any]) -> tuple[Text, ...]:
    """Name and figures of one stage, errors in red."""
    errors = int(stage["errors"])
    return (
        Text(stage["name"]),
        *(Text(f"{int(stage[key]):,}") for key in ("received", "sent", "lag")),
        Text(f"{errors:,}", style="red" if errors else "dim"),
    )


def summary_line(statuses: Mapping[str, dict[str, Any]]) -> str:
    """All components on one line: records in and out, what waits, what failed."""
    components = sorted({status["component"] for status in statuses.values()})
    return " | ".join(  # as it happens, in the order of the data path
        f"{name} in {_total(statuses, name, 'received'):,} out {_total(statuses, name, 'sent'):,}"
        f" lag {_total(statuses, name, 'lag'):,} errors {_total(statuses, name, 'errors'):,}"
        for name in components
    )


def _total(statuses: Mapping[str, Mapping[str, Any]], component: str, key: str) -> int:
    """A component's own figure: one kind of its stages counts each record once."""
    kind = _COUNTING_STAGE.get(component, "")
    own = [status for status in statuses.values() if status["component"] == component]
    stages = [stage for status in own for stage in status["stages"]]
    return sum(int(stage[key]) for stage in stages if stage["name"].startswith(kind))


def _is_worth_a_row(stage: Mapping[str, Any]) -> bool:
    return any(stage[key] for key in ("received", "sent", "lag", "errors"))
