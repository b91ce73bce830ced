"""c. Batches of 1,000 records of 256 B, from one and from four producers.

The peer that promises what logd `commit` does is JetStream with `sync_interval: always` and atomic
batches of 1,000. Three more have JetStream's default sync, which promises less: one message per
record with pipelined answers; atomic batches; and fast ingest, the quickest publishing this
nats-server has. The limit is a subscriber that only counts the same batches.
"""

from collections.abc import Iterator, Sequence

from tests.bench.figures import Aim, Case
from tests.bench.harness import Bench
from tests.bench.systems import ALWAYS, COMMIT, DEFAULT, INTERVAL, System, running, settle
from tests.bench.worker import Run, workers

TITLE = "batches of 1,000 records of 256 B, acked"
SIZE_BYTES = 256
BATCH = 1000
WINDOW = 8
"""Batches that a producer has in flight."""

RECORDS = "JetStream per record"
ATOMIC = "JetStream atomic batches"
ATOMIC_ALWAYS = "JetStream always, atomic batches"
FAST = "JetStream fast ingest"
COUNTING = "counting subscriber"
PEERS = {
    RECORDS: (DEFAULT, "acked", 1000),
    ATOMIC: (DEFAULT, "atomic", WINDOW),
    ATOMIC_ALWAYS: (ALWAYS, "atomic", WINDOW),
    FAST: (DEFAULT, "fast", 1),
}
"""The system, the kind of publisher and its window."""

SYSTEMS = (COMMIT, INTERVAL, ALWAYS, DEFAULT)
OPTIONS = {"allow_atomic": True, "allow_batched": True}
"""Of the JetStream stream."""


def run(bench: Bench) -> Iterator[Case]:
    """One producer, then four."""
    aims = (Aim(COMMIT, RECORDS, 10.0), Aim(COMMIT, None, 1_000_000))
    with running(bench.directory / "c", SYSTEMS, **OPTIONS) as systems:
        yield from measure(bench, "c", systems, aims)


def measure(
    bench: Bench, letter: str, systems: list[System], aims: Sequence[Aim]
) -> Iterator[Case]:
    """The same of systems that run: `SYSTEMS`."""
    names = [COMMIT, ATOMIC_ALWAYS, RECORDS, INTERVAL, ATOMIC, FAST, COUNTING]
    for producers in bench.some((1, 4)):
        case, cost = _case(letter, producers, aims), _cost(letter, producers)
        for name, counts in bench.turns(f"{letter}, {case.name}", names):
            settle(systems)
            run = _measure(bench, systems, name, producers)
            if counts:
                case.add(name, run.rate("sent"))
                cost.add(name, run.processor_us("sent"))
        yield from (case, cost)


def _case(letter: str, producers: int, aims: Sequence[Aim]) -> Case:
    peers = (*PEERS, COUNTING)
    return Case(
        letter,
        _who(producers),
        "records/s",
        compare={COMMIT: peers, INTERVAL: peers},
        aims=aims,
    )


def _cost(letter: str, producers: int) -> Case:
    name = f"{_who(producers)}: CPU time"
    return Case(letter, name, "µs/record", "lower", {COMMIT: tuple(PEERS), INTERVAL: tuple(PEERS)})


def _who(producers: int) -> str:
    return f"batches, {producers} producer{'s' * (producers > 1)}"


def _measure(bench: Bench, systems: list[System], name: str, producers: int) -> Run:
    named = {system.name: system for system in systems}
    if name == COUNTING:
        return _count(bench, systems[0], producers)
    if name in named:
        count = bench.pick(1_000_000, 400_000, 8_000)
        job = {"count": count, "window": WINDOW, "batch": BATCH, "size_bytes": SIZE_BYTES}
        return bench.publish("batches", named[name], publishers=producers, **job)
    peer, kind, window = PEERS[name]
    count = bench.pick(200_000, 100_000, 4_000)
    job = {"count": count, "window": window, "batch": BATCH, "size_bytes": SIZE_BYTES}
    if kind == "acked":
        job["batch"] = 1
    return bench.publish(kind, named[peer], publishers=producers, **job)


def _count(bench: Bench, system: System, producers: int) -> Run:
    """Records a second that reach a subscriber which answers every batch, and stores nothing."""
    count = bench.pick(1_000_000, 400_000, 8_000)
    subject = f"nobody.{system.subject}"
    job = {"kind": "counted", "address": system.url, "subject": subject, "count": count // BATCH}
    with workers("reader", [job]) as reader:
        reader.go()
        run = bench.publish(
            "batches", system, publishers=producers, subject=subject,
            count=count, window=WINDOW, batch=BATCH, size_bytes=SIZE_BYTES,
        )  # fmt: skip
        reader.results()
        return run
