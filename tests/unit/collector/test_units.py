"""Spooled units taken apart: every record, or the reason why not."""

from pathlib import Path

import msgpack
import orjson
import zstandard

from penstock.collector.decode.units import decode_records
from penstock.collector.limits import UNIT_DECOMPRESSED_BYTES_MAX
from penstock.collector.spool.spool import Unit
from penstock.specs.limits import STRING_CHARACTERS_MAX
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted
from tests.support.collector import encode_batch, log_line

RESOURCE = {"host.name": "h"}
SENDERS = Path("tests/golden/senders")


def unit(form: str, payload: bytes, count: int = 1, **meta: object) -> Unit:
    return Unit("source", form, payload, count, 1_700_000_000_000_000_000, meta)


def test_a_batch_of_the_unix_socket_yields_its_lines_and_resource() -> None:
    lines = [log_line(0), log_line(1)]
    frame = encode_batch("s", 1, lines, resource={"service.name": "x"})[4:]
    decoded = decode_records(unit("unix", frame), RESOURCE)
    assert (decoded.lines, decoded.indexes) == (lines, [0, 1])
    assert decoded.resource == {"service.name": "x"}


def test_a_compressed_batch_yields_the_same() -> None:
    frame = encode_batch("s", 1, [], codec="zstd")[4:] + zstandard.compress(b"{}\n{}")
    assert decode_records(unit("unix", frame), RESOURCE).lines == [b"{}", b"{}"]


def test_a_batch_that_cannot_be_decompressed_is_refused_whole() -> None:
    frame = encode_batch("s", 1, [], codec="zstd")[4:] + b"no zstd"
    decoded = decode_records(unit("unix", frame, count=5), RESOURCE)
    assert decoded.lines == []
    assert [(part.count, part.raw) for part in decoded.undecodable] == [(5, frame)]


def test_a_decompression_bomb_is_refused() -> None:
    bomb = zstandard.compress(bytes(UNIT_DECOMPRESSED_BYTES_MAX + 1))
    frame = encode_batch("s", 1, [], codec="zstd")[4:] + bomb
    (part,) = decode_records(unit("unix", frame), RESOURCE).undecodable
    assert f"more than {UNIT_DECOMPRESSED_BYTES_MAX} bytes" in part.reason


def test_lines_that_stand_for_no_record_are_named() -> None:
    decoded = decode_records(unit("ndjson", b"{}\n[]\n{}", 3, refused=[[1, "odd"]]), RESOURCE)
    assert (decoded.lines, decoded.indexes) == ([b"{}", b"{}"], [0, 2])
    assert [(p.index, p.reason, p.raw) for p in decoded.undecodable] == [(1, "odd", b"[]")]


def test_lines_keep_their_number_even_when_empty() -> None:
    decoded = decode_records(unit("lines", b"a\n\nb", 3, service="s", truncated=[2]), RESOURCE)
    assert decoded.count == 3
    assert b"log.record.truncated" in decoded.lines[2]
    assert all(isinstance(check_line(line), Accepted) for line in decoded.lines)


def test_forward_messages_yield_records_and_a_bad_one_takes_none_along() -> None:
    good = msgpack.packb(["app.web", 5, {"message": "hi", b"\xff": b"\xfe", 3: {"a": 1}}])
    bad = msgpack.packb(["app", [[1, "no map"]]])
    decoded = decode_records(unit("forward", good + bad + good, 3, service="from_tag"), RESOURCE)
    assert decoded.indexes == [0, 2]
    assert [part.index for part in decoded.undecodable] == [1]
    assert all(isinstance(check_line(line), Accepted) for line in decoded.lines), decoded.lines


def test_strings_that_fluentd_packs_as_bin_are_text() -> None:
    raw = (SENDERS / "fluentd-message.msgpack").read_bytes()
    made = [
        orjson.loads(line)
        for line in decode_records(unit("forward", raw, 3, service="from_tag"), RESOURCE).lines
    ]
    assert [(one["body"], one["severity_text"]) for one in made] == [
        ("payment of 3 € failed", "ERROR"),
        ("caf\ufffd closed", "WARN"),
        ("", "INFO"),  # it has no message; the tag is none
    ]
    assert [one["attributes"] for one in made] == [
        {"user.name": "ada", "tags": ["a", "b"], "fluent.tag": "app.web"},
        {"log.record.bytes_replaced": True, "fluent.tag": "app.web"},
        {
            "remote": "192.0.2.7", "method": "GET", "path": "/health", "code": "200",
            "fluent.tag": "app.web",
        },
    ]  # fmt: skip
    assert made[0]["time_unix_nano"] == 1_714_564_800_123_456_789


def test_what_is_not_understood_of_records_is_counted() -> None:
    lines = b'{"level":"loud"}\n{"time":"soon"}\n{"level":"info","a":NaN}\nplain'
    decoded = decode_records(unit("lines", lines, 4, service="s"), RESOURCE)
    assert decoded.notes == {"levels_unknown": 1, "timestamps_unreadable": 1, "lines_repaired": 1}
    message = msgpack.packb(["app", 5, {"level": "loud", "message": "hi"}])
    decoded = decode_records(unit("forward", message, 1, service="s"), RESOURCE)
    assert decoded.notes == {"levels_unknown": 1}


def test_a_bad_entry_of_a_forward_message_is_named_alone() -> None:
    raw = msgpack.packb(["app", [[1, {"a": 1}], [1, "no map"], [2, {"a": 2}]]])
    decoded = decode_records(unit("forward", raw + raw, 6, service="from_tag"), RESOURCE)
    assert (decoded.count, decoded.indexes) == (6, [0, 2, 3, 5])
    assert [(part.index, part.count) for part in decoded.undecodable] == [(1, 1), (4, 1)]


def test_a_body_that_is_cut_says_so() -> None:
    for text, cut in (
        ("x" * STRING_CHARACTERS_MAX, None),
        ("x" * (STRING_CHARACTERS_MAX + 1), True),
    ):
        raw = msgpack.packb(["app", 5, {"log": text, "log.record.truncated": "no"}])
        (line,) = decode_records(unit("forward", raw, service="from_tag"), RESOURCE).lines
        record = orjson.loads(line)
        assert record["body"] == text[:STRING_CHARACTERS_MAX]
        assert record["attributes"]["log.record.truncated"] == (cut or "no")
        assert isinstance(check_line(line), Accepted)


def test_an_unknown_format_is_named() -> None:
    (part,) = decode_records(unit("morse", b"..."), RESOURCE).undecodable
    assert part.reason == "unknown_format: morse"


def test_a_service_made_of_a_tag_fits_the_spec() -> None:
    decoded = decode_records(
        unit("forward", msgpack.packb(["t" * 300, 1, {}]), service="from_tag"), {}
    )
    assert [type(check_line(line)) for line in decoded.lines] == [Accepted]


def test_a_journal_entry_that_nests_too_deep_to_be_text_is_named() -> None:
    entry = b'{"MESSAGE":' + b"[" * 900 + b"]" * 900 + b"}"
    decoded = decode_records(unit("journal", entry, service="x"), RESOURCE)
    assert [part.raw for part in decoded.undecodable] == [entry]


def test_a_decoder_that_fails_costs_its_unit_only() -> None:
    """As one that meets a unit of lines whose service nobody spooled, which no source makes."""
    decoded = decode_records(Unit("app", "lines", b"a\nb", 2, 0), {})
    (part,) = decoded.undecodable
    assert (part.raw, part.count) == (b"a\nb", 2)
    assert part.reason == "decoder_failed: KeyError: 'service'"
