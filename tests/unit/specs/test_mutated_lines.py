"""Real lines, mutated: what is found quickly is what is found slowly, and no line is passed over.

How many lines: MUTATED_LINES, `make fuzz-detectors` sets it; MUTATED_SEED: which ones. The slow
reference takes each line apart and looks at each text with Python's own expressions; at the shapes
without names it looks plainly, at each place of the text.
"""

import json
import os
import random
from collections.abc import Iterator
from functools import partial

from penstock.specs.redact.detectors import ALL
from penstock.specs.redact.line_search import LineSearch
from penstock.specs.redact.scrubber import Scrubber
from penstock.specs.redact.sensitivity import HashKey
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted
from tests.bench.log_formats import lines_of_all
from tests.unit.specs import records
from tests.unit.specs.test_detectors import SHAPES, plainly_found

LINES = int(os.environ.get("MUTATED_LINES", "3000"))
SEED = int(os.environ.get("MUTATED_SEED", "5"))
BATCH = 50
PLAINLY_EVERY = 50
"""Of the lines; to look plainly takes a hundred times as long."""
PIECES = [
    "ann@example.com", "@example.com", "ann@", "@v1.example.com", "@2x.example.com", "://",
    "%40example.com", "@libssh.org", "ann@openssh.com", "ann@node.internal", "/x", ":a/b", ":",
    "4111111111111111", "4111111111111112", "4111 1111 1111 1111", "5500-0000-0000-0004",
    "4111\u00a01111\u00a01111\u00a01111", "4111\u20091111\u20091111\u20091111", "%2041111111",
    "3782 822463 10005", "2223003122003222", "@4111111111111111.net", "card ", "id=", "%3D", "%25",
    "password=hunter2", "page_token=abc", "span=4111", "lifespan=", '"password": "x"', "\\n",
    "'apiKey': 'x'", '{"a":"{\\"password\\":\\"x\\"}"}', "npassword=", "%253Dpassword=", "token",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2ln", "eyJhbGci", "AKIAIOSFODNN7EXAMPLE",
    "postgres://app:s3cret@db/x", "ssh://git@host.example.com", "Bearer mF_9.B5f-4.1JqM0a1b2c",
    "-----BEGIN PRIVATE KEY-----", "\x1b[1m", "\u2011", "\u00a0", "\u2009", "\u202f", "\t", "\n",
    "\\", "\\\\", '"', "'", "é", "\u2028", ".", "-", "_", "@", "%", "=", "1", "a", "\\u0040", "/",
]  # fmt: skip


def mutated(dice: random.Random, line: str, other: str) -> str:
    """The line with one to four changes."""
    for _ in range(dice.randint(1, 4)):
        at = dice.randint(0, len(line))
        to = min(len(line), at + dice.randint(1, 8))
        match dice.randrange(6):
            case 0 | 1:
                line = line[:at] + dice.choice(PIECES) + line[at:]
            case 2:
                line = line[:at] + dice.choice(PIECES) + line[to:]
            case 3:
                line = line[:at] + line[to:]
            case 4:
                line = line[:to] + line[at:]
            case _:
                line = line[:at] + other[dice.randint(0, len(other)) :]
    return line[:1000]


def mutated_lines(count: int) -> Iterator[str]:
    """As many lines, always the same."""
    dice, before = random.Random(SEED), "a line"
    while True:
        for raw in lines_of_all(10_000):
            line = raw[:-1].decode()
            yield mutated(dice, line, before)
            before = line
            count -= 1
            if count == 0:
                return


def record_of(dice: random.Random, text: str) -> bytes:
    """A record that has the text in its body or in an attribute, written in one of three ways."""
    attributes = {"log.file.path": "/var/log/app.log"}
    where = dice.randrange(4)
    if where == 0:
        attributes["note"] = text
    body = "a line" if where == 0 else text
    record = {**records.log(), "context": None, "body": body, "attributes": attributes}
    ascii_only = dice.randrange(8) == 0
    separators = (", ", ": ") if dice.randrange(8) == 0 else (",", ":")
    return json.dumps(record, ensure_ascii=ascii_only, separators=separators).encode()


def test_what_is_found_in_mutated_lines_is_what_is_found_slowly() -> None:
    dice, scrubber = random.Random(SEED), Scrubber(HashKey("k1", b"0123456789abcdef"))
    passed = found = 0
    batch: list[tuple[str, bytes]] = []
    for number, text in enumerate(mutated_lines(LINES)):
        raw = text.encode()
        slowly = [*ALL.find(raw, plainly=True)]
        assert [*ALL.find(raw, plainly=False)] == slowly, text
        assert (ALL.redact(text) is text) is (not slowly), text
        if number % PLAINLY_EVERY == 0:
            spans = [(start, end) for _, start, end, _ in SHAPES.find(raw)]
            assert spans == plainly_found(raw.decode("latin-1")), text
        found += bool(slowly)
        batch.append((text, record_of(dice, text)))
        if len(batch) == BATCH:
            passed += check_batch(scrubber, batch)
            batch.clear()
    assert 0 < found < LINES
    assert passed > LINES // 4


def check_batch(scrubber: Scrubber, batch: list[tuple[str, bytes]]) -> int:
    """Lines that are passed over hold nothing; how many those are."""
    lines = [line for _, line in batch]
    verdicts = [verdict for verdict in map(check_line, lines) if isinstance(verdict, Accepted)]
    assert len(verdicts) == len(lines)
    search = LineSearch(lines)
    suspects = {*scrubber.suspects(verdicts, search)}
    is_clean = partial(scrubber.is_clean, search=search)
    for place, (text, line) in enumerate(batch):
        assert is_clean(line, verdicts[place]) is (place not in suspects)
        if place not in suspects:
            assert not [*ALL.find(text.encode(), plainly=True)], text
            assert scrubber.scrub_line(line) is line, text
    return len(lines) - len(suspects)
