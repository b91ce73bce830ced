"""j. Publish to ack with three replicas, at 50 messages a second, as in d.

What is measured is the whole way: to the leader, to its followers, to every disk, and back.
"""

from collections.abc import Iterator

from tests.bench import latency
from tests.bench.acked import SYSTEMS
from tests.bench.clusters import running_clusters
from tests.bench.figures import Case
from tests.bench.harness import Bench

TITLE = "publish to ack at 50 messages/s, three replicas"
SIZES = {name: latency.SIZES[name] for name in ("256 B", "5 KB")}


def run(bench: Bench) -> Iterator[Case]:
    """Each size, clusters in turn."""
    with running_clusters(bench.directory / "jc", SYSTEMS) as systems:
        yield from latency.measure(bench, "j", systems, SIZES)
