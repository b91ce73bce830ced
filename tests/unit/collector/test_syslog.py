"""Syslog framing and parsing: the RFCs' own examples, what clients send, and noise."""

import json
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.collector.decode.syslog import Parsed, parse_message
from penstock.collector.decode.units import decode_records
from penstock.collector.errors import UndecodableError
from penstock.collector.sources.network.framing import Message, messages_in, pack_messages
from penstock.collector.sources.syslog.framing import SyslogCutter
from penstock.collector.spool.spool import Unit
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted

NOW = int(datetime(2026, 11, 22, tzinfo=UTC).timestamp()) * 10**9


def parse(message: bytes, zone: str = "UTC") -> Parsed:
    return parse_message(message, NOW, ZoneInfo(zone))


def time_of(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 10**6) * 1000


def cut(data: bytes, bytes_max: int = 1000) -> list[bytes]:
    cutter = SyslogCutter(bytes_max)
    messages = cutter.feed(data)
    rest = cutter.flush()
    return [message.text for message in [*messages, *([rest] if rest else [])]]


# RFC 5424, section 6.5.


def test_rfc5424_example_1() -> None:
    parsed = parse(
        b"<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - "
        b"\xef\xbb\xbf'su root' failed for lonvick on /dev/pts/8"
    )
    assert parsed == Parsed(
        "rfc5424", 34, time_of("2003-10-11T22:14:15.003Z"), b"mymachine.example.com", b"su",
        b"", b"ID47", {}, b"'su root' failed for lonvick on /dev/pts/8",
        has_priority=True, has_time=True,
    )  # fmt: skip


def test_rfc5424_example_2() -> None:
    parsed = parse(
        b"<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8710 - - %% It's time to..."
    )
    assert parsed.time_ns == time_of("2003-08-24T12:14:15.000003Z")
    assert (parsed.process, parsed.message_id, parsed.data) == (b"8710", b"", {})
    assert parsed.body == b"%% It's time to..."


def test_rfc5424_examples_3_and_4() -> None:
    element = b'[exampleSDID@32473 iut="3" eventSource="Application" eventID="1011"]'
    head = b"<165>1 2003-10-11T22:14:15.003Z mymachine.example.com evntslog - ID47 "
    facts = {"iut": "3", "eventSource": "Application", "eventID": "1011"}
    with_text = parse(head + element + b" \xef\xbb\xbfAn application event log entry...")
    assert with_text.data == {"exampleSDID@32473": facts}
    assert with_text.body == b"An application event log entry..."
    alone = parse(head + element + b'[examplePriority@32473 class="high"]')
    assert alone.data == {"exampleSDID@32473": facts, "examplePriority@32473": {"class": "high"}}
    assert alone.body == b""


@pytest.mark.parametrize(
    "bad", [b"2003-08-24T05:14:15.000000003-07:00x", b"2003-10-11", b"yesterday"]
)
def test_rfc5424_with_a_time_that_is_none_is_text(bad: bytes) -> None:
    message = b"<34>1 " + bad + b" host app - - - hi"
    assert (parse(message).form, parse(message).body) == ("text", message[4:])


def test_each_value_of_a_parameter_that_stands_more_than_once_is_kept() -> None:
    parsed = parse(b'<13>1 - h a - - [origin ip="1" sw="x" ip="2"][origin ip="3"] hi')
    assert parsed.data == {"origin": {"ip": ["1", "2", "3"], "sw": "x"}}
    message = b'<13>1 - h a - - [origin ip="1" ip="2"] hi'
    unit = Unit("s", "syslog", pack_messages([message]), 1, NOW, {"service": "from_app"})
    (line,) = decode_records(unit, {}).lines
    assert json.loads(line)["attributes"]["log.syslog.structured_data.origin.ip"] == ["1", "2"]
    assert isinstance(check_line(line), Accepted)


def test_structured_data_is_unescaped_and_what_is_none_is_text() -> None:
    head = b"<34>1 - - - - - "
    assert parse(head + rb'[a x="\"q\" \\ \] \n"] m').data == {"a": {"x": '"q" \\ ] \\n'}}
    assert parse(head + b'[a x="open').body == b'[a x="open'
    assert parse(head + b"-").body == b""
    assert parse(head + b"- ").body == b""


# RFC 3164, section 5.4.


def test_rfc3164_example_1() -> None:
    parsed = parse(b"<34>Oct 11 22:14:15 mymachine su: 'su root' failed for lonvick on /dev/pts/8")
    assert parsed == Parsed(
        "rfc3164", 34, time_of("2026-10-11T22:14:15Z"), b"mymachine", b"su", b"", b"", {},
        b"'su root' failed for lonvick on /dev/pts/8", has_priority=True, has_time=True,
    )  # fmt: skip


def test_rfc3164_example_2_has_no_header_and_keeps_its_text() -> None:
    parsed = parse(b"Use the BFG!")
    assert (parsed.form, parsed.priority, parsed.body) == ("text", 13, b"Use the BFG!")


def test_rfc3164_example_3_has_no_tag_before_its_colon() -> None:
    parsed = parse(
        b"<165>Aug 24 05:34:00 CST 1987 mymachine myproc[10]: %% It's time to make the do-nuts."
    )
    assert (parsed.form, parsed.host) == ("rfc3164", b"CST")
    assert parsed.body.startswith(b"1987 mymachine myproc[10]: %% It's time")


def test_rfc3164_with_a_process_and_without_a_host() -> None:
    parsed = parse(b"<13>Feb  5 17:32:18 app[123]: hi")
    assert (parsed.host, parsed.app, parsed.process, parsed.body) == (b"", b"app", b"123", b"hi")


def test_a_precise_time_may_stand_before_a_traditional_header() -> None:
    parsed = parse(b"<13>2026-02-05T17:32:18.123456+01:00 web-1 app: hi")
    assert parsed.time_ns == time_of("2026-02-05T16:32:18.123456Z")
    assert (parsed.form, parsed.host, parsed.app) == ("rfc3164", b"web-1", b"app")


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        (b"Jan  2 00:00:00", "2027-01-02T00:00:00Z"),
        (b"Dec 31 00:00:00", "2026-12-31T00:00:00Z"),
        (b"Jun 30 00:00:00", "2026-06-30T00:00:00Z"),
    ],
)
def test_the_missing_year_is_the_nearest(stamp: bytes, expected: str) -> None:
    assert parse(b"<13>" + stamp + b" h a: x").time_ns == time_of(expected)


def test_a_day_that_no_near_year_has_is_not_a_time() -> None:
    assert parse(b"<13>Feb 30 00:00:00 h a: x").time_ns is None


def test_the_missing_zone_is_the_configured_one() -> None:
    parsed = parse(b"<13>Jul  1 12:00:00 h a: x", "Europe/Berlin")
    assert parsed.time_ns == time_of("2026-07-01T10:00:00Z")


@pytest.mark.parametrize(
    ("message", "host", "app", "body"),
    [
        (b'<13>Nov 11 22:14:15 web-1 {"username": "bob", "id": 7}', b"web-1", b"",
         b'{"username": "bob", "id": 7}'),
        (b'<13>Nov 11 22:14:15 {"username": "bob"}', b"", b"", b'{"username": "bob"}'),
        (b'<13>Nov 11 22:14:15 {"a" : 1}', b"", b"", b'{"a" : 1}'),
        (b"<13>Nov 11 22:14:15 h postfix/smtpd[7]: hi", b"h", b"postfix/smtpd", b"hi"),
        (b"<13>Nov 11 22:14:15 h snap.lxd_x-1: hi", b"h", b"snap.lxd_x-1", b"hi"),
        (b"<13>Nov 11 22:14:15 h (reason=x): hi", b"h", b"", b"(reason=x): hi"),
        (b'<13>Nov 11 22:14:15 h "quoted": hi', b"h", b"", b'"quoted": hi'),
    ],
)  # fmt: skip
def test_a_tag_is_a_name_and_all_else_is_the_message(
    message: bytes, host: bytes, app: bytes, body: bytes
) -> None:
    parsed = parse(message)
    assert (parsed.form, parsed.host, parsed.app, parsed.body) == ("rfc3164", host, app, body)


@pytest.mark.parametrize(
    ("message", "app", "message_id", "body"),
    [
        (b"<13>1 2026-01-02T03:04:05.123456789012Z h %b - - - hi" % (b"a" * 100), b"a" * 100,
         b"", b"hi"),
        (b"<13>1 2026-01-02T03:04:05Z h a %b %b - hi" % (b"p" * 200, b"m" * 64), b"a", b"m" * 64,
         b"hi"),
        (b'<13>1 2026-01-02T03:04:05Z h a - - [%b x="1"] hi' % (b"s" * 60), b"a", b"", b"hi"),
        (b"<13>1 2026-01-02T03:04:05Z h a - -", b"a", b"", b""),
        (b"<13>1 2026-01-02T03:04:05Z h a - - -", b"a", b"", b""),
        (b"\xef\xbb\xbf<13>1 2026-01-02T03:04:05Z h a - - - hi", b"a", b"", b"hi"),
    ],
)  # fmt: skip
def test_rfc5424_as_its_senders_stretch_it(
    message: bytes, app: bytes, message_id: bytes, body: bytes
) -> None:
    parsed = parse(message)
    assert parsed.form == "rfc5424"
    assert parsed.time_ns is not None
    assert parsed.time_ns // 10**9 == time_of("2026-01-02T03:04:05Z") // 10**9
    assert (parsed.app, parsed.message_id, parsed.body) == (app, message_id, body)
    if b"[s" in message:
        assert parsed.data == {"s" * 60: {"x": "1"}}


@pytest.mark.parametrize(
    ("message", "time", "host"),
    [
        (b"<189>29: *Mar  1 2024 18:48:50.483 UTC: %SYS-5-CONFIG_I: Configured",
         "2024-03-01T18:48:50.483Z", b""),
        (b"<189>29: rt-1: .Nov  1 18:48:50.483: %SYS-5-CONFIG_I: Configured",
         "2026-11-01T17:48:50.483Z", b"rt-1"),
        (b"<189>*Nov  1 18:48:50 GMT: %SYS-5-CONFIG_I: Configured", "2026-11-01T18:48:50Z", b""),
        (b"<166>Mar 01 2024 10:11:12 asa-1 : %ASA-6-302013: Built", "2024-03-01T09:11:12Z",
         b"asa-1"),
        (b"<166>Mar 01 2024 10:11:12: %ASA-6-302013: Built", "2024-03-01T09:11:12Z", b""),
    ],
)  # fmt: skip
def test_ciscos_own_header_is_read(message: bytes, time: str, host: bytes) -> None:
    parsed = parse(message, "Europe/Berlin")
    assert (parsed.form, parsed.host, parsed.app) == ("cisco", host, b"")
    assert parsed.time_ns == time_of(time)
    assert parsed.body.startswith(b"%")


def test_a_traditional_time_may_have_a_year() -> None:
    parsed = parse(b"<13>Mar  1 2024 10:11:12 h app[7]: hi")
    assert (parsed.time_ns, parsed.host) == (time_of("2024-03-01T10:11:12Z"), b"h")
    assert (parsed.app, parsed.body) == (b"app", b"hi")
    assert parse(b"<13>Feb 29 2023 10:11:12 h app: hi").time_ns is None


@pytest.mark.parametrize("message", [b"<192>x", b"<1234>x", b"<>x", b"<a>x", b"x"])
def test_a_priority_that_is_none_is_text(message: bytes) -> None:
    assert (parse(message).priority, parse(message).body) == (13, message)


# RFC 6587.


def test_octet_counted_frames_may_hold_newlines() -> None:
    assert cut(b"10 <13>a\nbcd\n5 <13>x7 <13>end") == [b"<13>a\nbcd", b"<13>x", b"<13>end"]


def test_other_frames_end_with_a_newline_or_nul() -> None:
    assert cut(b"<13>a\r\n<13>b\0\n\n<13>c\nplain") == [b"<13>a", b"<13>b", b"<13>c", b"plain"]


def test_each_frame_says_for_itself_how_it_ends() -> None:
    assert cut(b"<13>a\n5 <13>b<13>c\n9 lives\n") == [b"<13>a", b"<13>b", b"<13>c", b"9 lives"]


def test_long_messages_are_cut_and_their_rest_is_skipped() -> None:
    cutter = SyslogCutter(8)
    found = []
    for part in (b"20 <13>aaaa", b"aaaaaaaa", b"aaaa<13>b\n<13>ccccccc", b"cccc\n<13>d\n"):
        found += cutter.feed(part)
    assert found == [
        Message(b"<13>aaaa", truncated=True),
        Message(b"<13>b"),
        Message(b"<13>cccc", truncated=True),
        Message(b"<13>d"),
    ]
    assert cutter.waiting_bytes == 0


def test_a_count_that_its_connection_did_not_reach_is_marked() -> None:
    cutter = SyslogCutter(100)
    assert cutter.feed(b"50 <13>begin") == []
    assert cutter.flush() == Message(b"<13>begin", truncated=True)


def test_a_count_without_end_holds_no_more_than_a_message() -> None:
    cutter = SyslogCutter(100)
    cutter.feed(b"9999999 <13>")
    for _ in range(1000):
        cutter.feed(b"x" * 1000)
    assert cutter.waiting_bytes < 2000


def test_a_count_that_no_message_has_is_text_and_swallows_nothing() -> None:
    assert cut(b"99999999 <13>a\n<13>b\n5 <13>c") == [b"99999999 <13>a", b"<13>b", b"<13>c"]


STREAM = st.lists(
    st.one_of(
        st.binary(max_size=12).map(lambda body: b"<13>" + body.translate(None, b"\n\0\r") + b"\n"),
        st.binary(max_size=12).map(lambda body: b"%d <13>%bz" % (len(body) + 5, body)),
        st.binary(max_size=6),
    ),
    max_size=8,
).map(b"".join)


@given(STREAM, st.integers(1, 7))
def test_a_stream_is_cut_the_same_however_it_arrives(stream: bytes, step: int) -> None:
    cutter, found = SyslogCutter(10), []
    for at in range(0, len(stream), step):
        found += cutter.feed(stream[at : at + step])
    assert found == SyslogCutter(10).feed(stream)


@given(st.lists(st.binary(max_size=20)))
def test_a_unit_gives_back_its_messages(messages: list[bytes]) -> None:
    assert list(messages_in(pack_messages(messages))) == messages


@pytest.mark.parametrize("unit", [b"x", b"5 abc", b"-1 ", b"1", b"9" * 20])
def test_what_is_no_unit_is_named(unit: bytes) -> None:
    with pytest.raises(UndecodableError):
        list(messages_in(unit))


# Records.


def records(*messages: bytes, **meta: Any) -> list[dict[str, Any]]:
    given = {"service": "from_app", "peer": "127.0.0.1", **meta}
    unit = Unit("s", "syslog", pack_messages(messages), len(messages), NOW, given)
    decoded = decode_records(unit, {"host.name": "own"})
    assert decoded.undecodable == []
    assert all(isinstance(check_line(line), Accepted) for line in decoded.lines), decoded.lines
    return [json.loads(line) for line in decoded.lines]


def test_a_message_becomes_a_log_record() -> None:
    (found,) = records(b'<165>1 2003-10-11T22:14:15.003Z web su 7 ID47 [a b="c"] hi')
    assert (found["severity_number"], found["severity_text"], found["body"]) == (10, "INFO2", "hi")
    assert found["resource"] == {"host.name": "web", "service.name": "su"}
    assert found["attributes"] == {
        "log.syslog.format": "rfc5424",
        "log.syslog.facility.name": "local4",
        "log.syslog.severity.code": 5,
        "log.syslog.appname": "su",
        "log.syslog.procid": "7",
        "log.syslog.msgid": "ID47",
        "log.syslog.structured_data.a.b": "c",
        "network.peer.address": "127.0.0.1",
    }


def test_a_message_that_names_no_host_is_its_senders() -> None:
    assert records(b"<13>x")[0]["resource"]["host.name"] == "own"
    assert records(b"<13>x", peer="192.0.2.7")[0]["resource"]["host.name"] == "192.0.2.7"
    assert records(b"<13>x")[0]["resource"]["service.name"] == "syslog"
    assert records(b"<13>x", service="web")[0]["resource"]["service.name"] == "web"


def test_bytes_that_are_no_text_and_cut_messages_are_marked() -> None:
    found = records(b"<13>\xff", b"<13>x", truncated=[1])
    assert found[0]["attributes"]["log.record.bytes_replaced"] is True
    assert "log.record.truncated" not in found[0]["attributes"]
    assert found[1]["attributes"]["log.record.truncated"] is True


@given(st.lists(st.binary(max_size=80), max_size=3))
def test_no_bytes_become_anything_but_good_records(messages: list[bytes]) -> None:
    heads = (b"", b"<34>1 - h a - - ", b"<34>1 2003-10-11T22:14:15Z ", b"<13>Feb  5 17:32:18 ")
    assert len(records(*[head + message for head in heads for message in messages])) == 4 * len(
        messages
    )
