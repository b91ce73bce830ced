"""Models to bytes and back, and the bytes that each published version has always had."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.specs import Event, LogRecord, RefusedRecordError, decode, encode
from penstock.specs.models.kinds import BASE_MODELS
from tests.unit.specs import records

GOLDEN = Path(__file__).parents[2] / "golden" / "specs"
Make = Callable[..., dict[str, Any]]


class Shipped(Event, spec="codec_test.parcel.shipped/1.0"):
    """A specialised spec of this test."""

    parcel: str
    weight: float | None = None


@pytest.mark.parametrize("file", sorted(path.name for path in GOLDEN.iterdir()))
def test_golden_line_is_what_is_written_and_read(file: str) -> None:
    """The files are never edited: stored records of their versions look like this for ever."""
    golden = (GOLDEN / file).read_bytes().rstrip(b"\n")
    record = decode(golden)
    assert encode(record) == golden
    name, version = file.removesuffix(".json").rsplit("-", 1)
    make = {**records.ALL, "metric_not_finite": records.gauge_without_number}[name]
    assert json.loads(golden) == make(schema=f"{record.kind}/{version}")
    assert isinstance(record, BASE_MODELS[record.kind])


def test_each_kind_has_a_golden_line_of_its_version() -> None:
    for name, make in records.ALL.items():
        version = make()["schema"].partition("/")[2]
        assert (GOLDEN / f"{name}-{version}.json").exists()


@pytest.mark.parametrize("make", records.ALL.values(), ids=records.ALL)
def test_schema_and_kind_come_first(make: Make) -> None:
    line = encode(decode(json.dumps(make()).encode()))
    assert list(json.loads(line))[:2] == ["schema", "kind"]


def test_own_fields_travel_as_attributes_and_come_back() -> None:
    record = Shipped(parcel="p-1", attributes={"free": 1})
    fields = json.loads(encode(record))
    assert fields["schema"] == "codec_test.parcel.shipped/1.0"
    assert fields["event_name"] == "codec_test.parcel.shipped"
    assert fields["attributes"] == {"free": 1, "codec_test.parcel.parcel": "p-1"}
    assert "parcel" not in fields
    assert decode(encode(record)) == record


def test_record_gets_its_schema_time_and_id_where_it_is_made() -> None:
    record = Shipped(parcel="p")
    assert len(record.record_id) == 32
    assert record.time_unix_nano > 1_700_000_000 * 10**9
    assert LogRecord(severity_number=9, body="x").schema_id == "log/1.0"


def test_typing_error_fails_where_the_record_is_made() -> None:
    with pytest.raises(ValidationError):
        Shipped(parcel="p", wieght=1.0)
    with pytest.raises(ValidationError):
        Shipped(parcel=1)
    with pytest.raises(ValidationError):
        Event()


def test_record_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        Shipped(parcel="p").parcel = "q"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not_json"),
        (b"[]", "not_an_object"),
        (b"{}", "bad_schema"),
        (b'{"schema":"log/1.0","kind":"x"}', "bad_schema"),
        (b'{"schema":"log/9.0","kind":"log"}', "unknown_major"),
        (b'{"schema":"log/1.0","kind":"log"}', "invalid"),
    ],
)
def test_decode_refuses_with_a_reason(line: bytes, reason: str) -> None:
    with pytest.raises(RefusedRecordError) as caught:
        decode(line)
    assert caught.value.reason == reason
