"""d. Publish to ack, at 50 messages a second for 30 s, at four sizes, under every sync policy.

The sizes and the rate are those of the published comparison of Kafka with NATS Streaming. Sends are
due at fixed times whether answers have come or not; see `publisher`. Systems take turns of a third
of the time each, so that what disturbs the machine disturbs all of them. p99.9 is that of all turns
together. The limit is an fdatasync of as many bytes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.bench.figures import Aim, Case, percentile
from tests.bench.harness import Bench, Limit
from tests.bench.machine import sync_times_ns
from tests.bench.systems import ALWAYS, COMMIT, DEFAULT, INTERVAL, NEVER, System, running, settle

TITLE = "publish to ack at 50 messages/s"
DISK = "fdatasync"
RATE = 50
SECONDS = 30
SIZES = {"256 B": 256, "1 KB": 1024, "5 KB": 5 * 1024, "1 MB": 1024 * 1024}
SYSTEMS = (COMMIT, ALWAYS, INTERVAL, DEFAULT, NEVER)
COMPARE = {COMMIT: (ALWAYS, DISK), INTERVAL: (DEFAULT,), NEVER: (DEFAULT,)}
AIM = Aim(COMMIT, ALWAYS, 1.2)
AIMS = (AIM, Aim(INTERVAL, DEFAULT, 1.0), Aim(NEVER, DEFAULT, 1.0))


@dataclass
class _Size:
    """The cases of one size."""

    letter: str
    name: str
    p50: Case = field(init=False)
    p99: Case = field(init=False)
    p999: Case = field(init=False)
    pooled: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.p50 = Case(self.letter, f"{self.name} p50", "ms", "lower", COMPARE, (AIM,))
        self.p99 = Case(self.letter, f"{self.name} p99", "ms", "lower", COMPARE, AIMS)
        self.p999 = Case(self.letter, f"{self.name} p99.9", "ms", "lower", COMPARE)

    def add(self, system: str, times_ms: list[float]) -> None:
        self.p50.add(system, percentile(times_ms, 50))
        self.p99.add(system, percentile(times_ms, 99))
        self.pooled.setdefault(system, []).extend(times_ms)

    def note(self, system: str, refusals: list[str]) -> None:
        """Say how many messages were refused: they have no latency."""
        self.refused[system] = self.refused.get(system, 0) + len(refusals)
        if self.refused[system]:
            found = f"{self.refused[system]} refused besides"
            for case in (self.p50, self.p99, self.p999):
                case.notes[system] = found

    def cases(self) -> list[Case]:
        for system, times_ms in self.pooled.items():
            self.p999.add(system, percentile(times_ms, 99.9))
        return [self.p50, self.p99, self.p999]


def run(bench: Bench) -> Iterator[Case]:
    """Each size, systems in turn."""
    with running(bench.directory / "d", SYSTEMS) as systems:
        yield from measure(bench, "d", systems, SIZES)


def measure(
    bench: Bench, letter: str, systems: list[System], sizes: Mapping[str, int]
) -> Iterator[Case]:
    """The same of systems that run, at some sizes."""
    takers: list[System | Limit] = [*systems, Limit(DISK)]
    for name, size_bytes in bench.some(sizes.items()):
        size = _Size(letter, name)
        messages = bench.pick(RATE * SECONDS // bench.rounds, RATE * 2, 5)
        for system, counts in bench.turns(f"{letter}, {name}", takers, warm_up=False):
            if isinstance(system, Limit):
                times_ns = sync_times_ns(bench.directory, size_bytes, min(messages, 200))
            else:
                settle(systems)
                rate = RATE if messages > 5 else 10 * RATE
                run = bench.publish(
                    "paced", system, count=messages, size_bytes=size_bytes, rate=rate
                )
                times_ns = run.results[0]["latencies_ns"]
                size.note(system.name, run.results[0]["refusals"])
            if counts:
                size.add(system.name, [value / 1e6 for value in times_ns])
        yield from size.cases()
