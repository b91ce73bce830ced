"""The whole appliance for half an hour, with a fault every minute.

    make appliance-soak MINUTES=30
    make appliance-soak MINUTES=2 ARGS="--every 20 --nodes 1 --keep"

`penstock up` with three logd, NATS, collector, router and console; a publisher at a steady rate on
the collector's socket. In turn each process is killed (-9), and the next time round stopped for
8 s; all must be well again after each. In the end: each acknowledged record is in the Parquet
files, once; no process's memory grows (slope of what it has resident after its warm-up); each error
in a log came with a fault.
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from functools import partial
from typing import Final

from tests.harness.plan import Fault, Plan, in_turn
from tests.harness.systems.appliance import Appliance


def _kill(part: str, it: Appliance) -> str:
    return it.kill(part)


def _freeze(part: str, it: Appliance) -> str:
    return it.freeze(part)


def _faults(it: Appliance) -> Sequence[Fault[Appliance]]:
    return [partial(fault, part) for fault in (_kill, _freeze) for part in it.parts]


def _options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--every", type=float, default=60.0, help="seconds from fault to fault (60)")
    add("--rate", type=float, default=200.0, help="records a second (200)")
    add("--nodes", type=int, default=3, help="of logd (3)")


PLAN: Final = Plan(
    about=__doc__ or "",
    system=Appliance,
    faults=_faults,
    order=in_turn,
    calm_s=lambda run: run.number * run.options.every - run.elapsed_s,
    seconds=1800.0,
    options=_options,
)
