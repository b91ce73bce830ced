"""How long a cluster is away when it loses the node that leads, or decides.

    make failover RUNS=100                          # half an hour and more
    make failover RUNS=6 ARGS="--rate 5000 --json failover.json"

Three logd nodes with default settings; a publisher outside sends as many messages a second, each
until it is acked, and a reader follows. A node is killed (-9), started again, and in sync before
the next one: in turns the stream's leader, the controller, and a node that is both. Messages come
at the full rate from 3 s before a kill until the failover is over, otherwise at a tenth of it.
Every acked message must be at its offset, none twice; the reader sees no gap and no repetition; the
replicas are equal in the end. No time is a broken promise: the report says which aims were met.
"""

from argparse import ArgumentParser
from typing import Final

from tests.bench.figures import percentile
from tests.harness.plan import Plan, Report, in_turn
from tests.harness.systems.failover import WITHOUT_ACK, WITHOUT_RECORD, MeasuredCluster

AIM_S: Final = 2.0
"""Seconds of unavailability at most, p99, of the publisher and of the reader."""


def _kill_leader(it: MeasuredCluster) -> str:
    return it.kill("leader")


def _kill_controller(it: MeasuredCluster) -> str:
    return it.kill("controller")


def _kill_both(it: MeasuredCluster) -> str:
    return it.kill("both")


def tell_aims(report: Report) -> None:
    for what in (WITHOUT_ACK, WITHOUT_RECORD):
        if times_s := report.times_s.get(what):
            met = "met" if percentile(times_s, 99) <= AIM_S else "MISSED"
            report.facts[f"aim: {what}, p99 of at most {AIM_S:g} s"] = met


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("--rate", type=float, default=20_000, help="messages a second (20000)")


PLAN: Final = Plan(
    about=__doc__ or "",
    system=MeasuredCluster,
    faults=lambda _: [_kill_leader, _kill_controller, _kill_both],
    order=in_turn,
    runs=100,
    options=_options,
    review=tell_aims,
)
