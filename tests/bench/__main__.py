"""`make bench`: logd beside NATS JetStream and beside what the machine can do, in one run.

    make bench                                     # everything; an hour and more
    make bench ARGS="--quick"                      # a first look; minutes
    make bench ARGS="--only b,c --rounds 5 --json bench.json"

docs/BENCHMARKS.md says what each scenario measures and how to read the tables.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from penstock.base.clock import SystemClock
from tests.bench import (
    acked,
    app_log,
    appliance,
    batches,
    catch_up,
    cluster_footprint,
    collecting,
    endpoints,
    finding,
    footprint,
    gate,
    latency,
    machine,
    plain,
    reading,
    recovery,
    replicated,
    replicated_latency,
    source,
    stages,
    subjects,
    throughput,
    transforms,
    typed,
    whole_job,
)
from tests.bench.figures import Case
from tests.bench.harness import Bench, Effort
from tests.bench.report import (
    ConsoleProgress,
    make_console,
    read_json,
    show_facts,
    show_scenario,
    write_json,
)

Scenario = tuple[str, Callable[[Bench], Iterable[Case]]]

SCENARIOS: Final[dict[str, Sequence[Scenario]]] = {
    "a": ((plain.TITLE, plain.run),),
    "b": ((acked.TITLE, acked.run),),
    "c": ((batches.TITLE, batches.run),),
    "d": ((latency.TITLE, latency.run),),
    "e": ((throughput.TITLE, throughput.run),),
    "f": ((reading.TITLE, reading.run), (finding.TITLE, finding.run)),
    "g": ((recovery.TITLE, recovery.run), (footprint.TITLE, footprint.run)),
    "h": ((subjects.TITLE, subjects.run),),
    "i": ((replicated.TITLE, replicated.run),),
    "j": ((replicated_latency.TITLE, replicated_latency.run),),
    "k": ((catch_up.TITLE, catch_up.run),),
    "l": ((cluster_footprint.TITLE, cluster_footprint.run),),
    "m": ((gate.TITLE, gate.run),),
    "n": ((app_log.TITLE, app_log.run),),
    "o": ((endpoints.TITLE, endpoints.run),),
    "p": ((collecting.FILE_TITLE, collecting.run_files),),
    "q": (
        (collecting.OTLP_TITLE, collecting.run_otlp),
        (collecting.SENDERS_TITLE, collecting.run_senders),
    ),
    "r": ((collecting.FORWARD_TITLE, collecting.run_forward),),
    "s": ((source.TITLE, source.run),),
    "t": ((typed.TITLE, typed.run),),
    "u": (
        (whole_job.TITLE, whole_job.run),
        (whole_job.LINES_TITLE, whole_job.run_lines),
        (whole_job.CORES_TITLE, whole_job.run_by_cores),
    ),
    "v": ((transforms.TITLE, transforms.run), (stages.TITLE, stages.run)),
    "w": ((collecting.RESTART_TITLE, collecting.run_restart),),
    "x": ((collecting.SPECS_TITLE, collecting.run_specs),),
    "y": ((collecting.SYSLOG_TITLE, collecting.run_syslog),),
    "z": ((appliance.TITLE, appliance.run),),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for, show it, and write it down."""
    options = _parse(arguments)
    effort = Effort.SMOKE if options.smoke else Effort.QUICK if options.quick else Effort.FULL
    console, terminal = make_console(), make_console(error=True)
    for wanted in (signal.SIGINT, signal.SIGTERM):  # a shell may have had the first one ignored
        signal.signal(wanted, _interrupt)
    if options.json is not None:
        try:
            read_json(options.json)
        except ValueError as error:  # now, not at the end of an hour's run
            terminal.print(f"bench: {error}", markup=False)
            return 65
    options.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="bench-") as name:
        head: dict[str, Any] = {
            "begun_unix_ns": SystemClock().unix_ns(),
            "effort": effort.name.lower(),
            "rounds": options.rounds or (3, 2, 1)[effort],
            "machine": machine.facts(Path(name), mib=(1024, 256, 16)[effort]),
        }
        console.print(f"{head['effort']} run, {head['rounds']} rounds", style="bold")
        show_facts(console, head["machine"])
        progress = ConsoleProgress(terminal)
        bench = Bench(Path(name), effort, head["rounds"], progress)
        try:
            failed = _run(bench, options.only, console, options.json, head)
        except KeyboardInterrupt:
            terminal.print("interrupted; everything started has been ended")
            return 130
        finally:
            progress.close()
    return 1 if failed else 0


def _run(
    bench: Bench, letters: Sequence[str], console: Console, path: Path | None, head: dict[str, Any]
) -> list[str]:
    """Run scenarios in order, though one fails; the file is written after each.

    Returns:
        Those that failed.
    """
    failed: list[str] = []
    for letter in letters:
        found: list[Case] = []
        loads: dict[str, Any] = {}
        stopped: list[str] = []
        for title, run in SCENARIOS[letter]:
            before = machine.load()
            cases: list[Case] = []
            try:
                for case in run(bench):
                    cases.append(case)  # noqa: PERF402 - what was measured before a failure counts
            except Exception:  # noqa: BLE001 - shown; the others can still be measured
                stopped.append(title)
                console.print_exception()
            loads[title] = {"before": before, "after": machine.load()}
            found += cases
            show_scenario(console, letter, title, cases, aims=bench.effort is not Effort.SMOKE)
            console.print(f"  load average {before} before, {machine.load()} after\n", markup=False)
            if path is not None:
                write_json(path, letter, head | {"load": loads, "failed": stopped}, found)
        failed += stopped
    return failed


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--only", type=_letters, default=list(SCENARIOS), metavar="a,b,...",
        help="\n".join(f"{key}  {titles[0][0]}" for key, titles in SCENARIOS.items()),
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, help="turns that count, of each system; default 3")
    parser.add_argument("--quick", action="store_true", help="fewer messages, shorter, 2 rounds")
    parser.add_argument("--smoke", action="store_true", help="only show that it works")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the figures there, too; the file keeps scenarios that this run leaves out",
    )
    parser.add_argument(
        "--dir", type=Path, default=Path.cwd() / ".work", help="on the disk to measure"
    )
    return parser.parse_args(arguments)


def _letters(text: str) -> list[str]:
    letters = text.split(",")
    unknown = [letter for letter in letters if letter not in SCENARIOS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}"
        )
    return letters


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
