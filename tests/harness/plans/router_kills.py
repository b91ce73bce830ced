"""kill -9 of a router job's processes under load, three sinks.

    make router-kills RUNS=50                  # 20 minutes
    make router-kills ARGS=--cluster           # on a Spark cluster of this host
    make router-kills ARGS=--store             # lose the job's directory, not its checkpoint store

The driver, its JVM, Spark's Python workers and executors are killed, the driver also while it
starts; one of the sinks is down half of the time. In the end each record of the log must be in each
sink exactly once and as it was published, nothing else may be there, and no dead letter.
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Final

from tests.harness.faults.router import kill_driver, kill_executor, kill_jvm, kill_worker
from tests.harness.plan import Fault, Plan
from tests.harness.systems.router import RouterUnderLoad

_CALM_S: Final = (0.0, 5.0)
"""Between a kill and the next one, from ready on."""


def _faults(it: RouterUnderLoad) -> Sequence[Fault[RouterUnderLoad]]:
    if it.cluster is not None:
        return [kill_driver] * 3 + [kill_jvm, kill_worker] + [kill_executor] * 5
    return [kill_driver] * 5 + [kill_jvm] * 2 + [kill_worker] * 3


def _options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--cluster", action="store_true", help="on a Spark cluster of this host")
    add("--store", action="store_true", help="lose the directory, not the checkpoint store")


PLAN: Final = Plan(
    about=__doc__ or "",
    system=RouterUnderLoad,
    faults=_faults,
    calm_s=lambda run: run.rng.uniform(*_CALM_S),
    runs=50,
    options=_options,
)
