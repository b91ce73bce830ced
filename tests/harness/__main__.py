"""Runs a system under load, brings faults about, and judges what came of it.

    python -m tests.harness soak --runs 200
    python -m tests.harness nemesis --seconds 600 --seed 7
    python -m tests.harness PLAN --help              # the options of one plan

Exit codes:
  0    every promise was kept
  1    a promise was broken; the data is left, and the command that repeats the run is printed
  2    the command line is wrong
  70   the harness itself went wrong
  128 and the signal's number when it was interrupted; nothing is left of it
"""

import argparse
import importlib
import logging
import shlex
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click
import orjson
import psutil

from penstock.base.clock import SystemClock
from tests.harness.plan import SECOND_NS, Plan, Report, execute

PLANS: Final = tuple(
    sorted(path.stem.replace("_", "-") for path in Path(__file__).with_name("plans").glob("*.py"))
)
_SIGNALS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_HARNESS_FAILED: Final = 70


class _InterruptedError(BaseException):
    """A signal ended the harness: not an error that anything in between may handle."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(self.signal.name)


def load_plan(name: str) -> Plan[Any]:
    """The plan in the file of this name."""
    plan: Plan[Any] = importlib.import_module(f"tests.harness.plans.{name.replace('-', '_')}").PLAN
    return plan


def parse(arguments: Sequence[str]) -> tuple[Plan[Any], argparse.Namespace]:
    """The plan that the first argument names, and its options."""
    parser = _parser(__doc__ or "")
    name = next((word for word in arguments if word in PLANS), None)
    if name is not None:
        plan = load_plan(name)
        parser = _parser(plan.about)
        _add_options(parser, plan)
        options = parser.parse_args(arguments)
        given = options.runs is not None or options.seconds is not None
        if not given:
            options.runs, options.seconds = plan.runs, plan.seconds
        return plan, options
    parser.parse_args(arguments)
    raise AssertionError("argparse has refused a plan that is none")


def run_plan(arguments: Sequence[str], directory: Path) -> Report:
    """Carry out a command line in a directory; for tests."""
    plan, options = parse([*arguments])
    return execute(plan, options, directory, _tell)


def main(arguments: Sequence[str]) -> int:
    """Carry out a command line; the exit code."""
    plan, options = parse(arguments)
    again = shlex.join(_again(arguments, options.seed))
    for number in _SIGNALS:
        signal.signal(number, _interrupt)
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # a collector that is away
    options.dir.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=f"{options.plan}-", dir=options.dir)).resolve()
    _tell(f"{options.plan}: seed {options.seed}, in {directory}")
    begun_ns = SystemClock().monotonic_ns()
    try:
        report = execute(plan, options, directory, _tell)
    except _InterruptedError as error:
        _end_children()
        shutil.rmtree(directory)
        _tell(f"{options.plan}: ended by {error.signal.name}; nothing is left of it")
        return 128 + error.signal
    except Exception:  # noqa: BLE001 - told, with what to do about it
        _end_children()
        _tell(traceback.format_exc())
        _tell(f"the harness failed; everything is left in {directory}\nagain: {again}")
        return _HARNESS_FAILED
    seconds = round((SystemClock().monotonic_ns() - begun_ns) / SECOND_NS)
    summary = {"plan": options.plan, "seed": options.seed, "seconds": seconds, **report.summary()}
    _tell(orjson.dumps(summary, option=orjson.OPT_INDENT_2).decode())
    if options.json:
        options.json.write_bytes(orjson.dumps(summary, option=orjson.OPT_INDENT_2) + b"\n")
    if report.broken:
        _tell(f"BROKEN: {len(report.broken)} promises; everything is left in {directory}")
        _tell(f"again: {again}")
        return 1
    _tell("every promise was kept")
    if options.keep:
        _tell(f"everything is left in {directory}")
    else:
        shutil.rmtree(directory)
    return 0


def _parser(about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.harness",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("plan", choices=PLANS, metavar="PLAN", help=", ".join(PLANS))
    return parser


def _add_options(parser: argparse.ArgumentParser, plan: Plan[Any]) -> None:
    def minutes(text: str) -> float:
        return float(text) * 60

    length = f"{plan.runs} runs" if plan.runs else f"{plan.seconds:g} s"
    add = parser.add_argument
    add("--runs", type=int, help=f"end after so many runs (this plan: {length})")
    add("--seconds", type=float, help="end after the run in which so many seconds have passed")
    add("--minutes", dest="seconds", type=minutes, metavar="MINUTES", help="the same in minutes")
    add("--round", type=int, default=plan.round_runs, metavar="RUNS",
        help="judge everything after so many runs, and begin again with the next seed"
        f" (this plan: {plan.round_runs or 'only at the end'})")  # fmt: skip
    drawn = SystemClock().unix_ns() % 1_000_000
    add("--seed", type=int, default=drawn, help="of everything that is drawn; default: any")
    add("--dir", type=Path, default=Path(".work"), help="make a directory there (.work)")
    add("--keep", action="store_true", help="leave the data also when all was kept")
    add("--json", type=Path, metavar="FILE", help="write the report there, too")
    add("--twin", choices=sorted(plan.twins), default=None,
        help="run a program that is broken on purpose; the plan must find it out")  # fmt: skip
    plan.options(parser)


def _again(arguments: Sequence[str], seed: int) -> list[str]:
    given = any(word.split("=")[0] == "--seed" for word in arguments)
    return ["python", "-m", "tests.harness", *arguments, *([] if given else ["--seed", str(seed)])]


def _interrupt(number: int, _: FrameType | None) -> None:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)  # a second one must not end the ending
    raise _InterruptedError(number)


def _end_children() -> None:
    """End what a signal left behind that came between the start of a process and its first use."""
    left = psutil.Process().children(recursive=True)
    for process in left:
        process.kill()
    psutil.wait_procs(left, timeout=20)


def _tell(text: str) -> None:
    click.echo(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
