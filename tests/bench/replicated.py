"""i. Replicated ingest: three logd nodes against three nats-servers, three replicas each.

As in a, b and c, with the same publishers. `commit` answers when all replicas in sync have the
record on their disks; JetStream with `always` when a majority has. `interval` and JetStream's
default answer when as many have it, on disk or not.
"""

from collections.abc import Iterator

from tests.bench import acked, batches, plain
from tests.bench.clusters import running_clusters
from tests.bench.figures import Aim, Case
from tests.bench.harness import Bench
from tests.bench.systems import COMMIT, DEFAULT, INTERVAL

TITLE = "three replicas: plain without reply, acked, batches"
ALONE_MIN = 0.7
"""Minimum share of the rate of JetStream always, which waits for a majority only, with one message
in flight."""
AIMS = (Aim(INTERVAL, batches.RECORDS, 5.0), Aim(COMMIT, batches.RECORDS, 5.0))


def run(bench: Bench) -> Iterator[Case]:
    """All three, on a cluster of each system."""
    count = bench.pick(500_000, 100_000, 2_000)
    with running_clusters(bench.directory / "ic", acked.SYSTEMS, **batches.OPTIONS) as systems:
        named = {system.name: system for system in systems}
        yield from acked.measure(bench, "i", systems, ALONE_MIN)
        some = [named[name] for name in batches.SYSTEMS]
        yield from batches.measure(bench, "i", some, AIMS)
        yield from plain.measure(bench, "i", [named[COMMIT], named[DEFAULT]], count=count)
