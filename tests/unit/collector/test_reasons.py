"""What a refused record's reason means: of each that the validator gives, a sentence."""

import json
from typing import Any

import pytest

from penstock.collector.spool.rejection_reasons import meaning
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Rejected

LOG: dict[str, Any] = {
    "schema": "log/1.0",
    "kind": "log",
    "time_unix_nano": 1,
    "severity_number": 9,
    "body": "x",
    "resource": {"service.name": "s"},
}


def refused(line: bytes) -> str:
    verdict = check_line(line)
    assert isinstance(verdict, Rejected)
    return f"{verdict.reason}: {verdict.detail}" if verdict.detail else verdict.reason


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"no json", "the line is no JSON"),
        (b"[1]", "the line is JSON, and no object"),
        (b'{"a":' * 99 + b"1" + b"}" * 99, "objects and lists are inside each other"),
        (b'{"kind":"log","kind":"log"}', "an object has a key twice"),
        (b"x" * 2_000_000, "the record has more than "),
        ({"kind": "leg"}, "`kind` is missing, or none of log"),
        ({"schema": "log"}, "`schema` is missing, or no spec's name"),
        ({"schema": "span/1.0"}, "`schema` names a spec of another kind than `kind`"),
        ({"schema": "log/9.0"}, "`schema` names a major version that"),
        ({"body": None}, "body is missing"),
        ({"severity_number": None, "body": None}, "body and severity_number are missing"),
        ({"severity_number": "many"}, "severity_number must be an integer"),
        ({"severity_number": 99}, "severity_number is too large"),
        ({"severity_number": 1.5}, "severity_number must be an integer"),
        ({"body": 7}, "body must be a text"),
        ({"attributes": []}, "attributes must be an object"),
        ({"trace_id": "xyz"}, "trace_id has not the form that the spec demands"),
    ],
)
def test_a_reason_of_the_gate_is_said_in_a_sentence(line: Any, told: str) -> None:
    raw = line if isinstance(line, bytes) else json.dumps(LOG | line).encode()
    assert told in (meaning(refused(raw)) or "")


def test_the_transform_that_gave_a_reason_is_named_before_the_sentence() -> None:
    told = meaning("transform t: integer_too_large") or ""
    assert told.startswith("transform t: a field that the spec does not have holds an integer")


def test_a_rule_that_has_no_words_is_named() -> None:
    assert meaning("invalid: a.b: odd_rule") == "a.b breaks the rule odd_rule"


@pytest.mark.parametrize(
    "reason", ["transform parsed: text is not clf", "forward: not a unit: X", "", "check_failed: x"]
)
def test_what_is_a_sentence_already_has_no_other(reason: str) -> None:
    assert meaning(reason) is None
