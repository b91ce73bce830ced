"""kill -9 of a collector under real clients of every acknowledged protocol.

    make crash RUNS=500                                  # two hours
    make crash ARGS="--dir DIR --ports 20000"            # several may run beside one another
    make crash RUNS=5 ARGS="--twin acks-early"

The collector is killed at random, at the named places of `penstock.collector.failpoints`, while it
recovers, and while it reads its configuration again; now and then the tail of a spool is torn. Any
five runs that follow one another from the first on are two kills, two failpoints and one kill in
recovery. After each round everything is held against what the senders were promised: acknowledged
means delivered or in quarantine, with the same bytes, in the sender's order, with no more repeats
than it had under way; nothing is held back, every account is even, and a fresh line arrives.
"""

import sys
from argparse import ArgumentParser
from typing import Final

from penstock.collector import failpoints
from tests.harness.faults.collector import Failpoints, kill, kill_in_recovery
from tests.harness.plan import Fault, Plan, Report, shuffled
from tests.harness.systems.collector import CollectorUnderLoad
from tests.harness.twins.collector import TWINS

_RUNS_PER_FAILPOINT: Final = 6
"""From so many on for each of them, one that never ended the process is one that is not passed."""


def _faults(it: CollectorUnderLoad) -> list[Fault[CollectorUnderLoad]]:
    options = it.run.options
    place = Failpoints(it, options.failpoints, options.failpoint_wait_s)
    return [kill, kill, place, place, kill_in_recovery]


def name_silent_failpoints(report: Report) -> None:
    """A place that was never passed in so many runs proves nothing any more."""
    silent = [name for name in failpoints.NAMES if not report.counts[f"fired: {name}"]]
    if silent and report.runs >= _RUNS_PER_FAILPOINT * len(failpoints.NAMES):
        report.broken.append(f"failpoints that never fired: {sorted(silent)}")


def _options(parser: ArgumentParser) -> None:
    def names(text: str) -> list[str]:
        found = [name for name in text.split(",") if name]
        if strange := sorted(set(found) - set(failpoints.NAMES)):
            parser.error(f"no such failpoints: {strange}; there are {sorted(failpoints.NAMES)}")
        return found

    add = parser.add_argument
    add("--failpoints", type=names, default=[], metavar="A,B", help="try these before others")
    add("--failpoint-wait-s", type=float, default=8.0, help="for each (8)")
    add("--ports", type=int, metavar="FIRST", help="listen on these (default: free ones)")


PLAN: Final = Plan(
    about=__doc__ or "",
    system=CollectorUnderLoad,
    faults=_faults,
    order=shuffled,
    runs=100,
    round_runs=50,
    options=_options,
    twins={name: (sys.executable, "-m", "tests.harness.twins.collector", name) for name in TWINS},
    review=name_silent_failpoints,
)
