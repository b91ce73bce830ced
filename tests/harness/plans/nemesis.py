"""Faults of every kind, drawn at random, on a real cluster under load.

    make nemesis SECONDS=600 SEED=7

Nodes are killed, stopped, frozen and started; the network between them, and to NATS, is cut and
held up, each direction by itself; operators move, drain and alter meanwhile, and a consumer group
reads. The seed draws the same faults, not the same moments: what the processes do in between is
their own. In the end every acked message must be at its offset on every replica, once and in order;
replicas are equal, epochs never fall, readers were shown what is there, the group was given
everything.
"""

import random
from argparse import ArgumentParser
from typing import Final

from tests.harness.faults import cluster
from tests.harness.faults.operators import operate
from tests.harness.plan import Plan, Run
from tests.harness.publishers import few, mixed
from tests.harness.systems.cluster import ClusterUnderLoad


def _system(run: Run) -> ClusterUnderLoad:
    rng = random.Random(run.seed)
    streams = {"s": mixed("s", rng.getrandbits(32)), "t": few("t", rng.getrandbits(32))}
    return ClusterUnderLoad(run, streams)


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=4, help="of logd (4)")


PLAN: Final = Plan(
    about=__doc__ or "",
    system=_system,
    faults=lambda _: cluster.ANY,
    also={operate: 0.4},
    lasts_s=(0.2, 4.0),
    more=0.35,
    can_take_more=lambda it: bool(it.cluster.standing()),
    seconds=120.0,
    options=_options,
)
