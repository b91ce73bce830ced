"""Records nested deeply, and integers above 64 bits: neither stops anything, or is changed."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.router.columns.json_objects import (
    NESTED_MAX,
    is_deep,
    read_object,
    text_of,
    write_json,
)
from penstock.router.transforms import Chain, Transform, Transformed
from tests.support.sink_batches import log_record
from tests.unit.router.sink_rows import row
from tests.unit.router.test_router_conversion import shaped
from tests.unit.router.test_router_odd_records import SINKS, encoded
from tests.unit.router.test_router_transforms import TYPED

LARGE = 123456789012345678901234567890
LARGE_TEXT = str(LARGE)
BEYOND = (2**63 + 1, 2**64 + 1, -(2**63) - 1, LARGE, 10**400)
STEPS: list[dict[str, Any]] = [
    {"select": ["attributes"]},
    {"drop": ["attributes.x"]},
    {"rename": {"attributes.x": "attributes.y"}},
    {"mask": {"fields": ["body", "attributes.x"], "pattern": "a"}},
    {"hash": {"fields": ["user_id", "attributes.x"], "key_file": "KEY"}},
    {"sample": {"rate": 0.999999}},
    {"map": "ecs"},
    {"map": "splunk_cim"},
    {"map": "loki"},
]
CHANGE = ({"drop": ["attributes.z"]},)
"""So that a step which leaves out rows must write, too."""
DEPTHS = (253, 300, *range(NESTED_MAX - 3, NESTED_MAX + 3), *range(860, 1000), 2000)


def nested(depth: int, *, blank: str = "") -> str:
    """Lists inside each other, but for two objects around them."""
    return "[" * (depth - 2) + blank + "]" * (depth - 2)


def log(key: str, text: str) -> bytes:
    """A log record with JSON as an attribute, or as a member of another object of it."""
    others = "".join(f',"{it}":{{}}' for it in ("attributes", "resource") if it != key)
    known = '"schema":"log/1.0","kind":"log","time_unix_nano":1,"body":"b"'
    return f'{{{known}{others},"{key}":{{"n":{text}}}}}'.encode()


def changed(directory: Path, value: bytes, *steps: dict[str, Any]) -> Transformed:
    key = directory / "key"
    key.write_bytes(b"0123456789abcdef")
    given = json.loads(json.dumps(steps).replace('"KEY"', json.dumps(str(key))))
    chain = Chain([Transform.model_validate(it) for it in given], directory, key_path="p")
    rows = pa.Table.from_pylist([row(0, value=value, timestamp_ns=0)], schema=TYPED)
    return chain.apply(rows, 0)


@pytest.mark.parametrize("blank", ["", " "])
@pytest.mark.parametrize("key", ["attributes", "resource", "links"])
def test_the_source_gives_every_row_however_deeply_it_is_nested(key: str, blank: str) -> None:
    values = [log(key, nested(depth, blank=blank)) for depth in DEPTHS]
    rows = shaped(values)
    assert [found["value"] for found in rows] == values
    assert not rows[0]["malformed"]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: "-".join(map(str, step.values()))[:20])
def test_a_step_changes_what_is_nested_within_bounds_and_lays_the_rest_aside(
    tmp_path: Path, step: dict[str, Any]
) -> None:
    for depth in DEPTHS:
        value = log("attributes", nested(depth, blank=" "))
        done = changed(tmp_path, value, *CHANGE, step)
        assert done.rows.num_rows + done.refused.num_rows == 1
        if depth > NESTED_MAX:
            assert done.refused.column("value").to_pylist() == [value]
        elif "map" not in step:
            assert nested(depth) in done.rows.column("value")[0].as_py().decode()


def test_sampling_alone_lets_pass_as_it_is_what_it_cannot_change(tmp_path: Path) -> None:
    value = log("attributes", nested(NESTED_MAX + 1))
    done = changed(tmp_path, value, {"sample": {"rate": 0.999999}})
    assert done.rows.column("value").to_pylist() == [value]


@pytest.mark.parametrize("number", BEYOND)
@pytest.mark.parametrize("step", STEPS, ids=lambda step: "-".join(map(str, step.values()))[:20])
def test_a_step_keeps_integers_of_any_size(
    tmp_path: Path, step: dict[str, Any], number: int
) -> None:
    done = changed(tmp_path, log("attributes", str(number)), step)
    assert str(number) in done.rows.column("value")[0].as_py().decode()


def test_what_stands_for_more_records_than_a_double_holds_stands_for_one(tmp_path: Path) -> None:
    value = json.dumps({"kind": "log", "sample_weight": 10**400}).encode()
    done = changed(tmp_path, value, {"sample": {"rate": 0.999999}})
    assert json.loads(done.rows.column("value")[0].as_py())["sample_weight"] == 1 / 0.999999


def test_a_time_that_no_clock_has_is_no_document(tmp_path: Path) -> None:
    value = json.dumps({"kind": "log", "time_unix_nano": LARGE}).encode()
    done = changed(tmp_path, value, {"map": "ecs"})
    assert done.refused.column("value").to_pylist() == [value]


@pytest.mark.parametrize("name", SINKS)
def test_a_sink_sends_an_integer_as_it_is_or_lays_its_record_aside(
    tmp_path: Path, name: str
) -> None:
    sent, refused = encoded(name, tmp_path, log_record(0, attributes={"n": LARGE}))
    assert refused or LARGE_TEXT in sent
    late = log_record(0, time_ns=LARGE, body="the-body-itself")
    sent, refused = encoded(name, tmp_path, late)
    assert refused or "the-body-itself" in sent


def test_only_brackets_that_are_inside_each_other_count() -> None:
    many = NESTED_MAX + 1
    assert is_deep(b"[" * many + b"]" * many)
    assert is_deep(b'{"a":' * many + b"1" + b"}" * many)
    assert not is_deep(b"[" * NESTED_MAX + b" " * many + b"]" * NESTED_MAX)
    assert not is_deep(b"[" + b"[]," * many * 2 + b"[]]")
    assert not is_deep(json.dumps({"a": "[" * many * 2, "b": '\\"{"[' * many}).encode())
    assert is_deep(b'["\\"",' * many + b"1" + b"]" * many)


def test_a_text_of_quotes_takes_time_in_proportion() -> None:
    """Were it the square, this would take hours."""
    assert not is_deep(b'"' + b'\\"[' * 1_000_000)


@pytest.mark.parametrize("text", [None, b"", b"[]", b'"a"', b"{", b'{"a":"\xff"}', b'{"a":NaN}'])
def test_what_is_no_object_is_none(text: bytes | None) -> None:
    assert read_object(text) is None


def test_values_are_read_and_written_as_they_are() -> None:
    text = f'{{"a":{LARGE_TEXT},"b":-0.5,"c":"\u2603","d":[null,true],"e":0.1}}'.encode()
    assert write_json(read_object(text)) == text
    assert [text_of(it) for it in ("a", 1, [LARGE])] == ["a", "1", f"[{LARGE_TEXT}]"]
