"""What is made of a message by the head that it shares is what would be made of it alone."""

from collections import Counter
from typing import Any
from zoneinfo import ZoneInfo

import orjson
from hypothesis import given
from hypothesis import strategies as st

from penstock.collector.decode.syslog import ShapedMessages, decode_syslog, parse_message, record_of
from penstock.collector.decode.units import decode_records
from penstock.collector.sources.network.framing import pack_messages
from penstock.collector.spool.spool import Unit
from penstock.specs.limits import STRING_CHARACTERS_MAX
from penstock.specs.validate.validator import check_line

NOW_NS = 1_767_000_000_123_456_789
RESOURCE = {"host.name": "own"}
TIMES = st.sampled_from(
    [b"2026-01-02T03:04:05.123456Z", b"2026-01-02T03:04:05.123456789+01:00", b"-",
     b"2026-13-02T03:04:05Z", b"1969-01-02T03:04:05Z", b"Jan  2 03:04:05", b"Feb 30 00:00:00",
     b"Dec 31 23:59:60", b"Oct 11 22:14:15.5", b"yesterday", b"*Mar  1 2024 03:04:05.5",
     b"Mar 1 2024 03:04:05", b"2026-01-02T03:04:05.1234567890123Z"]
)  # fmt: skip
FRONTS = st.sampled_from(
    [b"<13>1 ", b"<13>", b"<191>", b"<192>1 ", b"<192>", b"<34>1", b"", b"<7>2 "]
)
RESTS = st.sampled_from(
    [b" h a 7 - - ", b" - - - - - ", b" h a - ID -", b" h a - - -[x] ", b' h a - - [x y="\\"z"] ',
     b' h a - - [x y="z"][v] \xef\xbb\xbf', b' h a - - [x y="z"', b" h a - - - \xef\xbb\xbf",
     b" h app[7]: ", b" app: ", b" app:", b" h app ", b" fe80::1 app: ", b" ab: ", b" h a b: ",
     b" " + b"h" * 60 + b" a: ", b" h: a: ", b" h \xe9a: ", b" h a\x0b: ", b" ", b" UTC: %A-5-B: ",
     b": %A-5-B: ", b" h : %A-6-1: ",
     b' {"a": ', b' h {"a": ', b" h a - -", b" h " + b"a" * 90 + b" - - - "]
)  # fmt: skip
TEXTS = st.one_of(
    st.sampled_from([b"", b"paid", b"a: b: c", b'[x y="z"] "', b"\xff", b"\xef\xbb\xbfx", b"\0",
                     b"x" * (STRING_CHARACTERS_MAX + 1), "é".encode() * STRING_CHARACTERS_MAX]),
    st.binary(max_size=12),
)  # fmt: skip
MESSAGES = st.tuples(FRONTS, TIMES, RESTS, TEXTS).map(b"".join)


def unit_of(messages: list[bytes], **meta: Any) -> Unit:
    given_ = {"service": "from_app", "peer": "192.0.2.7", "timezone": "Europe/Berlin", **meta}
    return Unit("s", "syslog", pack_messages(messages), len(messages), NOW_NS, given_)


def alone(message: bytes, unit: Unit, *, cut: bool = False) -> bytes:
    parsed = parse_message(message, NOW_NS, ZoneInfo(unit.meta["timezone"]))
    return orjson.dumps(record_of(parsed, unit, RESOURCE, cut=cut))


@given(st.lists(MESSAGES, max_size=6), st.sampled_from(["from_app", "web"]))
def test_a_message_makes_the_record_that_it_makes_alone(
    messages: list[bytes], service: str
) -> None:
    unit = unit_of(messages, service=service)
    shaped = ShapedMessages(unit, RESOURCE, ZoneInfo("Europe/Berlin"), Counter())
    for message in messages:
        made = shaped.make(message)
        one = alone(message, unit)
        assert made is None or made == (one, check_line(one))
    assert [line for line, _ in decode_syslog(unit, RESOURCE)] == [alone(m, unit) for m in messages]


def test_times_that_cannot_be_read_are_counted_on_both_ways() -> None:
    times = [b"2026-02-30T10:00:00Z", b"-", b"Feb 30 10:00:00", b"Feb 20 10:00:00"]
    whole = [b"<13>1 " + time + b" h a - - - x" for time in times[:2]]
    whole += [b"<13>" + time + b" h a: x" for time in times[2:]]
    for messages in (whole, [message + b"\xff" for message in whole]):
        notes = decode_records(unit_of(messages), RESOURCE).notes
        assert +notes == {"timestamps_unreadable": 2}


@given(TIMES, RESTS, st.lists(TEXTS, min_size=2, max_size=4))
def test_behind_one_head_each_text_is_its_own(time: bytes, rest: bytes, texts: list[bytes]) -> None:
    for front in (b"<13>1 ", b"<13>"):
        messages = [front + time + rest + text for text in texts]
        unit = unit_of(messages)
        assert [line for line, _ in decode_syslog(unit, RESOURCE)] == [
            alone(message, unit) for message in messages
        ]


def test_of_messages_with_one_head_the_first_is_judged() -> None:
    judged: list[bytes] = []

    def judge(line: bytes) -> Any:
        judged.append(line)
        return check_line(line)

    heads = (
        b"<13>1 2026-01-02T03:04:%02dZ h a 7 - - text %d",
        b'<13>1 2026-01-02T03:04:%02dZ h a 7 - [x y="z"] text %d',
        b"<14>Jan  2 03:04:%02d h a[7]: text %d",
        b"<14>2026-01-02T03:04:%02dZ h a: text %d",
    )
    messages = [head % (number, number) for number in range(50) for head in heads]
    made = decode_syslog(unit_of(messages), RESOURCE, check=judge)
    assert len(judged) == len(heads)
    assert made == [(line, check_line(line)) for line, _ in made]


def test_a_message_that_was_cut_is_read_by_itself() -> None:
    messages = [b"<13>1 - h a - - - whole", b"<13>1 - h a - - - beginning"]
    unit = unit_of(messages, truncated=[1])
    (whole, known), (cut, unknown) = decode_syslog(unit, RESOURCE)
    assert (whole, cut) == (alone(messages[0], unit), alone(messages[1], unit, cut=True))
    assert known is not None
    assert unknown is None


def test_where_the_gate_refuses_the_first_each_is_judged() -> None:
    messages = [b"<13>1 - h a - - - x"] * 2
    assert [known for _, known in decode_syslog(unit_of(messages, service=""), {})] == [None, None]
