"""n. What a log call and a finished span cost an application, and how long a call can take.

Microseconds of processor time for one record, the whole process, so that threads that send count,
too. Each system has its turn in a process of its own, with the same call:

    log.info("order placed", order_id=…, total=…, items=…, ok=…)

Penstock sends to a collector's socket that another process reads, with the ids of a trace, context
and machine facts on every record. structlog is its documentation's fast recipe (orjson, bytes,
loggers cached) writing to the null device, as do loguru (serialised) and the standard library's
QueueHandler with a listener that formats JSON; OpenTelemetry's LoggingHandler goes to a batch
processor whose exporter encodes OTLP and throws it away.

Spans: what the exporter costs for a span that has ended, against OpenTelemetry's OTLP encoder.
Chaos: wall time of one call in microseconds while the collector is absent, stalls, or dies.
"""

from collections.abc import Iterator
from typing import Final

from tests.bench.figures import Aim, Case
from tests.bench.harness import Bench
from tests.bench.worker import run_workers

TITLE: Final = "what a log call and a span cost an application"
PENSTOCK: Final = "penstock"
STRUCTLOG: Final = "structlog, fast recipe"
STDLIB: Final = "logging + QueueHandler"
OTEL: Final = "OpenTelemetry"
LOGURU: Final = "loguru"
CHAOS: Final = ("absent", "stalled", "dying")


def run(bench: Bench) -> Iterator[Case]:
    """Take turns, each in a process of its own."""
    count = bench.pick(40_000, 10_000, 500)
    yield _costs(bench, "log records", "log", (PENSTOCK, STRUCTLOG, STDLIB, OTEL, LOGURU), count)
    yield _costs(bench, "spans, exported", "span", (PENSTOCK, OTEL), count // 4)
    yield _chaos(bench, count)


def _costs(bench: Bench, name: str, kind: str, systems: tuple[str, ...], count: int) -> Case:
    against, bound = (STRUCTLOG, 1.0) if kind == "log" else (OTEL, 0.35)
    others = tuple(system for system in systems if system != PENSTOCK)
    case = Case(
        "n", name, "µs a record", better="lower",
        compare={PENSTOCK: others}, aims=(Aim(PENSTOCK, against, bound),),
    )  # fmt: skip
    for system, counts in bench.turns(f"n, {name}", systems):
        job = {"kind": kind, "system": system, "count": count, "directory": str(bench.directory)}
        (result,) = run_workers("app_worker", [job]).results
        if counts:
            case.add(system, result["microseconds"])
    return case


def _chaos(bench: Bench, count: int) -> Case:
    """The 99th percentile of calls, and the longest, in a note."""
    case = Case("n", "one call, p99, when the collector is", "µs", better="lower")
    for mood, counts in bench.turns("n, chaos", CHAOS, warm_up=False):
        job = {"kind": "chaos", "system": mood, "count": count, "directory": str(bench.directory)}
        (result,) = run_workers("app_worker", [job]).results
        if counts:
            case.add(mood, result["p99"])
            case.notes[mood] = f"longest {result['longest']:.0f} µs"
    return case
