"""Messages of the socket source as records, codec by codec."""

import gzip
import json
import logging
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from cefevent.event import CEFEvent
from logfmter import Logfmter

from penstock.collector.decode.formats.security_events import (
    read_cef,
    read_leef,
    severity_of_event,
)
from penstock.collector.decode.senders.gelf import ChunkBuffer
from penstock.collector.decode.units import Decoded, decode_records
from penstock.collector.sources.network.framing import DelimitedCutter, Message, pack_messages
from penstock.collector.sources.senders.socket import SocketSettings, meta_of
from penstock.collector.spool.spool import Unit
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted

NOW_NS = int(datetime(2026, 11, 27, 12, tzinfo=UTC).timestamp()) * 10**9
NOON = "Nov 27 2026 12:00:00"


def decode(
    codec: str, *messages: bytes, peer: str = "", truncated: tuple[int, ...] = (), **options: Any
) -> Decoded:
    given = {"type": "socket", "tcp": "127.0.0.1:0", "codec": codec, **options}
    meta = meta_of(SocketSettings.model_validate(given))
    meta |= {"peer": peer, "truncated": list(truncated)}
    unit = Unit("s", "socket", pack_messages(messages), len(messages), NOW_NS, meta)
    decoded = decode_records(unit, {"site": "a"})
    for line, verdict in zip(decoded.lines, decoded.verdicts, strict=True):
        found = check_line(line)
        assert isinstance(found, Accepted)
        assert verdict in (None, found)
    return decoded


def record_of(codec: str, message: bytes, **options: Any) -> dict[str, Any]:
    decoded = decode(codec, message, **options)
    assert [part.reason for part in decoded.undecodable] == []
    (line,) = decoded.lines
    found: dict[str, Any] = json.loads(line)
    return found


def test_text_is_the_body_and_a_structured_line_is_taken_apart() -> None:
    assert record_of("text", b"hello")["body"] == "hello"
    record = record_of("text", b'{"level": "warn", "msg": "m", "a": 1}', peer="10.0.0.7")
    assert (record["body"], record["severity_text"]) == ("m", "WARN")
    assert record["attributes"] == {"a": 1, "network.peer.address": "10.0.0.7"}
    assert record["resource"] == {
        "site": "a", "service.name": "socket", "host.name": "10.0.0.7"
    }  # fmt: skip


def test_json_needs_no_key_of_a_logger() -> None:
    record = record_of("json", b'{"order": 7, "app": "till", "a": {"b": [1, 2]}}')
    assert record["body"] == ""
    assert record["attributes"] == {"order": 7, "app": "till", "a.b": [1, 2]}
    assert record["resource"]["service.name"] == "till"
    record = record_of("json", b'{"order": 7, "app": "till"}', service_fields=["none"], service="x")
    assert record["resource"]["service.name"] == "x"


def test_a_message_of_another_codec_is_refused_alone() -> None:
    decoded = decode("json", b'{"a": 1}', b"text", b"[1]", b'{"b": 2}')
    assert decoded.indexes == [0, 3]
    assert [(part.index, part.reason) for part in decoded.undecodable] == [
        (1, "json: the message is no JSON object"),
        (2, "json: the message is no JSON object"),
    ]
    assert [part.raw for part in decoded.undecodable] == [b"4 text", b"3 [1]"]


def test_a_string_that_does_not_end_takes_no_quadratic_time() -> None:
    begun_s = time.process_time()
    (refused,) = decode("json", b'{"a": "' + b'\\"' * 60_000 + b"}").undecodable
    assert refused.reason == "json: the message is no JSON object"
    assert time.process_time() - begun_s < 5  # it took two minutes when each quote began a string
    assert record_of("json", b'{"a": ",}\\",}", "b": [1,],}')["attributes"] == {
        "a": ',}",}', "b": [1],
    }  # fmt: skip


def test_what_was_cut_is_marked_where_it_can_be_read() -> None:
    decoded = decode("json", b'{"a": 1}', b'{"a": 1, "b', truncated=(0, 1))
    assert json.loads(decoded.lines[0])["attributes"]["log.record.truncated"] is True
    assert [part.index for part in decoded.undecodable] == [1]


def test_logfmt_as_its_library_writes_it() -> None:
    formatter = Logfmter(keys=["at", "msg"], mapping={"at": "levelname"})
    record = logging.LogRecord("x", logging.WARNING, "", 1, 'order "7" paid', None, None)
    record.__dict__["lane"] = "a b"
    text = formatter.format(record).replace("at=", "level=")
    found = record_of("logfmt", text.encode())
    assert (found["body"], found["severity_text"]) == ('order "7" paid', "WARN")
    assert found["attributes"] == {"lane": "a b"}
    found = record_of("logfmt", rb'msg="\u001b[1m\ud83d\ude00 \"a\"" path="C:\Users\\"')
    assert found["body"] == '\x1b[1m\U0001f600 "a"'
    assert found["attributes"] == {"path": "C:\\Users\\"}
    (refused,) = decode("logfmt", b"no pairs here").undecodable
    assert refused.reason == "logfmt: the message has no pair of a key and a value"


def test_cef_as_its_library_writes_it() -> None:
    event = CEFEvent()
    for key, value in {
        "deviceVendor": "Acme|Co", "deviceProduct": "Gate\\Keeper", "name": "worm | stopped",
        "severity": 9, "sourceAddress": "10.0.0.1", "message": "a=b and c",
    }.items():  # fmt: skip
        event.set_field(key, value)
    found = record_of("cef", f"{event.build_cef()} rt=1795780800000".encode())
    assert found["body"] == "a=b and c"
    assert found["severity_text"] == "FATAL"
    assert found["resource"]["service.name"] == "Gate\\Keeper"
    assert found["attributes"]["cef.device.vendor"] == "Acme|Co"
    assert found["attributes"]["cef.name"] == "worm | stopped"
    assert found["attributes"]["cef.extensions.src"] == "10.0.0.1"
    assert found["time_unix_nano"] == NOW_NS


def test_cef_behind_the_head_of_a_syslog_message() -> None:
    text = f"<134>Nov 27 11:00:00 fw-1 CEF:0|V|P|1|7|the name|Low|end={NOON} cs1=a b  cs1Label=x=y"
    found = record_of("cef", text.encode(), peer="10.0.0.7")
    assert found["body"] == "the name"
    assert found["severity_text"] == "INFO"
    assert found["resource"]["host.name"] == "fw-1"
    assert found["time_unix_nano"] == NOW_NS
    assert found["attributes"]["cef.extensions.cs1"] == "a b"
    assert found["attributes"]["cef.extensions.cs1Label"] == "x=y"
    found = record_of("cef", b"<134>Nov 27 11:00:00 fw-1 CEF:0|V|P|1|7|n|Low|")
    assert found["time_unix_nano"] == NOW_NS - 3600 * 10**9


def test_the_header_of_syslog_before_an_event_is_kept() -> None:
    head = '<131>1 2026-11-27T11:00:00Z fw-1 gate 77 M1 [o@1 ip="10.0.0.9"] '
    decoded = decode("cef", f"{head}CEF:0|V|P|1|7|n|Low|rt={NOON}".encode())
    attributes = json.loads(decoded.lines[0])["attributes"]
    found = {key: value for key, value in attributes.items() if key.startswith("log.syslog.")}
    assert found == {
        "log.syslog.facility.name": "local0", "log.syslog.severity.code": 3,
        "log.syslog.appname": "gate", "log.syslog.procid": "77", "log.syslog.msgid": "M1",
        "log.syslog.structured_data.o@1.ip": "10.0.0.9",
    }  # fmt: skip
    assert decoded.notes["syslog_times_dropped"] == 1
    found = record_of("leef", b"LEEF:1.0|V|P|1|7|src=a")["attributes"]
    assert not any(key.startswith("log.syslog.") for key in found)


@pytest.mark.parametrize(
    ("codec", "message", "counted"),
    [
        ("cef", b"CEF:0|V|P|1|7|n|5|src=a src=b dst=c src=d", {"keys_repeated": 2}),
        ("leef", b"LEEF:1.0|V|P|1|7|src=a\tsrc=b", {"keys_repeated": 1}),
        ("logfmt", b"a=1 b=2 a=3", {"keys_repeated": 1}),
        ("gelf", b'{"version": "2.0", "short_message": "m"}', {"versions_unknown": 1}),
        ("gelf", b'{"version": "1.1", "short_message": "m"}', {}),
    ],
)
def test_what_is_not_kept_of_a_message_is_counted(
    codec: str, message: bytes, counted: dict[str, int]
) -> None:
    assert +decode(codec, message).notes == counted


def test_what_belongs_to_no_key_is_kept_beside_the_others() -> None:
    found = record_of("cef", b"CEF:0|V|P|1|7|n|5|no key src=a")
    assert found["attributes"]["cef.extensions"] == "no key"
    assert found["attributes"]["cef.extensions.src"] == "a"
    found = record_of("leef", b"LEEF:1.0|V|P|1|7|alone\tsrc=a\t=b")
    assert found["attributes"]["leef.extensions"] == "alone\t=b"


@pytest.mark.parametrize(
    "time",
    ["1795780800000", NOON, f"{NOON}.000", f"{NOON} UTC", f"{NOON}.000 UTC",
     "Nov 27 2026 13:00:00 +0100", "Nov 27 12:00:00", "2026-11-27T12:00:00Z"],
)  # fmt: skip
def test_times_of_security_events(time: str) -> None:
    found = record_of("cef", f"CEF:0|V|P|1|7|n|5|rt={time}".encode())
    assert found["time_unix_nano"] == NOW_NS
    found = record_of("leef", f"LEEF:1.0|V|P|1|7|devTime={time}".encode())
    assert found["time_unix_nano"] == NOW_NS


def test_what_cannot_be_read_of_an_event_is_counted() -> None:
    decoded = decode("cef", b"CEF:0|V|P|1|7|n|eleven|rt=yesterday")
    assert decoded.notes == {"levels_unknown": 1, "timestamps_unreadable": 1}
    decoded = decode("gelf", b'{"short_message": "m", "level": 9, "timestamp": "x"}')
    assert decoded.notes["levels_unknown"] == 1
    assert decoded.notes["timestamps_unreadable"] == 1


@pytest.mark.parametrize(
    ("value", "number"),
    [("0", 9), ("3", 9), ("4", 13), ("7", 17), ("8", 17), ("9", 21), ("10", 21), ("Low", 9),
     ("Medium", 13), ("High", 17), ("Very-High", 21), ("Unknown", 9), ("11", None), ("-1", None),
     ("", None), ("٣", None)],
)  # fmt: skip
def test_severities_of_security_events(value: str, number: int | None) -> None:
    found = severity_of_event(value)
    assert (None if found is None else found[0]) == number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"CEF:0|a\|b|c\\d|1|2|n|3|x=\=\\ y=1\n2 z=", {
            "cef.device.vendor": "a|b", "cef.device.product": "c\\d", "cef.extensions.x": "=\\",
            "cef.extensions.y": "1\n2", "cef.extensions.z": "",
        }),
        ("CEF:0|a|b|1|2|n|3", {"cef.severity": "3"}),
        ("CEF:0|||||n||a b=c", {"cef.name": "n", "cef.extensions.b": "c"}),
        ("CEF:1.2|a|b|1|2|n|3|no pairs", {"cef.version": "1.2"}),
        (r"CEF:0|a\n|b|1|2|n|3|path=C:\Users\bob x=a\|b", {
            "cef.device.vendor": r"a\n", "cef.extensions.path": r"C:\Users\bob",
            "cef.extensions.x": "a|b",
        }),
        ("<13>Nov 27 12:00:00 h CEF: CEF:0|a|b|1|2|n|3|", {"cef.name": "n"}),
    ],
)  # fmt: skip
def test_cef_as_it_is_escaped(text: str, expected: dict[str, str]) -> None:
    found = read_cef(text)
    assert found is not None
    assert found.items() >= expected.items()


@pytest.mark.parametrize("text", ["", "CEF:", "CEF:0|a|b", "CEF:x|a|b|c|d|e|f|", "LEEF:1.0|a|b"])
def test_what_is_no_cef(text: str) -> None:
    assert read_cef(text) is None


LEEF_CASES: list[tuple[str, dict[str, str]]] = [
    ("LEEF:1.0|V|P|1|7|src=1.2.3.4\tmsg=a b=c\tsev=5", {"msg": "a b=c", "sev": "5"}),
    ("LEEF:2.0|V|P|1|7|||src=1.2.3.4|msg=a b", {"src": "1.2.3.4", "msg": "a b"}),
    ("LEEF:2.0|V|P|1|7|^|src=1.2.3.4^msg=a b", {"src": "1.2.3.4", "msg": "a b"}),
    ("LEEF:2.0|V|P|1|7|x5E|src=1^msg=a", {"src": "1", "msg": "a"}),
    ("LEEF:2.0|V|P|1|7|0x09|src=1\tmsg=a", {"src": "1", "msg": "a"}),
    ("LEEF:2.0|V|P|1|7||src=1\tmsg=a", {"src": "1", "msg": "a"}),
    ("LEEF:2.0|V|P|1|7|src=1\tmsg=a|b", {"src": "1", "msg": "a|b"}),
    ("<13>Nov 27 12:00:00 h LEEF:1.0|V|P|1|7|src=1", {"src": "1"}),
]


@pytest.mark.parametrize(("text", "expected"), LEEF_CASES)
def test_leef_with_each_delimiter(text: str, expected: dict[str, str]) -> None:
    found = read_leef(text)
    assert found is not None
    assert found["leef.event_id"] == "7"
    named = {f"leef.extensions.{key}": value for key, value in expected.items()}
    assert found.items() >= named.items()


def test_leef_as_a_record() -> None:
    found = record_of("leef", b"LEEF:1.0|IBM|QRadar|2|evt|sev=9\tmsg=denied\tsrc=1.2.3.4")
    assert found["body"] == "denied"
    assert found["severity_text"] == "FATAL"
    assert found["resource"]["service.name"] == "QRadar"
    assert record_of("leef", b"LEEF:1.0|IBM|QRadar|2|evt|")["body"] == "evt"
    (refused,) = decode("leef", b"CEF:0|a|b|c|d|e|f|").undecodable
    assert refused.reason == "leef: the message is no event of this format"


def test_fields_of_gelf() -> None:
    message = {
        "version": "1.1", "host": "web-1", "short_message": "m", "full_message": "m\ntrace",
        "timestamp": 1795780800.5, "level": 4, "facility": "shop", "line": 7, "_app": "till",
        "_id": 5, "_line": "both", "_": "bare", "_traceId": "ab" * 16,
    }  # fmt: skip
    found = record_of("gelf", json.dumps(message).encode(), peer="10.0.0.7")
    assert found["body"] == "m"
    assert found["severity_text"] == "WARN"
    assert found["time_unix_nano"] == NOW_NS + 500_000_000
    assert found["trace_id"] == "ab" * 16
    assert found["resource"] == {"site": "a", "service.name": "till", "host.name": "web-1"}
    assert found["attributes"] == {
        "full_message": "m\ntrace", "facility": "shop", "line": 7, "app": "till", "id": 5,
        "_line": "both", "_": "bare", "network.peer.address": "10.0.0.7",
    }  # fmt: skip


def test_a_unit_of_bombs_becomes_no_more_than_its_bound() -> None:
    """Each is within its own bound; together they are not."""
    bomb = gzip.compress(b'{"short_message": "m", "x": "' + b" " * 1_000_000 + b'"}')
    decoded = decode("gelf", *[bomb] * 80, max_message_bytes=1 << 20)
    assert len(decoded.lines) == 67
    assert {part.reason.partition(" bytes")[2] for part in decoded.undecodable} == {
        " after decompression"
    }


def test_a_late_or_repeated_chunk_of_a_message_that_ended_begins_no_other() -> None:
    def chunk(number: int, count: int) -> bytes:
        return b"\x1e\x0fidentity" + bytes([number, count]) + b"x"

    buffer = ChunkBuffer(max_messages=4, max_bytes=10_000, timeout_s=5)
    buffer.add(chunk(0, 2), "p", 0.0)
    buffer.expire(6.0)
    assert buffer.add(chunk(1, 2), "p", 6.0) is None
    assert (len(buffer), buffer.ignored, buffer.lost) == (0, 1, {"chunks_missing": 1})
    buffer.add(chunk(0, 2), "p", 20.0)
    assert buffer.add(chunk(1, 2), "p", 20.0) == b"xx", "its id may come again later"
    assert buffer.add(chunk(1, 2), "p", 20.0) is None
    buffer.expire(30.0)
    assert (buffer.ignored, buffer.lost) == (2, {"chunks_missing": 1})


@pytest.mark.parametrize("step", [1, 100])
def test_a_carriage_return_at_the_bound_cuts_no_line(step: int) -> None:
    data = b"12345\r\n123456\r\n12345\rx\n1234\r\n"
    cutter = DelimitedCutter(b"\n", 5)
    found = [one for at in range(0, len(data), step) for one in cutter.feed(data[at : at + step])]
    assert found == [
        Message(b"12345"), Message(b"12345", truncated=True), Message(b"12345", truncated=True),
        Message(b"1234"),
    ]  # fmt: skip
