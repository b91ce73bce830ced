"""Pages made of `docs/reference/figures.json`: every figure, and tables of other pages.

`make bench ARGS="--json docs/reference/figures.json"` measures, `make reference` writes the pages.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from tests.bench import appliance
from tests.bench.report import number_text

Scenarios = Mapping[str, Any]


class Source(NamedTuple):
    """Where a figure stands: letter of the scenario, name of the case, name of the system."""

    letter: str
    case: str
    system: str


class Rule(NamedTuple):
    """A row of `size-it.md`.

    Attributes:
        measured: A sentence with a `{}` for each source.
        follows: What a reader concludes; without figures.
    """

    measured: str
    follows: str
    sources: tuple[Source, ...]


class Beside(NamedTuple):
    """A row of `penstock-beside.md`: a figure as a part of another system's.

    Attributes:
        measured: What is compared.
        source: Where the figure stands.
        other: Name of the other system.
    """

    measured: str
    source: Source
    other: str


_INTRODUCTION: Final = (
    "[Benchmarks](../BENCHMARKS.md) says what each scenario measures and does not show. "
    "`0.9 (0.7 to 1.1) of X` means nine tenths of X's figure in the same round."
)
_COMMIT: Final = "logd commit"
_PAIR: Final = "logd and nats-server"
_LINES: Final = ": for each second of the collector's CPU time"
LOGD: Final = (
    Rule(
        "One logd stores {} records of 256 B a second from one producer in batches of 1,000, three "
        "replicas {}. Each batch is acknowledged when it is on disk.",
        "Telemetry of collectors needs no second partition below that.",
        (Source("c", "batches, 1 producer", _COMMIT), Source("i", "batches, 1 producer", _COMMIT)),
    ),
    Rule(
        "A message alone in flight is acknowledged after {} ms (p50) and {} ms (p99); in three "
        "replicas after {} and {} ms.",
        "A publisher that waits for each ack is slow: keep more messages in flight.",
        (
            Source("d", "256 B p50", _COMMIT),
            Source("d", "256 B p99", _COMMIT),
            Source("j", "256 B p50", _COMMIT),
            Source("j", "256 B p99", _COMMIT),
        ),
    ),
    Rule(
        "A publish over NATS with its own ack takes {} µs of CPU time with 1,000 in flight.",
        "A logd is one process, and uses little more than one core for publishes.",
        (Source("b", "acked, 1 publisher, 1000 in flight each: CPU time", _COMMIT),),
    ),
    Rule(
        "logd and its nats-server take {} MiB with one stream and {} KiB for each further one.",
        "`max_intake_bytes` (256 MiB) and 64 MiB for each stream that writes at once come on top: "
        "1 GiB is ample for ten streams.",
        (Source("g", "1 stream, memory", _PAIR), Source("g", "memory per idle stream", _PAIR)),
    ),
    Rule(
        "Idle they use {} % of a core with one stream, {} % with 1,000.",
        "Streams cost memory rather than time.",
        (Source("g", "1 stream, processor", _PAIR), Source("g", "1,000 streams, processor", _PAIR)),
    ),
    Rule(
        "They start in {} ms with one stream, in {} ms with 1,000.",
        "So long is the restart of a single node felt.",
        (
            Source("g", "1 stream, time to start", _PAIR),
            Source("g", "1,000 streams, time to start", _PAIR),
        ),
    ),
    Rule(
        "A reader gets {} records a second as frames, {} as Arrow.",
        "Readers do not decide, unless all of them come by TLS or streams are encrypted.",
        (
            Source("f", "1 reader, records", "logd frames"),
            Source("f", "1 reader, records", "logd client, Arrow"),
        ),
    ),
    Rule(
        "A follower catches up with {} MiB a second.",
        "Divide what was written while a node was away by it.",
        (Source("k", "catching up", _COMMIT),),
    ),
)
COLLECTOR: Final = (
    Rule(
        "In a second of CPU time it processes {} JSON lines of a file, {} plain ones, {} of eleven "
        "well-known formats.",
        "Beyond a core: `--workers`.",
        tuple(
            Source("p", f"{what}{_LINES}", "collector")
            for what in ("lines of 250 B", "plain lines of 250 B", "lines of eleven formats")
        ),
    ),
    Rule(
        "In such a second it processes {} records by OTLP, {} by forward, {} of the spec library.",
        "One core carries what most hosts emit.",
        (
            Source("q", f"log records over gRPC{_LINES}", "collector"),
            Source("r", f"records in forward chunks{_LINES}", "collector"),
            Source("x", f"records of 600 B over a Unix socket{_LINES}", "collector"),
        ),
    ),
    Rule(
        "As fast as it goes it takes {} MiB with a file, {} MiB with OTLP.",
        "`receive.max_bytes` (128 MiB) bounds what network sources hold; the unit for systemd "
        "allows 512 MiB in all.",
        (
            Source("p", "lines of 250 B: memory", "collector"),
            Source("q", "log records over gRPC: memory", "collector"),
        ),
    ),
)
ROUTER: Final = (
    Rule(
        "A job is ready after {} s.",
        "Most of that is two cores' worth of CPU time.",
        (Source("u", "from start to ready", "one of Parquet"),),
    ),
    Rule(
        "Through one sink of Parquet go {} records of 300 B a second, through three {}.",
        "For more, raise the cores of Spark.",
        (
            Source("u", "records through all sinks", "one of Parquet"),
            Source("u", "records through all sinks", "three of Parquet"),
        ),
    ),
    Rule(
        "All processes of a job take {} MiB with one sink, {} MiB with three; {} MiB with three, "
        "`spark.master: local[1]`, `spark.driver_memory: 512m` and `trigger.max_records: 10000`.",
        "2 GiB is what `deploy/k8s` allows; with less memory, take the smaller settings.",
        (
            Source("u", "memory of the job", "one of Parquet"),
            Source("u", "memory of the job", "three of Parquet"),
            Source("u", "memory of the job", "Parquet, HTTP, Elasticsearch; small"),
        ),
    ),
)
_ACKED: Final = "acked, {} in flight each"
_ALWAYS: Final = "JetStream always"
_DEFAULT: Final = "JetStream default"
_ONE, _MANY, _EIGHT = (
    _ACKED.format(it) for it in ("1 publisher, 1", "1 publisher, 1000", "8 publishers, 1000")
)
JETSTREAM: Final = (
    Beside("rate, one node, one message in flight", Source("b", _ONE, _COMMIT), _ALWAYS),
    Beside("the same, 1,000 in flight", Source("b", _MANY, _COMMIT), _ALWAYS),
    Beside("the same, 8 publishers", Source("b", _EIGHT, _COMMIT), _ALWAYS),
    Beside("rate, three nodes, one message in flight", Source("i", _ONE, _COMMIT), _ALWAYS),
    Beside("the same, 1,000 in flight", Source("i", _MANY, _COMMIT), _ALWAYS),
    Beside("the same, 8 publishers", Source("i", _EIGHT, _COMMIT), _ALWAYS),
    Beside(
        "rate, one node, batches, which are synced, of fast ingest, which is not",
        Source("c", "batches, 1 producer", _COMMIT),
        "JetStream fast ingest",
    ),
    Beside("time to an answer, p50, one node", Source("d", "256 B p50", _COMMIT), _ALWAYS),
    Beside("the same, three nodes", Source("j", "256 B p50", _COMMIT), _ALWAYS),
    Beside(
        "rate, one node, `interval` beside the default, one message in flight",
        Source("b", _ONE, "logd interval"),
        _DEFAULT,
    ),
    Beside(
        "the same, 8 publishers, 1,000 in flight", Source("b", _EIGHT, "logd interval"), _DEFAULT
    ),
    Beside(
        "rate of one reader, frames, of an ordered consumer",
        Source("f", "1 reader, records", "logd frames"),
        "JetStream consumer",
    ),
    Beside(
        "memory with one stream, with its nats-server",
        Source("g", "1 stream, memory", _PAIR),
        _DEFAULT,
    ),
    Beside(
        "time to start with one stream", Source("g", "1 stream, time to start", _PAIR), _DEFAULT
    ),
)


def beside(scenarios: Scenarios, wanted: Sequence[Beside]) -> list[str]:
    """The rows of a table of `penstock-beside.md`."""
    rows = ["| | median | lowest to highest |", "|---|---|---|"]
    for row in wanted:
        ratio = _system(scenarios, row.source)["ratios"][row.other]
        median, low, high = (number_text(ratio[key]) for key in ("median", "low", "high"))
        rows.append(f"| {row.measured} | {median} | {low} to {high} |")
    return rows


def rules(scenarios: Scenarios, wanted: Sequence[Rule]) -> list[str]:
    """The rows of a table of `size-it.md`."""
    rows = ["| measured | what follows |", "|---|---|"]
    for rule in wanted:
        found = [number_text(_system(scenarios, source)["median"]) for source in rule.sources]
        rows.append(f"| {rule.measured.format(*found)} | {rule.follows} |")
    return rows


def parts(scenarios: Scenarios) -> list[str]:
    """Memory and CPU of each part of an appliance, idle and loaded, and their sums."""
    cases = [
        case
        for case in scenarios["z"]["cases"]
        if appliance.TOTAL in case["systems"] and len(case["systems"]) > 1
    ]
    heads = [f"{case['case']}, {case['unit']}" for case in cases]
    rows = [f"| part | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    names = list(cases[0]["systems"])
    for name in (*names[1:], names[0]):
        figures = (number_text(case["systems"][name]["median"]) for case in cases)
        shown = f"**{name}**" if name == appliance.TOTAL else name
        rows.append(f"| {shown} | {' | '.join(figures)} |")
    return rows


def figures(scenarios: Scenarios, titles: Mapping[str, str]) -> str:
    """The page of every figure."""
    lines = [
        "# Figures",
        "",
        "<!-- Generated from figures.json by `make reference`. -->",
        "",
        _INTRODUCTION,
        "",
    ]
    for letter, scenario in scenarios.items():
        lines += [f"## {letter}. {titles[letter]}", "", _taken(scenario), ""]
        lines += ["| case | system | median | lowest to highest | unit | compared |"]
        lines += ["|---|---|---|---|---|---|"]
        for case in scenario["cases"]:
            lines += _rows(case)
        aims = [_aim(case, aim) for case in scenario["cases"] for aim in case["aims"]]
        lines += ["", *aims, ""] if aims else [""]
    return "\n".join(lines).rstrip() + "\n"


def _taken(scenario: Mapping[str, Any]) -> str:
    date = datetime.fromtimestamp(scenario["begun_unix_ns"] / 1e9, UTC).date()
    facts = scenario["machine"]
    loads = [load["before"][0] for load in scenario["load"].values()]
    rounds = "1 round" if scenario["rounds"] == 1 else f"{scenario['rounds']} rounds"
    return (
        f"Taken on {date} ({scenario['effort']}, {rounds}, load average {max(loads):.1f} before): "
        f"{facts['cores']} cores of an {facts['processor']}, {facts['memory GiB']} GiB, "
        f"fdatasync of 4 KiB {facts['fdatasync 4 KiB p50 ms']} ms, "
        f"{facts['nats-server'].partition(': ')[2]} of nats-server, Python {facts['python']}."
    )


def _rows(case: Mapping[str, Any]) -> Iterator[str]:
    for number, (name, system) in enumerate(case["systems"].items()):
        compared = [
            f"{number_text(ratio['median'])} ({number_text(ratio['low'])} to "
            f"{number_text(ratio['high'])}) of {other}"
            for other, ratio in system["ratios"].items()
        ]
        cells = (
            case["case"] if number == 0 else "", name, number_text(system["median"]),
            f"{number_text(system['low'])} to {number_text(system['high'])}",
            case["unit"], "; ".join([*compared, *filter(None, [system["note"]])]),
        )  # fmt: skip
        yield "| " + " | ".join(cells) + " |"


def _aim(case: Mapping[str, Any], aim: Mapping[str, Any]) -> str:
    measure = "at least" if case["better"] == "higher" else "at most"
    unit = f"of {aim['against']}" if aim["against"] else case["unit"]
    result = "met" if aim["met"] else "**missed**"
    return (
        f"- {case['case']}, {aim['system']}: aim {measure} {number_text(aim['bound'])} {unit}: "
        f"{number_text(aim['value'])}, {result}."
    )


def _system(scenarios: Scenarios, source: Source) -> Mapping[str, Any]:
    for case in scenarios[source.letter]["cases"]:
        if case["case"] == source.case:
            found: Mapping[str, Any] = case["systems"][source.system]
            return found
    raise AssertionError(f"figures.json lacks {source}: run make bench with that scenario")
