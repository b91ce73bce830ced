"""v. What transforms cost: log records through the compiled graph, on one core.

Each case is a graph of one transform, with the gate before it and after it where something was
changed, and the search for sensitive values last, as always. Events a second of CPU time, in
this process: nothing here waits.

Nothing: the same records through a graph without transforms, which is what the transform's figure
would be if it cost nothing. Plain Python: the same work by `json`, `re` and `csv`, and no more: a
line is read, changed and written; no gate, no search, no bounds, and patterns that a line can make
run for ever.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from time import process_time_ns
from typing import Any, Final

from penstock.collector.transforms.graph.graph import Chunk, Graph
from tests.bench.figures import Case
from tests.bench.harness import Bench
from tests.support.collector_graph import RESOURCE, graph_of, log, total

TITLE: Final = "transforms of log records"
GRAPH: Final = "graph"
NOTHING: Final = "graph without transforms"
PLAIN: Final = "plain Python"
_SLICE: Final = 500
_ATTRIBUTES: Final = {
    "http.request.method": "GET", "url.path": "/cart/checkout", "status": 200, "duration_ms": 12.5,
}  # fmt: skip

Plain = Callable[[dict[str, Any]], dict[str, Any] | None]
"""Changes a record; None ends it."""


@dataclass(frozen=True)
class Work:
    """One transform.

    Attributes:
        section: Of the configuration.
        body: Text of the record of a number.
        plain: The same by hand.
        kept: How many of a thousand records go on by the graph; None: their places decide.
    """

    name: str
    section: dict[str, Any]
    body: Callable[[int], str]
    plain: Plain
    kept: int | None = 1000


def run(bench: Bench) -> Iterator[Case]:
    """Take turns, in this process."""
    count = bench.pick(40_000, 10_000, 1_000)
    for work in WORKS:
        case = Case("v", work.name, "records/s", compare={GRAPH: (NOTHING, PLAIN)})
        lines = [log(work.body(number), attributes=_ATTRIBUTES) for number in range(count)]
        for system, counts in bench.turns(f"v, {work.name}", (GRAPH, NOTHING, PLAIN)):
            rate = measure(work, system, lines)
            if counts:
                case.add(system, rate)
        yield case


def measure(work: Work, system: str, lines: list[bytes]) -> float:
    """Records a second."""
    if system == PLAIN:
        begun_ns = process_time_ns()
        for line in lines:
            _plainly(work.plain, line)
        return len(lines) / (process_time_ns() - begun_ns) * 1e9
    transforms = {"it": {**work.section, "inputs": ["app"]}}
    graph = graph_of({"transforms": transforms} if system == GRAPH else {})
    begun_ns = process_time_ns()
    kept = _through(graph, lines)
    rate = len(lines) / (process_time_ns() - begun_ns) * 1e9
    if system == GRAPH and work.kept is not None:
        assert kept == len(lines) * work.kept // 1000, (work.name, kept)
    return rate


def _through(graph: Graph, lines: list[bytes]) -> int:
    """How many records went on."""
    kept = 0
    for at in range(0, len(lines), _SLICE):
        part = lines[at : at + _SLICE]
        outcome = graph.process(
            Chunk("app", at, range(at + 1, at + 1 + len(part)), part, RESOURCE, 5), at
        )
        assert not outcome.refused, outcome.refused[0]
        assert total(outcome) == len(part)
        kept += sum(len(batch) for batch in outcome.batches.values())
    return kept


def _plainly(change: Plain, line: bytes) -> bytes | None:
    record = json.loads(line)
    record["resource"] = json.loads(RESOURCE)
    record["observed_time_unix_nano"] = 5
    changed = change(record)
    return None if changed is None else json.dumps(changed).encode()


# The work, by hand.

_TOOK: Final = re.compile(r"(?P<path>/\S*) took (?P<ms>[0-9.]+) ms")
_PAIR: Final = re.compile(r'(\w+)=(?:"((?:[^"\\]|\\.)*)"|(\S*))')
_ORDER: Final = re.compile(r"o-[0-9]+")
_COLUMNS: Final = ("method", "path", "status", "bytes")


def _parse_json(record: dict[str, Any]) -> dict[str, Any]:
    record["attributes"].update(json.loads(record["body"]))
    return record


def _parse_regex(record: dict[str, Any]) -> dict[str, Any]:
    if (match := _TOOK.search(record["body"])) is not None:
        record["attributes"].update(match.groupdict())
    return record


def _parse_csv(record: dict[str, Any]) -> dict[str, Any]:
    [row] = csv.reader([record["body"]])
    record["attributes"].update(zip(_COLUMNS, row, strict=True))
    return record


def _parse_logfmt(record: dict[str, Any]) -> dict[str, Any]:
    pairs = _PAIR.findall(record["body"])
    record["attributes"].update({key: quoted or bare for key, quoted, bare in pairs})
    return record


def _redact(record: dict[str, Any]) -> dict[str, Any]:
    record["body"] = _ORDER.sub("[redacted:order]", record["body"])
    attributes = record["attributes"]
    for key, value in attributes.items():
        if isinstance(value, str):
            attributes[key] = _ORDER.sub("[redacted:order]", value)
    return record


def _filter(record: dict[str, Any]) -> dict[str, Any] | None:
    attributes = record["attributes"]
    is_wanted = record["severity_number"] >= 9 and attributes["url.path"] != "/health"
    return record if is_wanted and attributes["status"] < 500 else None


def _sample(record: dict[str, Any]) -> dict[str, Any] | None:
    digest = blake2b(record["body"].encode(), digest_size=8).digest()
    if int.from_bytes(digest) >= (1 << 64) // 10:
        return None
    record["sample_weight"] = 10
    return record


_COUNTS: Final[Counter[tuple[str, str]]] = Counter()


def _count(record: dict[str, Any]) -> None:
    attributes = record["attributes"]
    _COUNTS[attributes["url.path"], str(attributes["status"])] += 1


WORKS: Final = (
    Work(
        "parse json",
        {"type": "parse", "format": "json"},
        lambda n: json.dumps({"order": n, "user": "u-7", "took_ms": 12.5, "ok": True}),
        _parse_json,
    ),
    Work(
        "parse regex",
        {"type": "parse", "format": "regex", "pattern": _TOOK.pattern},
        lambda n: f"request {n} to /cart/checkout took {n % 100}.5 ms in all",
        _parse_regex,
    ),
    Work(
        "parse csv",
        {"type": "parse", "format": "csv", "columns": [*_COLUMNS]},
        lambda n: f"GET,/cart/checkout,200,{n}",
        _parse_csv,
    ),
    Work(
        "parse logfmt",
        {"type": "parse", "format": "logfmt"},
        lambda n: f'order={n} user=u-7 msg="an order was paid" ms=12.5',
        _parse_logfmt,
    ),
    Work(
        "redact by a pattern",
        {"type": "redact", "patterns": {"order": _ORDER.pattern}},
        lambda n: f"order o-{n} was paid by card in the shop at the corner",
        _redact,
    ),
    Work(
        "filter",
        {
            "type": "filter",
            "where": 'severity_number >= 9 && !(attributes.url.path in ["/health"])'
            " && attributes.status < 500",
        },
        lambda n: f"order {n} was paid by card in the shop at the corner",
        _filter,
    ),
    Work(
        "sample one of ten",
        {"type": "sample", "ratio": 0.1},
        lambda n: f"order {n} was paid by card in the shop at the corner",
        _sample,
        kept=None,
    ),
    Work(
        "logs to metrics",
        {
            "type": "logs_to_metrics",
            "name": "requests",
            "dimensions": {"path": "attributes.url.path", "status": "attributes.status"},
        },
        lambda n: f"order {n} was paid by card in the shop at the corner",
        _count,
        kept=0,
    ),
)
