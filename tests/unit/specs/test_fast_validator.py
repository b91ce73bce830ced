"""The fast path accepts nothing that pydantic refuses; FUZZ=100000 tries so many lines a kind."""

import json
import logging
import os
import random
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from typing import Annotated, Any, ClassVar, Literal, Self

import pytest
from pydantic import BeforeValidator, Field, field_validator, model_validator

from penstock.specs import Event, encode
from penstock.specs.limits import RECORD_BYTES_MAX
from penstock.specs.models.envelope import Rule
from penstock.specs.models.scalars import Text, no_integer
from penstock.specs.validate.fast import HEAD_BYTES, accept, key_ends, slow_specs
from penstock.specs.validate.validator import attach, check_line, check_slowly, check_together
from penstock.specs.validate.verdict import Accepted, Rejected
from tests.unit.specs import records

LINES = int(os.environ.get("FUZZ", "2500"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))


class Ordered(Event, spec="fast_test.ordered/1.0"):
    """A specialised spec with every type that an own field can have."""

    order: Annotated[str, Field(min_length=1, max_length=8, pattern="^[a-z]-[0-9]+$")]
    state: Literal["new", "paid"]
    total: Annotated[float, Field(ge=0)]
    items: Annotated[int, Field(ge=1, le=99)] = 1
    tags: Annotated[list[Text], Field(max_length=2)] | None = None
    gift: bool | None = None


def ordered(**changes: Any) -> dict[str, Any]:
    line = encode(Ordered(order="o-1", state="paid", total=2.5, tags=["a"], gift=True))
    whole: dict[str, Any] = json.loads(attach(line, b'{"service.name":"a"}'))
    return {**whole, "time_unix_nano": records.TIME, **changes}


KINDS: dict[str, Callable[..., dict[str, Any]]] = {**records.ALL, "specialised": ordered}

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 9, 24, 25, 255, 256, 1 << 31, (1 << 63) - 1, 1 << 63, -(1 << 63),
    -(1 << 63) - 1, 10**30, 0.0, -0.0, 1.0, 0.5, 1e308, "", "a", "x" * 33, "x" * 300, "é" * 128,
    "0" * 32, "0" * 16, records.TRACE, records.TRACE.upper(), records.TRACE + "\n", records.SPAN,
    records.SPAN[:-1] + "g", "o-1", "o-1\n", "log", "metric", "gauge", "sum", "histogram", "delta",
    "ERROR", "1", "2026-11-22T00:00:00Z", ":", '":', '"a": 1', " : ", "\u2028", "\ud83d\ude00",
    [], [1], ["a"], [None], [[1]], [1.5, "a", True], [{}], {}, {"a": 1}, {"a": {"b": 1}},
    {"service.name": "b"}, {"service.name": ""}, {"service.name": "b", "x": [1]}, {"user.id": "u"},
    {"user.id": 1}, {"type": "t", "id": "i"}, {"offset": 0, "bucket_counts": [1]},
    [{"trace_id": records.TRACE, "span_id": records.SPAN}], [{"name": "n", "time_unix_nano": 1}],
    [{"time_unix_nano": 1, "value": 1}], {"": 1}, {"k" * 129: 1}, {"a\u0000": 1},
]  # fmt: skip
KEYS = [
    "schema", "kind", "time_unix_nano", "trace_id", "span_id", "resource", "attributes", "context",
    "body", "value", "count", "span_kind", "status_code", "flags", "newer", "", "é", "user.id",
    "service.name", "fast_test.order", "fast_test.items", "fast_test.other",
]  # fmt: skip
BYTES = [
    b'"',
    b":",
    b",",
    b"{",
    b"}",
    b"[",
    b"]",
    b" ",
    b"\n",
    b"\\",
    b"0",
    b"\xff",
    b"\x00",
    b"e9",
]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every member of every object and list in a record: what holds it, and where."""
    members: Any = ()
    if isinstance(value, dict):
        members = list(value.items())
    elif isinstance(value, list):
        members = list(enumerate(value))
    return [(value, at) for at, _ in members] + [p for _, inner in members for p in places(inner)]


def mutated(record: dict[str, Any], dice: random.Random) -> bytes:
    """A line near the record's: a few changes of its values, then perhaps of its bytes."""
    copy = json.loads(json.dumps(record))
    for _ in range(dice.choice((0, 1, 1, 1, 2, 3))):
        found = places(copy)
        holder, at = dice.choice(found) if found else (copy, "schema")
        match dice.randrange(4):
            case 0:
                del holder[at]
            case 1 if isinstance(holder, dict):
                holder[dice.choice(KEYS)] = deepcopy(dice.choice(VALUES))
            case _:
                holder[at] = deepcopy(dice.choice(VALUES))
    line = text_of(copy, dice)
    for _ in range(dice.choice((0, 0, 0, 1, 2))):
        cut = dice.randrange(len(line) + 1)
        line = line[:cut] + dice.choice(BYTES) + line[cut + dice.randrange(2) :]
    return line


def text_of(record: dict[str, Any], dice: random.Random) -> bytes:
    """JSON with other blanks, escapes, or a key twice, now and then."""
    separators = dice.choice(((",", ":"), (",", ":"), (", ", ": "), (" ,", " :"), (",\n", ":\t")))
    text = json.dumps(record, separators=separators, ensure_ascii=dice.random() < 0.5)
    line = text.encode("utf-8", "surrogatepass")
    if dice.random() < 0.2 and record:
        key = dice.choice(list(record))
        again = json.dumps(key) + dice.choice((":", " :", ": ")) + json.dumps(record[key])
        line = line[:-1] + b"," + again.encode("utf-8", "surrogatepass") + b"}"
    return line


@pytest.mark.parametrize("name", KINDS)
def test_fast_verdict_is_pydantics_on_mutated_records(name: str) -> None:
    dice = random.Random(f"{name}-{SEED}")
    record = KINDS[name]()
    fast = right = 0
    for number in range(LINES):
        line = mutated(record, dice)
        expected = check_slowly(line)
        found = accept(line)
        assert found is None or found == expected, (number, line, expected)
        fast += found is not None
        right += isinstance(expected, Accepted)
    assert LINES * 0.1 < right < LINES * 0.9, "the mutations are too harsh or too mild"
    assert fast > right * 0.4, "hardly any good line takes the fast path"


@pytest.mark.parametrize("name", KINDS)
def test_lines_validated_together_get_the_verdicts_that_each_gets(name: str) -> None:
    dice = random.Random(f"{name}-{SEED}")
    record = KINDS[name]()
    together = alone = 0
    for number in range(LINES // 5):
        lines = [text_of(record, dice) for _ in range(dice.choice((1, 2, 7)))]
        if dice.random() < 0.7:
            lines[dice.randrange(len(lines))] = mutated(record, dice)
        expected = [check_slowly(line) for line in lines]
        found = check_together(lines)
        assert found is None or found == expected, (number, lines)
        together += found is not None
        alone += found is None and all(isinstance(one, Accepted) for one in expected)
    assert together > LINES // 5 * 0.1, "hardly any lines are validated together"
    assert alone, "all right lines were validated together: what is left to pydantic is not tried"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(b'"trace_flags":1,"trace_flags":1', b'"trace_flags":1', id="a key twice"),
        pytest.param(b'"trace_flags":1,"newer":1', b'"trace_flags":null', id="an unknown key"),
        pytest.param(b'"trace_flags":1}', b'"trace_flags":1', id="an end in the middle"),
        pytest.param(b'"trace_flags":1,"scope":""', b'"trace_flags":0', id="zero and empty"),
    ],
)
def test_no_line_makes_up_for_another(first: bytes, second: bytes) -> None:
    good = json.dumps(records.log(), separators=(",", ":")).encode()
    lines = [good.replace(b'"trace_flags":1', part, 1) for part in (first, second)]
    assert lines[0] != good
    found = check_together(lines)
    assert found is None or found == [check_line(line) for line in lines]
    assert check_together([good, good]) == [check_line(good)] * 2


def test_lines_of_two_specs_and_lines_that_are_too_long_are_not_validated_together() -> None:
    line = json.dumps(records.log(), separators=(",", ":")).encode()
    other = json.dumps(records.span(), separators=(",", ":")).encode()
    assert check_together([line, other]) is None
    assert check_together([]) is None
    huge = line[:-1] + b" " * RECORD_BYTES_MAX + b"}"
    assert check_together([line, huge]) is None


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_good_line_takes_the_fast_path(make: Callable[..., dict[str, Any]]) -> None:
    line = json.dumps(make(), separators=(",", ":")).encode()
    found = accept(line)
    assert found is not None
    assert found == check_slowly(line)
    assert accept(json.dumps(make()).encode()) == found


def test_colons_in_text_are_no_keys() -> None:
    line = json.dumps(records.log(body="at 10:45: see http://shop/x"), separators=(",", ":"))
    assert accept(line.encode()) is not None


def test_lines_with_colons_in_their_texts_are_validated_together() -> None:
    bodies = ("at 10:45: see http://shop/x", 'say "hi": or not', '\\ and ":', "plain")
    lines = [json.dumps(records.log(body=body), separators=(",", ":")).encode() for body in bodies]
    assert check_together(lines[:2]) == [check_slowly(line) for line in lines[:2]]
    assert check_together([lines[0], lines[3]]) == [check_slowly(lines[0]), check_slowly(lines[3])]
    assert check_together(lines) in (None, [check_slowly(line) for line in lines])


def test_a_body_that_is_json_takes_the_fast_path() -> None:
    body = json.dumps({"a": 1, "b": {"c": 'say "hi": or not'}})
    line = json.dumps(records.log(body=body.replace("\\", "")), separators=(",", ":")).encode()
    found = accept(line)
    assert found is not None
    assert found == check_slowly(line)


def test_a_key_more_than_the_text_shows_is_never_overlooked() -> None:
    """Against a dumb count, with quotes, colons and backslashes wherever they can stand."""
    dice = random.Random(SEED)
    pieces = ("a", "\\", '"', '":', ":", '\\"', "\\\\")
    exact = 0
    for _ in range(20_000):
        texts = ["".join(dice.choices(pieces, k=dice.randrange(4))) for _ in range(6)]
        pairs = [f"{json.dumps(texts[i])}:{json.dumps(texts[i + 1])}" for i in (0, 2, 4)]
        ends = key_ends(("{" + ",".join(pairs) + "}").encode())
        assert ends >= 3
        exact += ends == 3
    assert exact > 1000


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (b'"body":"', b'"a\\\\":1,"a\\\\":1,"body":"\\":', "duplicate_key"),
        (b'"body":"', b'"kind":"log","body":"\\":', "duplicate_key"),
        (b'"body":', b'"kind":"log","body":', "duplicate_key"),
        (b'"body":', b'"kind" :"log","body":', "duplicate_key"),
        (b'"user.id":"u-17"', b'"user.id":"u-17","user.id":"u-17"', "duplicate_key"),
        (b'"service.name":"checkout"', b'"service.name":"a","service.name" :"a"', "duplicate_key"),
        (b'"total":24.5', b'"total":24.5,"total":24.5', "duplicate_key"),
        (b'"trace_flags":1', b'"trace_flags":1,"newer":1', "accepted"),
        (b'"trace_flags":1', b'"trace_flags":null', "accepted"),
        (b"b7ad6b7169203331", b"b7ad6b716920333g", "invalid"),
        (b"b7ad6b7169203331", b"b7ad6b716920333\\n", "invalid"),
        (b'"severity_number":9', b'"severity_number":9.0', "invalid"),
        (b'"total":24.5', b'"total":9223372036854775808', "invalid"),
        (b'"total":24.5', b'"total":1e999', "invalid"),
    ],
)
def test_what_is_not_plainly_right_is_left_to_pydantic(
    old: bytes, new: bytes, expected: str
) -> None:
    good = json.dumps(records.log(), separators=(",", ":")).encode()
    line = good.replace(old, new, 1)
    assert line != good
    assert accept(line) is None
    assert check_together([good, line]) is None
    verdict = check_line(line)
    assert (verdict.reason if isinstance(verdict, Rejected) else "accepted") == expected


def test_a_line_break_at_the_end_matches_no_pattern() -> None:
    attributes = ordered()["attributes"] | {"fast_test.order": "o-1\n"}
    line = json.dumps(ordered(attributes=attributes)).encode()
    assert accept(line) is None
    assert check_line(line) == Rejected("invalid", "order: string_pattern_mismatch")


def test_line_that_begins_otherwise_is_not_remembered() -> None:
    long = b'{"schema":"' + b"x" * 10_000 + b'","kind":"log","a":1}'
    assert accept(long) is None
    for line in (b"", b"{", b",,", b'{"kind":"log","schema":"log/1.0",', b"[" * 50_000):
        assert accept(line) is None


def test_lines_of_several_specs_that_begin_alike_are_judged_by_their_own() -> None:
    log, order = records.log(), ordered()
    good = [json.dumps(one, separators=(",", ":")).encode() for one in (log, order)]
    bad = [
        good[0].replace(b'"kind":"log"', b'"kind":"event"', 1),
        good[0].replace(b'"log/1.0","kind"', b'"log/1.0" ,"kind"', 1),
        good[0].replace(b'"kind":"log",', b'"kind":"log" ,', 1),
    ]
    assert len({line[:HEAD_BYTES] for line in (good[0], bad[0], bad[2])}) == 1
    for line in [*good, *bad] * 3:  # each takes the place of the one before
        found = accept(line)
        assert found is None or found == check_slowly(line)
        assert (found is not None) == (line not in bad[:1])


def test_limits_hold_on_the_fast_path() -> None:
    line = json.dumps(records.log(), separators=(",", ":")).encode()
    assert accept(line.ljust(1 << 18)) is not None
    assert check_line(line.ljust((1 << 18) + 1)) == Rejected("too_large")


WITHOUT_EXTRAS = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("msgspec", "orjson", "structlog", "opentelemetry"):
            raise ImportError(name, name=name)

sys.meta_path.insert(0, Missing())
from penstock.specs.validate.validator import check_line
print(check_line(sys.stdin.buffer.read()))
"""


def test_base_install_judges_by_pydantic_alone() -> None:
    line = json.dumps(records.log()).encode()
    done = subprocess.run(
        (sys.executable, "-W", "error", "-c", WITHOUT_EXTRAS), input=line, capture_output=True,
        check=False,
    )  # fmt: skip
    assert (done.stdout.decode().strip(), done.stderr) == (str(check_line(line)), b"")


def a_rule(event: Any) -> None:
    if event.subject == "forbidden":
        raise ValueError("subject is forbidden")


class Ruled(Event, spec="fast_test.ruled/1.0"):
    """A spec with a rule of its own."""

    rules: ClassVar[tuple[Rule, ...]] = (*Event.rules, a_rule)

    size: int = 0


class Checked(Event, spec="fast_test.checked/1.0"):
    """A spec with a validator."""

    size: int = 0

    @field_validator("size")
    @classmethod
    def _even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("size is odd")
        return value


class Whole(Event, spec="fast_test.whole/1.0"):
    """A spec with a validator of all of it."""

    size: int = 0

    @model_validator(mode="after")
    def _small(self) -> Self:
        if self.size > 9:
            raise ValueError("size is large")
        return self


class Fraction(Event, spec="fast_test.fraction/1.0"):
    """A spec with a float that refuses integers, which msgspec's do not."""

    size: Annotated[float, BeforeValidator(no_integer)] | str = 0.5


class Oddly(Event, spec="fast_test.oddly/1.0"):
    """A spec with a pattern that engines may read differently."""

    size: Annotated[str, Field(pattern=r"^\d+$")] = "1"


@pytest.mark.parametrize(
    ("event", "good", "bad"),
    [
        (Ruled(subject="allowed"), b'"allowed"', b'"forbidden"'),
        (Checked(size=2), b'size":2', b'size":3'),
        (Whole(size=2), b'size":2', b'size":10'),
        (Fraction(size=2.5), b'size":2.5', b'size":2'),
        (Oddly(size="2"), b'size":"2"', b'size":"x"'),
    ],
)
def test_spec_that_cannot_be_generated_is_judged_by_pydantic_and_says_so(
    event: Event, good: bytes, bad: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    line = attach(encode(event), b'{"service.name":"a"}')
    with caplog.at_level(logging.WARNING, "penstock.specs"):
        assert accept(line) is None
    assert isinstance(check_line(line), Accepted)
    assert isinstance(check_line(line.replace(good, bad)), Rejected)
    assert "pydantic" in slow_specs()[event.spec]
