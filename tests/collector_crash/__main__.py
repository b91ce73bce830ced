"""`make crash`: many kills of a real collector under load, and what came of it.

The runs are done in rounds; after each a judge compares everything that was promised with what
arrived. Several may run beside one another: each keeps to its own directory, and, with `--ports`,
to its own ports.

Exit codes: 0 every promise was kept, 1 one was broken, 128 and the signal's number when it was
interrupted. What was broken is left in the directory; else it is removed.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

import orjson

from penstock.collector import failpoints
from tests.collector_crash.crash import CrashRun, Options
from tests.collector_crash.outcome import Outcome
from tests.collector_crash.twins import TWINS
from tests.support.processes import free_port

_SIGNALS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def main() -> int:
    """Run it."""
    arguments = _arguments()
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 1_000_000  # noqa: TID251 - any
    _tell(f"crash: {arguments.runs} runs in rounds of {arguments.round}, seed {seed}")
    arguments.dir.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="collector-crash-", dir=arguments.dir))
    for number in _SIGNALS:
        signal.signal(number, _end)
    whole = Outcome()
    began = time.monotonic()  # noqa: TID251
    try:
        _rounds(arguments, seed, directory, whole)
    except SystemExit:
        shutil.rmtree(directory)
        _tell("crash: interrupted; nothing is left of it")
        raise
    except BaseException:
        print(f"crash: FAILED, seed {seed}; see {directory}", file=sys.stderr)
        raise
    finally:
        summary = {"seconds": round(time.monotonic() - began), "seed": seed, **whole.summary()}  # noqa: TID251
        _tell(orjson.dumps(summary, option=orjson.OPT_INDENT_2).decode())
    if whole.broken:
        print(f"crash: BROKEN, seed {seed}; see {directory}", file=sys.stderr)
        return 1
    shutil.rmtree(directory)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make crash", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100, help="crashes (default 100)")
    parser.add_argument("--round", type=int, default=50, help="crashes before each judgement (50)")
    parser.add_argument("--seed", type=int, help="default: drawn, and printed; +1 for each round")
    parser.add_argument("--dir", type=Path, default=Path(".work"), help="for its data (.work)")
    parser.add_argument(
        "--ports", type=int, metavar="FIRST", help="listen on these (default: free)"
    )
    parser.add_argument("--twin", choices=sorted(TWINS), help="a collector broken on purpose")
    parser.add_argument("--failpoints", default="", metavar="A,B", help="try these before others")
    parser.add_argument("--failpoint-wait-s", type=float, default=8.0, help="for each (default 8)")
    return parser.parse_args()


def _rounds(arguments: argparse.Namespace, seed: int, directory: Path, whole: Outcome) -> None:
    left = arguments.runs
    while left:
        number = (arguments.runs - left) // arguments.round
        place = directory / f"round-{number + 1}"
        crash = CrashRun(
            place,
            runs=min(left, arguments.round),
            seed=seed + number,
            tell=_tell,
            options=_options(arguments),
        )
        try:
            crash.run()
        finally:
            whole.add(crash.outcome)
        left -= crash.outcome.runs
        came = crash.outcome
        _tell(
            f"round {number + 1}, seed {seed + number}: {came.judged} runs judged, "
            f"{whole.judged} of {arguments.runs} in all; {came.promised} promised, "
            f"{came.delivered} delivered, {came.repeats} of them again, "
            f"{came.quarantined} in quarantine; broken: {came.broken or 'nothing'}"
        )
        if not came.broken:
            shutil.rmtree(place)
    if silent := whole.silent(failpoints.NAMES):
        whole.broken.append(f"failpoints that never fired: {silent}")


def _options(arguments: argparse.Namespace) -> Options:
    names = [name for name in arguments.failpoints.split(",") if name]
    if strange := set(names) - set(failpoints.NAMES):
        sys.exit(f"crash: no such failpoints: {sorted(strange)}")
    twin = (sys.executable, "-m", "tests.collector_crash.twins", arguments.twin)
    return Options(
        program=twin if arguments.twin else Options().program,
        port=_ports(arguments.ports) if arguments.ports else free_port,
        failpoints=names,
        failpoint_wait_s=arguments.failpoint_wait_s,
    )


def _ports(first: int) -> Callable[[], int]:
    following = iter(range(first, 65_536))
    return lambda: next(following)


def _end(number: int, _: FrameType | None) -> None:
    """End what was started; a second signal must not end the ending."""
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def _tell(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
