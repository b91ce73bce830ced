"""How a run is shown: tables and progress on the terminal, JSON in a file."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.base.files import atomic_write
from tests.bench.figures import Case, Spread, Verdict, spread

VERSION = 2
"""The version of the JSON. A reader refuses a version that it does not know."""

_WIDTH = 175
"""Columns of a table that goes to a file."""


def make_console(*, error: bool = False) -> Console:
    """A console that does not fold tables when its output goes to a file."""
    console = Console(stderr=error, highlight=False)
    return console if console.is_terminal else Console(stderr=error, highlight=False, width=_WIDTH)


class ConsoleProgress:
    """Shows the step at hand: in place on a terminal, else a line for each new subject."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("starting") if console.is_terminal else None
        self._shown = ""
        if self._status is not None:
            self._status.start()

    def step(self, text: str) -> None:
        """Show what is being done; the part before the first colon is its subject."""
        if self._status is not None:
            self._status.update(Text(text))
            return
        subject = text.partition(":")[0]
        if subject != self._shown:
            self._console.print(subject, markup=False)
            self._shown = subject

    def close(self) -> None:
        """Take it off the terminal."""
        if self._status is not None:
            self._status.stop()


def show_facts(console: Console, facts: Mapping[str, Any]) -> None:
    """Print what was measured on."""
    for name, value in facts.items():
        console.print(f"  {name:<28} {value}", markup=False)


def show_scenario(
    console: Console, letter: str, title: str, cases: Sequence[Case], *, aims: bool
) -> None:
    """Print the cases of a scenario as one table, and which aims were met."""
    table = Table(title=f"{letter}. {title}", title_justify="left", title_style="bold")
    table.add_column("case")
    table.add_column("system")
    table.add_column("median", justify="right")
    table.add_column("lowest to highest", justify="right")
    table.add_column("unit")
    table.add_column("compared")
    for case in cases:
        for number, (system, values) in enumerate(case.series.items()):
            found = spread(values)
            table.add_row(
                case.name if number == 0 else "",
                system,
                number_text(found.median),
                f"{number_text(found.low)} to {number_text(found.high)}",
                case.unit,
                "\n".join(_compared(case, system)),
            )
        table.add_section()
    console.print(table)
    for case in cases if aims else ():
        for verdict in case.verdicts():
            console.print("  " + verdict_text(case, verdict), markup=False)


def read_json(path: Path) -> dict[str, Any]:
    """The scenarios of a file, by letter; none where there is no file.

    Raises:
        ValueError: The file has another version, or holds no JSON.
    """
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} holds no JSON ({error}): name another file") from error
    if document.get("version") != VERSION:
        raise ValueError(
            f"{path} has version {document.get('version')}, not {VERSION}: name another file"
        )
    scenarios: dict[str, Any] = document["scenarios"]
    return scenarios


def write_json(path: Path, letter: str, head: Mapping[str, Any], cases: Iterable[Case]) -> None:
    """Write one scenario into a file, which keeps the other scenarios that it holds.

    So several runs complete a file; each scenario says when and on what it was measured.

    Raises:
        ValueError: The file has another version.
    """
    scenario = {**head, "cases": [case.document() for case in cases]}
    scenarios = dict(sorted((read_json(path) | {letter: scenario}).items()))
    document = {"version": VERSION, "scenarios": scenarios}
    atomic_write(path, json.dumps(document, indent=1) + "\n", durable=False)


def number_text(value: float) -> str:
    """A number with three or four digits that matter."""
    if abs(value) >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def verdict_text(case: Case, verdict: Verdict) -> str:
    """One aim, and whether it was met."""
    aim = verdict.aim
    measure = "at least" if case.better == "higher" else "at most"
    if aim.against is None:
        wanted = f"{measure} {number_text(aim.bound)} {case.unit}"
    else:
        wanted = f"{measure} {number_text(aim.bound)} of {aim.against}"
    result = "met" if verdict.met else "MISSED"
    place = f"{case.scenario}, {case.name}"
    return f"aim {result}: {place}: {aim.system}: {number_text(verdict.value)} ({wanted})"


def _compared(case: Case, system: str) -> Iterable[str]:
    for other in case.compare.get(system, ()):
        found = case.ratio(system, other)
        if found is not None:
            yield f"{_spread_text(found)} of {other}"
    if system in case.notes:
        yield case.notes[system]


def _spread_text(found: Spread) -> str:
    median, low, high = (number_text(value) for value in found)
    return median if low == high else f"{median} ({low} to {high})"
