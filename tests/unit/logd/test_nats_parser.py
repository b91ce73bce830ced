import contextlib
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.errors import CorruptError
from penstock.logd.intake.turn import Message
from penstock.logd.nats.protocol import BUFFER_SIZE, READ_SIZE, NatsParser, Parsed

WORDS = st.binary(min_size=1, max_size=12).map(lambda raw: raw.hex().encode())
MESSAGES = st.builds(
    Message,
    subject=WORDS,
    reply=WORDS | st.just(b""),
    headers=st.just(b"") | st.binary(max_size=20).map(lambda raw: b"NATS/1.0\r\n" + raw),
    payload=st.binary(max_size=50),
)
ITEMS = st.lists(st.tuples(st.sampled_from([b"1", b"22"]), MESSAGES) | st.just(None), max_size=12)


def wire(sid: bytes, message: Message) -> bytes:
    middle = b" ".join(part for part in (message.subject, sid, message.reply) if part)
    body = message.headers + message.payload
    if message.headers:
        return b"HMSG %b %d %d\r\n%b\r\n" % (middle, len(message.headers), len(body), body)
    return b"MSG %b %d\r\n%b\r\n" % (middle, len(body), body)


def feed(parser: NatsParser, data: bytes) -> Parsed:
    everything = Parsed()
    while data:
        space = parser.writable()
        part, data = data[: len(space)], data[len(space) :]
        space[: len(part)] = part
        parsed = parser.written(len(part))
        if parsed.damage is not None:
            raise parsed.damage
        for sid, messages in parsed.messages.items():
            everything.messages[sid] += messages
        everything.pings += parsed.pings
        everything.answers += parsed.answers
        everything.info = parsed.info or everything.info
    return everything


@given(ITEMS, st.lists(st.integers(1, 40), min_size=1))
def test_messages_come_out_as_they_went_in_however_they_are_cut(
    items: list[tuple[bytes, Message] | None], cuts: list[int]
) -> None:
    data = b"".join(b"PING\r\n" if item is None else wire(*item) for item in items)
    parser = NatsParser()
    got: dict[bytes, list[Message]] = defaultdict(list)
    pings = position = turn = 0
    while position < len(data):
        size = cuts[turn % len(cuts)]
        parsed = feed(parser, data[position : position + size])
        pings += parsed.pings
        for sid, messages in parsed.messages.items():
            got[sid] += messages
        position, turn = position + size, turn + 1
    expected: dict[bytes, list[Message]] = defaultdict(list)
    for item in items:
        if item is not None:
            expected[item[0]].append(item[1])
    assert got == expected
    assert pings == items.count(None)


@given(
    st.lists(st.binary(max_size=60) | st.sampled_from([b"MSG a 1 ", b"HMSG ", b"INFO {", b"9\r\n"]))
)
def test_any_bytes_are_parsed_or_refused(parts: list[bytes]) -> None:
    parser = NatsParser()
    with contextlib.suppress(CorruptError):
        for part in parts:
            feed(parser, part)


def test_a_message_larger_than_the_buffer_is_taken_and_the_buffer_given_back() -> None:
    parser = NatsParser()
    message = Message(b"a", b"", b"", bytes(3 * BUFFER_SIZE))
    parsed = feed(parser, wire(b"1", message) + wire(b"1", message._replace(payload=b"small")))
    assert [len(m.payload) for m in parsed.messages[b"1"]] == [3 * BUFFER_SIZE, 5]
    assert len(parser.writable()) <= BUFFER_SIZE


def test_one_read_takes_little_but_for_the_rest_of_a_message() -> None:
    parser = NatsParser()
    assert len(parser.writable()) == READ_SIZE
    data = wire(b"1", Message(b"a", b"", b"", bytes(3 * READ_SIZE)))
    parser.writable()[:READ_SIZE] = data[:READ_SIZE]
    parser.written(READ_SIZE)
    assert len(parser.writable()) == len(data) - READ_SIZE


@pytest.mark.parametrize(
    "data",
    [
        b"HELLO\r\n",
        b"MSG a 1 5\r\nabcdeXX",
        b"MSG a 1 99999999999\r\n",
        b"MSG a 1 999999999\r\n",
        b"HMSG a 1 9 5\r\n",
        b"MSG a 1 -5\r\n",
        b"INFO nonsense\r\n",
        b"INFO []\r\n",
        b"x" * 9000,
        b"MSG " + b"x" * 300_000,
        b"MSG " + b"x" * 70_000 + b" 1 1\r\n",
        b"-ERR " + b"x" * 300_000,
        b"INFO " + b"x" * 1_100_000,
    ],
)
def test_what_is_not_the_protocol_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptError):
        feed(NatsParser(), data)


def test_control_lines_are_reported() -> None:
    parsed = feed(NatsParser(), b"INFO {\"max_payload\":7}\r\n+OK\r\nPING\r\n-ERR 'Stale'\r\n")
    assert (parsed.info, parsed.pings, parsed.answers) == ({"max_payload": 7}, 1, ["Stale"])


@given(st.binary(min_size=1, max_size=12).filter(lambda raw: not set(raw) & set(b" \t\r\n")))
def test_a_subject_may_hold_whatever_the_server_lets_a_publisher_put_there(odd: bytes) -> None:
    for headers in (b"", b"NATS/1.0\r\n\r\n"):
        for word in (odd, b"\x0b\x0c\x00\xff"):
            sent = Message(b"t." + word, word, headers, b"x")
            assert feed(NatsParser(), wire(b"1", sent)).messages == {b"1": [sent]}


SMALL_MAX = 1000
TOKENS = st.sampled_from(
    b"MSG |HMSG |INFO {}|PING|PONG|+OK|-ERR 'x'|\r\n|\r|\n| |a|1|5|0|999|1001|18446744073709551616"
    b"|NATS/1.0\r\n\r\n|\x00".split(b"|")
)


def outcome(data: bytes, cuts: list[int]) -> tuple[dict[bytes, list[Message]], list[object], bool]:
    """What a parser makes of bytes that come in pieces; and its buffer stays within its bound."""
    parser = NatsParser(message_size_max=SMALL_MAX)
    messages: dict[bytes, list[Message]] = defaultdict(list)
    controls: list[object] = []
    position = turn = 0
    while position < len(data):
        piece = data[position : position + (cuts[turn % len(cuts)] if cuts else len(data))]
        space = parser.writable()[: len(piece)]
        space[:] = piece[: len(space)]
        parsed = parser.written(len(space))
        position, turn = position + len(space), turn + 1
        for sid, arrived in parsed.messages.items():
            messages[sid] += arrived
        controls += [*parsed.answers, *([parsed.pings] if parsed.pings and not cuts else [])]
        assert parser.buffer_size <= BUFFER_SIZE
        if parsed.damage is not None:
            return messages, controls, True
    return messages, [c for c in controls if not isinstance(c, int)], False


@given(
    st.lists(TOKENS | st.binary(max_size=8) | MESSAGES.map(lambda m: wire(b"7", m)), max_size=30),
    st.lists(st.integers(1, 30), min_size=1, max_size=8),
)
def test_how_bytes_are_cut_makes_no_difference_even_to_nonsense(
    parts: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(parts)
    whole, in_pieces = outcome(data, []), outcome(data, cuts)
    assert in_pieces[0] == whole[0]
    assert in_pieces[2] == whole[2]
    assert [c for c in in_pieces[1] if not isinstance(c, int)] == [
        c for c in whole[1] if not isinstance(c, int)
    ]


@given(ITEMS, st.data())
def test_one_changed_byte_never_makes_a_message_of_nothing(
    items: list[tuple[bytes, Message] | None], data: st.DataObject
) -> None:
    """It is noticed, or changes the one thing it is in; what came before comes out as it was."""
    wires = [b"PING\r\n" if item is None else wire(*item) for item in items]
    sent = bytearray(b"".join(wires) + b"PING\r\n")
    place = data.draw(st.integers(0, len(sent) - 1))
    sent[place] ^= data.draw(st.integers(1, 255))
    messages, _, _ = outcome(bytes(sent), [])
    before: dict[bytes, list[Message]] = defaultdict(list)
    position = 0
    for item, raw in zip(items, wires, strict=True):
        position += len(raw)
        if item is not None and position <= place:
            before[item[0]].append(item[1])
    for sid, expected in before.items():
        assert messages[sid][: len(expected)] == expected
    assert sum(len(arrived) for arrived in messages.values()) <= len(sent) // len(
        b"MSG a 1 0\r\n\r\n"
    )


def test_the_buffer_is_bounded_and_given_back_though_it_is_never_empty() -> None:
    parser = NatsParser(message_size_max=4 * BUFFER_SIZE)
    large = wire(b"1", Message(b"a", b"", b"", bytes(4 * BUFFER_SIZE)))
    tail = b"MSG a 1 5\r\nhel"
    largest = 0
    data = (large + tail + b"lo\r\n") * 3 + tail
    while data:
        space = parser.writable()
        part = data[: min(len(space), 60_000)]
        space[: len(part)] = part
        assert parser.written(len(part)).damage is None
        data = data[len(part) :]
        largest = max(largest, parser.buffer_size)
    assert not parser.idle
    assert parser.buffer_size == BUFFER_SIZE
    assert 4 * BUFFER_SIZE < largest < 6 * BUFFER_SIZE


def test_a_message_that_is_too_large_is_refused_before_anything_is_made_for_it() -> None:
    parser = NatsParser(message_size_max=SMALL_MAX)
    line = b"MSG a 1 1001\r\n"
    parser.writable()[: len(line)] = line
    assert parser.written(len(line)).damage is not None
    assert parser.buffer_size == BUFFER_SIZE
