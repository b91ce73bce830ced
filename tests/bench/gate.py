"""m. The collector's gate: 600-byte log records, decoded and judged, on one core.

Fast: the decoder generated from the pydantic models. Pydantic: the same gate without it, with the
same bounds and the same search for duplicate keys. Bare: pydantic's `validate_json` alone, which
looks for neither and loses the bytes. Scrubber: what the collector does besides, markers and the
search of values, to a record with two pseudonyms. Seconds are of processor time: nothing here
waits. Floor: the generated decoder's `decode` alone, which looks for no duplicate keys, unknown
fields, ids, or rules between fields.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from time import process_time_ns

from pydantic import TypeAdapter

from penstock.specs import HashKey, LogRecord, Scrubber
from penstock.specs.fast_decoder import generate
from penstock.specs.fast_gate import accept
from penstock.specs.gate import check_line, check_slowly
from tests.bench.figures import Aim, Case
from tests.bench.harness import Bench

TITLE = "log records of 600 bytes through the collector's gate"
FAST = "gate"
PYDANTIC = "gate by pydantic alone"
BARE = "pydantic validate_json"
SCRUBBED = "gate, then scrubber"
FLOOR = "floor: decode alone"
RECORD_BYTES = 600
RATE_MIN = 300_000


def make_lines(count: int) -> list[bytes]:
    """Different records of one service, each of 600 bytes."""
    return [_line(number) for number in range(count)]


def run(bench: Bench) -> Iterator[Case]:
    """Judge in turns, in this process."""
    lines = make_lines(bench.pick(50_000, 20_000, 1_000))
    for line in lines[:1000]:  # before any figure: both say the same, and the fast path is taken
        assert accept(line) == check_slowly(line), line
    bare = TypeAdapter(LogRecord).validate_json
    scrub = Scrubber(HashKey("bench", b"a key for figures only")).scrub_line

    def judge_and_scrub(line: bytes) -> object:
        check_line(line)
        return scrub(line)

    judges: dict[str, Callable[[bytes], object]] = {
        FAST: check_line,
        PYDANTIC: check_slowly,
        BARE: bare,
        SCRUBBED: judge_and_scrub,
        FLOOR: generate(LogRecord).decode,
    }
    case = Case(
        "m", "records", "records/s",
        compare={FAST: (PYDANTIC, BARE, FLOOR), SCRUBBED: (FAST,)},
        aims=(Aim(FAST, PYDANTIC, 4), Aim(FAST, None, RATE_MIN)),
    )  # fmt: skip
    for name, counts in bench.turns("m", tuple(judges)):
        value = _rate(judges[name], lines)
        if counts:
            case.add(name, value)
    yield case


def _line(number: int) -> bytes:
    record = {
        "schema": "log/1.0",
        "kind": "log",
        "time_unix_nano": 1_700_000_000_000_000_000 + number,
        "trace_id": f"{number * 7919 + 1:032x}",
        "span_id": f"{number * 104729 + 1:016x}",
        "trace_flags": 1,
        "scope": "shop.checkout",
        "context": {"user.id": f"u-{number % 997}", "request.id": f"r-{number:08}"},
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


def _rate(judge: Callable[[bytes], object], lines: Sequence[bytes]) -> float:
    begun = process_time_ns()
    for line in lines:
        judge(line)
    return len(lines) / (process_time_ns() - begun) * 1e9
