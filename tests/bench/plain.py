"""a. Plain messages without reply: what is stored, and what is lost when publishing outruns it.

Nothing holds the publisher back but the server's socket. Lost is what was sent and cannot be read
afterwards; silently lost, what is not counted anywhere by the system that lost it. The limit is a
subscriber that only counts.
"""

from time import perf_counter_ns

from tests.bench.figures import Aim, Case
from tests.bench.harness import Bench, Limit
from tests.bench.machine import cpu_seconds
from tests.bench.systems import COMMIT, DEFAULT, System, await_stored, running, settle
from tests.bench.worker import workers

TITLE = "plain 256 B messages, no reply, publisher not held back"
COUNTING = "counting subscriber"
SIZE_BYTES = 256
QUIET_S = 3.0
"""Seconds without a new record, after which no more will come."""


def run(bench: Bench) -> list[Case]:
    """Publish, wait until nothing more is stored, compare with what was sent."""
    count = bench.pick(1_000_000, 200_000, 2_000)
    rate = Case(
        "a", f"stored, of {count:,}", "records/s",
        compare={COMMIT: (DEFAULT, COUNTING)}, aims=(Aim(COMMIT, DEFAULT, 1.5),),
    )  # fmt: skip
    cost = Case("a", "processor time", "µs/record", "lower", {COMMIT: (DEFAULT,)})
    lost = Case("a", "lost", "records", "lower")
    silent = Case("a", "lost silently", "records", "lower", aims=(Aim(COMMIT, None, 0),))
    with running(bench.directory / "a", (COMMIT, DEFAULT)) as systems:
        takers: list[System | Limit] = [*systems, Limit(COUNTING)]
        for system, counts in bench.turns("a", takers):
            if isinstance(system, Limit):
                value = _count(bench, systems[0], count)
                if counts:
                    rate.add(COUNTING, value)
                continue
            settle(systems)
            before, reported = system.stored(), system.reported()
            used_s = sum(map(cpu_seconds, system.pids()))
            published = bench.publish("plain", system, count=count, size_bytes=SIZE_BYTES)
            ended_ns = await_stored(system, before + count, quiet_s=QUIET_S, clock=perf_counter_ns)
            stored = system.stored() - before
            if not counts:
                continue
            said = {name: n - reported[name] for name, n in system.reported().items()}
            rate.add(system.name, stored / (ended_ns - published.begun_ns) * 1e9)
            rate.notes[system.name] = f"published at {published.rate('sent'):,.0f}/s"
            used_s = sum(map(cpu_seconds, system.pids())) - used_s
            cost.add(system.name, used_s * 1e6 / max(1, stored))
            lost.add(system.name, count - stored)
            silent.add(system.name, count - stored - said.get("refused or lost", 0))
            if stored < count:
                told = ", ".join(f"{name}: {n}" for name, n in said.items())
                lost.notes[system.name] = f"the system says: {told}"
    return [rate, cost, lost, silent]


def _count(bench: Bench, system: System, count: int) -> float:
    """Records a second that reach a subscriber; on a subject that nobody stores."""
    subject = f"nobody.{system.subject}"
    job = {"kind": "counted", "address": system.url, "subject": subject, "count": count}
    with workers("reader", [job]) as reader:
        reader.go()
        url = {"kind": "plain", "url": system.url, "subject": subject}
        with workers("publisher", [url | {"count": count, "size_bytes": SIZE_BYTES}]) as publisher:
            publisher.go()
            begun_ns = publisher.results().begun_ns
        result = reader.results()
        return result.total("records") / (result.ended_ns - begun_ns) * 1e9
