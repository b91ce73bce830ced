"""e. Throughput of 100,000 messages at four sizes, for the publisher and then for one consumer.

At most 512 MiB per size, so 512 messages of 1 MB. The publisher has up to 1,000 messages, but no
more than 8 MiB, unanswered. The consumer then reads the same messages from the beginning: of logd
frames, of JetStream by an ordered consumer, both over a raw socket (see `reader`). JetStream with
`always` syncs message by message; it gets a tenth of the messages.
"""

from collections.abc import Iterator

from tests.bench.figures import Case
from tests.bench.harness import Bench
from tests.bench.reading import read_job
from tests.bench.systems import ALWAYS, COMMIT, DEFAULT, INTERVAL, running, settle
from tests.bench.worker import run_workers

TITLE = "throughput of up to 100,000 messages with an answer each, and read back"
SIZES = {"256 B": 256, "1 KB": 1024, "5 KB": 5 * 1024, "1 MB": 1024 * 1024}
SYSTEMS = (COMMIT, ALWAYS, INTERVAL, DEFAULT)
COMPARE = {COMMIT: (ALWAYS, DEFAULT), INTERVAL: (DEFAULT,)}
BYTES_MAX = 512 * 1024 * 1024
SLOW = 10
WINDOW_BYTES = 8 * 1024 * 1024


def run(bench: Bench) -> Iterator[Case]:
    """Each size on new streams, published once a round and then read."""
    for name, size_bytes in bench.some(SIZES.items()):
        count = min(bench.pick(100_000, 20_000, 200), BYTES_MAX // size_bytes)
        count = min(count, bench.pick(count, BYTES_MAX // 8 // size_bytes, 20))
        window = max(1, min(1000, WINDOW_BYTES // size_bytes))
        publishing = Case("e", f"{name} published", "messages/s", compare=COMPARE)
        consuming = Case("e", f"{name} consumed", "messages/s", compare=COMPARE)
        with running(bench.directory / "e", SYSTEMS) as systems:
            for system, counts in bench.turns(f"e, {name}", systems, warm_up=False):
                settle(systems)
                few = count // SLOW if system.name == ALWAYS else count
                job = {"count": max(few, window), "size_bytes": size_bytes, "window": window}
                ran = bench.publish("acked", system, **job)
                if counts:
                    publishing.add(system.name, ran.rate("sent"))
                    mib = ran.rate("sent") * size_bytes / 2**20
                    publishing.notes[system.name] = (
                        f"{mib:.0f} MiB/s, {ran.total('sent'):,} messages"
                    )
            for system, counts in bench.turns(f"e, {name}, reading", systems, warm_up=False):
                ran = run_workers("reader", [read_job(system, system.stored())])
                if counts:
                    consuming.add(system.name, ran.rate("records"))
                    mib = ran.rate("records") * size_bytes / 2**20
                    consuming.notes[system.name] = f"{mib:.0f} MiB/s"
        yield from (publishing, consuming)
