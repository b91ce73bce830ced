"""b. Plain messages with an answer each, from one and from eight publishers, pipelined.

logd `commit` promises what JetStream promises with `sync_interval: always`: on disk before the
answer. `interval` is compared with JetStream's default, which syncs every two minutes. The limit is
what the disk allows when each window is one fdatasync of 4 KiB. JetStream with `always` syncs
message by message; it gets a twentieth of the messages where several are in flight.

Raw sockets show what the servers take. What an application reaches is shown by the client
libraries: `Publisher.submit` of Penstock's client beside `js.publish` of nats-py, 256 in flight;
CPU time there is the client's.
"""

from collections.abc import Iterator
from dataclasses import replace

from tests.bench.figures import Aim, Case, percentile
from tests.bench.harness import Bench, Limit
from tests.bench.machine import sync_times_ns
from tests.bench.systems import ALWAYS, COMMIT, DEFAULT, INTERVAL, System, running, settle
from tests.bench.worker import Run

TITLE = "plain 256 B messages with an answer each"
DISK = "one fdatasync a window"
SIZE_BYTES = 256
SLOW = 20
WINDOWS = (1, 64, 1000)
PUBLISHERS = (1, 8)
COMPARE = {COMMIT: (ALWAYS,), INTERVAL: (DEFAULT,)}
SYSTEMS = (COMMIT, ALWAYS, INTERVAL, DEFAULT)
LIBRARIES = {
    COMMIT: ("submit", "Publisher.submit, logd commit"),
    ALWAYS: ("js.publish", "js.publish, JetStream always"),
    INTERVAL: ("submit", "Publisher.submit, logd interval"),
    DEFAULT: ("js.publish", "js.publish, JetStream default"),
}
"""The kind of publisher that each system has by its client library, and how the table names it."""
LIBRARY_WINDOW = 256
ALONE_MIN = 0.85
"""Minimum share of the rate of JetStream always, with one message in flight."""


def run(bench: Bench) -> Iterator[Case]:
    """Each number of publishers with each window."""
    with running(bench.directory / "b", SYSTEMS) as systems:
        yield from measure(bench, "b", systems, ALONE_MIN)
        yield from _by_libraries(bench, systems)


def _by_libraries(bench: Bench, systems: list[System]) -> Iterator[Case]:
    """One record after the other, as an application publishes."""
    names = {system: name for system, (_, name) in LIBRARIES.items()}
    compare = {names[COMMIT]: (names[ALWAYS],), names[INTERVAL]: (names[DEFAULT],)}
    what = f"acked, by client libraries, {LIBRARY_WINDOW} in flight"
    aims = (Aim(names[INTERVAL], names[DEFAULT], 1.0),)
    case = Case("b", what, "acked/s", compare=compare, aims=aims)
    cost = Case(
        "b", f"{what}: the client's CPU time", "µs/record", "lower", compare,
        tuple(Aim(ours, peer, 1.0) for ours, (peer,) in compare.items()),
    )  # fmt: skip
    for system, counts in bench.turns(f"b, {what}", systems):
        settle(systems)
        kind, name = LIBRARIES[system.name]
        count = bench.pick(40_000, 10_000, LIBRARY_WINDOW)
        few = count // SLOW if system.name == ALWAYS else count
        job = {"count": few, "size_bytes": SIZE_BYTES, "window": LIBRARY_WINDOW}
        ran = bench.publish(kind, system, **job)
        if counts:
            case.add(name, ran.rate("sent"))
            cost.add(name, ran.workers_us("sent"))
    yield from (case, cost)


def measure(bench: Bench, letter: str, systems: list[System], alone_min: float) -> Iterator[Case]:
    """The same of systems that run.

    Args:
        bench: The run.
        letter: Of the scenario.
        systems: Those that run.
        alone_min: The aim with one in flight, of JetStream always.
    """
    takers: list[System | Limit] = [*systems, Limit(DISK)]
    for publishers in bench.some(PUBLISHERS):
        for window in bench.some(WINDOWS):
            case = _case(letter, publishers, window, alone_min if window == 1 else 1.0)
            cost = replace(case, unit="µs/record", better="lower", aims=(), series={})
            cost = replace(cost, name=f"{case.name}: CPU time", compare=COMPARE)
            for system, counts in bench.turns(f"{letter}, {case.name}", takers):
                if isinstance(system, Limit):
                    syncs = sync_times_ns(bench.directory, 4096, bench.pick(50, 20, 3))
                    value = publishers * window / percentile(syncs, 50) * 1e9
                else:
                    settle(systems)
                    ran = _publish(bench, system, publishers, window)
                    value = ran.rate("sent")
                    if counts:
                        cost.add(system.name, ran.processor_us("sent"))
                if counts:
                    case.add(system.name, value)
            yield from (case, cost)


def _publish(bench: Bench, system: System, publishers: int, window: int) -> Run:
    count = _count(bench, publishers, window)
    few = count // SLOW if system.name == ALWAYS and window > 1 else count
    job = {"count": max(few, publishers), "size_bytes": SIZE_BYTES, "window": window}
    return bench.publish("acked", system, publishers=publishers, **job)


def _case(letter: str, publishers: int, window: int, rate_min: float) -> Case:
    return Case(
        letter,
        f"acked, {publishers} publisher{'s' * (publishers > 1)}, {window} in flight each",
        "acked/s",
        compare={COMMIT: (ALWAYS, DISK), INTERVAL: (DEFAULT,)},
        aims=(Aim(COMMIT, ALWAYS, rate_min), Aim(INTERVAL, DEFAULT, 1.0)),
    )


def _count(bench: Bench, publishers: int, window: int) -> int:
    """Enough for a second or more of the slowest."""
    full = {1: 500, 64: 20_000, 1000: 200_000}[window] * (1 if window == 1000 else publishers)
    return bench.pick(full, full // 4, 2 * publishers * min(window, 100))
