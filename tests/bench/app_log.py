"""n. What a log call and a finished span cost an application, and how long a call can take.

Microseconds of CPU time for one record, of the whole process, so that threads that send
count, too; then of the calling thread alone. Wall time is in the notes: on a busy machine it says
more of the others. Each system has its turn in a process of its own, with the same call:

    log.info("order placed", order_id=…, total=…, items=…, ok=…)

Penstock sends to a collector's socket that another process reads, with the ids of a trace, context
and machine facts on every record. structlog is its documentation's fast recipe (orjson, bytes,
loggers cached) writing to the null device, as do loguru (serialised) and the standard library's
QueueHandler with a listener that formats JSON; OpenTelemetry's LoggingHandler goes to a batch
processor whose exporter encodes OTLP and throws it away.

Spans: OpenTelemetry's SDK and batch processor around nothing, with as many attributes, until the
span is sent by Penstock's exporter; against the OTLP encoder. Exported: what that exporter alone
costs for a span that has ended, against the OTLP encoder.
Floor: the clock, a dict of the same fields and orjson, which nothing can do without.
Chaos: one call in microseconds while the collector is absent, stalls, or dies: wall time, which
other work on the machine adds to, and CPU time.
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
FLOOR: Final = "floor"
P99_MAX_US: Final = 50
SPAN_CALLER_MAX: Final = 0.35
"""Maximum share of the CPU time that OpenTelemetry's calling thread takes for a span. Decision 0092
gave this aim up; it stays, so that each run says what that costs."""
CHAOS: Final = ("absent", "stalled", "dying")


def run(bench: Bench) -> Iterator[Case]:
    """Take turns, each in a process of its own."""
    count = bench.pick(40_000, 10_000, 500)
    systems = (PENSTOCK, STRUCTLOG, STDLIB, OTEL, LOGURU, FLOOR)
    yield from _costs(bench, "log records", "log", systems, count)
    yield from _costs(bench, "spans", "span", (PENSTOCK, OTEL), count)
    yield from _costs(bench, "spans, exported", "export", (PENSTOCK, OTEL), count // 4)
    yield from _chaos(bench, count)


def _costs(
    bench: Bench, name: str, kind: str, systems: tuple[str, ...], count: int
) -> Iterator[Case]:
    aims = {"log": (Aim(PENSTOCK, STRUCTLOG, 1.0),), "span": (Aim(PENSTOCK, OTEL, 1.0),)}.get(kind)
    of_caller = (Aim(PENSTOCK, OTEL, SPAN_CALLER_MAX),) if kind == "span" else aims
    others = tuple(system for system in systems if system != PENSTOCK)
    case, caller = (
        Case(
            "n", title, "µs a record", better="lower", compare={PENSTOCK: others}, aims=aimed or ()
        )
        for title, aimed in ((name, aims), (f"{name}, the calling thread", of_caller))
    )
    for system, counts in bench.turns(f"n, {name}", systems):
        job = {"kind": kind, "system": system, "count": count}
        (result,) = run_workers("app_worker", [job]).results
        if counts:
            case.add(system, result["microseconds"])
            case.notes[system] = f"wall time {result['elapsed']:.1f} µs"
            if "caller" in result:
                caller.add(system, result["caller"])
    yield case
    if caller.series:
        yield caller


def _chaos(bench: Bench, count: int) -> Iterator[Case]:
    """The 99th percentile of calls, and the longest, in a note."""
    cases = {
        key: Case(
            "n", f"one call, p99, {what}, when the collector is", "µs", better="lower",
            aims=tuple(Aim(mood, None, P99_MAX_US) for mood in CHAOS),
        )
        for key, what in (("", "wall time"), ("used_", "CPU time"))
    }  # fmt: skip
    for mood, counts in bench.turns("n, chaos", CHAOS, warm_up=False):
        job = {"kind": "chaos", "system": mood, "count": count}
        (result,) = run_workers("app_worker", [job]).results
        if counts:
            for key, case in cases.items():
                case.add(mood, result[f"{key}p99"])
                case.notes[mood] = f"longest {result[f'{key}longest']:.0f} µs"
    yield from cases.values()
