"""f. Finding one record by its id, as `penstock trace` does, with logd's index of ids and without.

The records are logs of 340 B with a trace id and a record id of their own. Each turn looks for ids
of records at random places, and one that no record has. The index is made before the first turn,
in the background, after the first question.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

from penstock.base.clock import SystemClock
from penstock.deploy.trace.find import Progress, Scope, by_id, ranges, scan
from penstock.logd.client import LogClient
from tests.bench.figures import Aim, Case
from tests.bench.harness import Bench
from tests.bench.systems import COMMIT, LogdStream, running, settle
from tests.support.router import log_line, publish
from tests.support.waiting import wait_until

TITLE = "finding one record by its id"
INDEX = "with the index"
WHOLE = "without"
MAX_S = 2.0
"""Maximum seconds of a search among 10 million records."""

_PER_PUBLISH = 100_000
_SEED = 1


def run(bench: Bench) -> Iterator[Case]:
    """Fill a stream once, have it indexed, then search in turns."""
    count = bench.pick(10_000_000, 500_000, 2_000)
    case = Case(
        "f", f"one id among {count:,} records", "s", better="lower",
        compare={INDEX: (WHOLE,)}, aims=(Aim(INDEX, None, MAX_S),),
    )  # fmt: skip
    with running(bench.directory / "finding", (COMMIT,)) as systems:
        (ours,) = systems
        assert isinstance(ours, LogdStream)
        bench.progress.step("f: filling with records that have ids")
        fill(ours, count)
        settle(systems)
        with LogClient(ours.logd.fetch) as log:
            bench.progress.step("f: indexing ids")
            took_s = index(log, ours.stream, count)
            files = ours.logd.data_dir.glob("streams/*/*/ids")
            size = sum(file.stat().st_size for file in files)
            case.notes[INDEX] = f"made in {took_s:.0f} s; {size / 2**20:.0f} MiB"
            dice = random.Random(_SEED)
            for system, counts in bench.turns("f, one id", (INDEX, WHOLE)):
                for number in (dice.randrange(count), dice.randrange(count), count):
                    found_s = search(log, ours.stream, number, count, by_index=system == INDEX)
                    if counts:
                        case.add(system, found_s)
    yield case


def record(number: int) -> bytes:
    ids = b'{"trace_id":"%032x","record_id":"r%d",' % (number, number)
    return ids + log_line(number)[1:]


def fill(system: LogdStream, count: int) -> None:
    """Store records in batches, as a collector does."""
    for begin in range(0, count, _PER_PUBLISH):
        numbers = range(begin, min(begin + _PER_PUBLISH, count))
        publish(system.url, system.subject, [record(number) for number in numbers])


def index(log: LogClient, stream: str, count: int) -> float:
    """Ask until the index leaves out nearly all of the log; the seconds that it took."""
    clock = SystemClock()
    begun_ns = clock.monotonic_ns()
    least = count // 20 if count >= 100_000 else count  # what is young is not indexed

    def is_indexed() -> bool:
        left = log.find_ids(stream, [f"{count:032x}"], 0, count, 0)
        return sum(end - start for start, end in left) <= least

    wait_until(is_indexed, within_s=600, what="an index")
    return (clock.monotonic_ns() - begun_ns) / 1e9


def search(log: LogClient, stream: str, number: int, count: int, *, by_index: bool) -> float:
    """Look for a trace id in the whole log; the seconds until the answer."""
    clock = SystemClock()
    wanted = by_id([f"{number:032x}"], [])
    if not by_index:
        wanted = replace(wanted, ids=())
    begun_ns = clock.monotonic_ns()
    found = scan(log, ranges(log, Scope((stream,)), Progress()), wanted, limit=20)
    took_s = (clock.monotonic_ns() - begun_ns) / 1e9
    assert [it.offset for it in found.records] == [number] * (number < count)
    return took_s
