"""`make failover`: how long a cluster is away when it loses the node that leads, or decides.

    make failover RUNS=100                          # half an hour and more
    make failover RUNS=6 ARGS="--rate 5000 --json failover.json"

Three logd nodes with default settings; a publisher outside sends as many messages a second, each
until it is acked, and a reader follows. A node is killed (-9), started again, and in sync before
the next one: in turns the stream's leader, the controller, and a node that is both. Messages come
at the full rate from 3 s before a kill until the failover is over, otherwise at a tenth of it.
Every acked message is looked up.
"""

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from penstock.base.clock import SystemClock
from tests.bench import machine
from tests.bench.figures import percentile
from tests.bench.report import ConsoleProgress, make_console, number_text, show_facts
from tests.failover.course import KINDS, Course, Kill

AIM_S: Final = 2.0
"""Seconds of unavailability at most, p99, of the publisher and of the reader."""

MEASURES: Final = {
    "publisher_s": "publisher without an ack",
    "slowest_s": "slowest message",
    "reader_s": "reader without a record",
    "back_s": "node started to in sync",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, and show what was found, also of a part."""
    options = _parse(arguments)
    console, terminal = make_console(), make_console(error=True)
    for wanted in (signal.SIGINT, signal.SIGTERM):  # a shell may have had the first one ignored
        signal.signal(wanted, _interrupt)
    options.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="failover-") as name:
        head: dict[str, Any] = {
            "begun_unix_ns": SystemClock().unix_ns(),
            "rate_wanted": options.rate,
            "machine": machine.facts(Path(name), mib=64),
        }
        show_facts(console, head["machine"])
        progress = ConsoleProgress(terminal)
        course = Course(Path(name) / "cluster", options.rate, progress.step)
        code = 0
        try:
            course.run(options.runs)
        except KeyboardInterrupt:
            terminal.print("interrupted; everything started has been ended")
            code = 130
        except Exception:  # noqa: BLE001 - shown, and what was measured before
            console.print_exception()
            code = 1
        finally:
            progress.close()
    _show(console, course)
    if options.json:
        _write(options.json, head | {"complete": code == 0}, course)
    return code


def summarise(kills: Sequence[Kill]) -> dict[str, dict[str, dict[str, float]]]:
    """By kind (and all): by measure: how often, p50, p99 and the longest, in seconds."""
    groups = {kind: [kill for kill in kills if kill.kind == kind] for kind in KINDS}
    groups["any"] = list(kills)
    return {
        kind: {measure: _spread([getattr(kill, measure) for kill in some]) for measure in MEASURES}
        for kind, some in groups.items()
        if some
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "kills": len(values),
        "p50": percentile(values, 50),
        "p99": percentile(values, 99),
        "max": max(values),
    }


def _show(console: Console, course: Course) -> None:
    table = Table(title="Unavailability, seconds", title_justify="left", title_style="bold")
    for column in ("killed", "kills", "seen by", "p50", "p99", "max"):
        table.add_column(column, justify="left" if column in ("killed", "seen by") else "right")
    found = summarise(course.kills)
    for kind, measures in found.items():
        for number, (measure, values) in enumerate(measures.items()):
            figures = [number_text(values[key]) for key in ("p50", "p99", "max")]
            shown = (kind, str(int(values["kills"]))) if number == 0 else ("", "")
            table.add_row(*shown, MEASURES[measure], *figures)
        table.add_section()
    console.print(table)
    if course.kills:
        rates = [kill.rate for kill in course.kills]
        console.print(
            f"  {course.acked:,} messages acked at {number_text(percentile(rates, 50))}/s (wanted"
            f" {number_text(course.rate)}/s), {course.checked:,} of them looked up and found",
            markup=False,
        )
        for measure in ("publisher_s", "reader_s"):
            p99 = found["any"][measure]["p99"]
            result = "met" if p99 <= AIM_S else "MISSED"
            text = f"  aim {result}: {MEASURES[measure]}, p99: {number_text(p99)} s"
            console.print(f"{text} (at most {AIM_S:g} s)", markup=False)


def _write(path: Path, head: dict[str, Any], course: Course) -> None:
    document = {
        "version": 1,
        **head,
        "acked": course.acked,
        "checked": course.checked,
        "summary": summarise(course.kills),
        "kills": [asdict(kill) for kill in course.kills],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make failover", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100, help="kills; default 100")
    parser.add_argument("--rate", type=float, default=20_000, help="messages a second; 20000")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, too")
    parser.add_argument("--dir", type=Path, default=Path.cwd() / ".work", help="where to work")
    return parser.parse_args(arguments)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
