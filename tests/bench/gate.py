"""m. The collector's gate: 600-byte log records, decoded and judged, on one core.

Fast: the decoder generated from the pydantic models. Pydantic: the same gate without it, with the
same bounds and the same search for duplicate keys. Bare: pydantic's `validate_json` alone, which
looks for neither and loses the bytes. Search: what the collector does besides, to records in which
there is nothing to find; scrubber: to records with two pseudonyms, which are taken apart. Seconds
are of CPU time: nothing here waits. Floor: the generated decoder's `decode` alone, which
looks for no duplicate keys, unknown fields, ids, or rules between fields.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import process_time_ns

from pydantic import TypeAdapter

from penstock.specs import LogRecord
from penstock.specs.redact.line_search import LineSearch
from penstock.specs.redact.scrubber import Scrubber
from penstock.specs.redact.sensitivity import HashKey
from penstock.specs.validate.decoder import generate
from penstock.specs.validate.fast import accept
from penstock.specs.validate.validator import check_line, check_slowly
from penstock.specs.validate.verdict import Accepted
from tests.bench.figures import Aim, Case
from tests.bench.harness import Bench

TITLE = "log records of 600 bytes through the collector's gate"
FAST = "gate"
PYDANTIC = "gate by pydantic alone"
BARE = "pydantic validate_json"
SEARCHED = "gate, then search"
SCRUBBED = "gate, then scrubber"
FLOOR = "floor: decode alone"
RECORD_BYTES = 600
RATE_MIN = 300_000


_SLICE = 500
"""Lines that are searched together, as in the collector."""


def make_lines(count: int, context: dict[str, str] | None = None) -> list[bytes]:
    """Different records of one service, each of 600 bytes.

    Args:
        count: How many.
        context: Of each; without it, each has a user and a request of its own.
    """
    return [
        _line(
            number,
            {"user.id": f"u-{number % 997}", "request.id": f"r-{number:08}"}
            if context is None
            else context,
        )
        for number in range(count)
    ]


def run(bench: Bench) -> Iterator[Case]:
    """Judge in turns, in this process."""
    lines = make_lines(bench.pick(50_000, 20_000, 1_000))
    for line in lines[:1000]:  # before any figure: both say the same, and the fast path is taken
        assert accept(line) == check_slowly(line), line
    anonymous = make_lines(len(lines), {})
    judges: dict[str, Callable[[], object]] = {
        FAST: partial(_each, check_line, lines),
        PYDANTIC: partial(_each, check_slowly, lines),
        BARE: partial(_each, TypeAdapter(LogRecord).validate_json, lines),
        SEARCHED: partial(_scrub, anonymous),
        SCRUBBED: partial(_scrub, lines),
        FLOOR: partial(_each, generate(LogRecord).decode, lines),
    }
    case = Case(
        "m", "records", "records/s",
        compare={FAST: (PYDANTIC, BARE, FLOOR), SEARCHED: (FAST,), SCRUBBED: (FAST,)},
        aims=(Aim(FAST, PYDANTIC, 4), Aim(FAST, None, RATE_MIN)),
    )  # fmt: skip
    for name, counts in bench.turns("m", tuple(judges)):
        value = len(lines) / _seconds(judges[name])
        if counts:
            case.add(name, value)
    yield case


def _line(number: int, context: dict[str, str]) -> bytes:
    record = {
        "schema": "log/1.0",
        "kind": "log",
        "time_unix_nano": 1_700_000_000_000_000_000 + number,
        "trace_id": f"{number * 7919 + 1:032x}",
        "span_id": f"{number * 104729 + 1:016x}",
        "trace_flags": 1,
        "scope": "shop.checkout",
        "context": context,
        "severity_number": 9,
        "severity_text": "INFO",
        "body": "order placed",
        "attributes": {"order_id": f"o-{number:08}", "total": number / 4, "items": 3, "ok": True},
        "resource": {
            "service.name": "checkout",
            "service.version": "1.4.2",
            "service.instance.id": "0b6c1f0e-8f2b-4c57-9d3a-6a1d8f1f2c11",
            "deployment.environment.name": "production",
        },
    }
    short = RECORD_BYTES - len(json.dumps(record, separators=(",", ":")))
    record["body"] = "order placed".ljust(len("order placed") + short, "x")
    return json.dumps(record, separators=(",", ":")).encode()


def _each(judge: Callable[[bytes], object], lines: Sequence[bytes]) -> None:
    for line in lines:
        judge(line)


def _scrub(lines: Sequence[bytes]) -> None:
    """As the collector does: only what shows a sign is taken apart."""
    scrubber = Scrubber(HashKey("bench", b"a key for figures only"))
    for at in range(0, len(lines), _SLICE):
        part = lines[at : at + _SLICE]
        search = LineSearch(part)
        for line in part:
            verdict = check_line(line)
            assert isinstance(verdict, Accepted)
            if not scrubber.is_clean(line, verdict, search):
                scrubber.scrub_line(line)


def _seconds(work: Callable[[], object]) -> float:
    begun = process_time_ns()
    work()
    return (process_time_ns() - begun) / 1e9
