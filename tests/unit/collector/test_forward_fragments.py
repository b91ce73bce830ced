"""Lines that Docker cut: made whole where all fragments are there, else left as they came."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.collector.decode.units import decode_records
from penstock.collector.limits import FRAGMENTS_BYTES_MAX, SpoolWriterLimits
from penstock.collector.sources.forward.fragments import Fragment, Gathering, fragment_of
from penstock.collector.sources.forward.protocol import Message, MessageReader
from penstock.collector.spool.spool import Unit
from penstock.specs.limits import STRING_CHARACTERS_MAX
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted
from tests.support.waiting import wait_until_async
from tests.unit.collector.test_forward_source import Sender, listening

CUT = 16 * 1024
WAITS = SpoolWriterLimits(fragments_wait_s=3600.0)


def fragments_of(text: str, line: str = "id-1", *, size: int = CUT, time: int = 7) -> list[Any]:
    """Messages as Docker sends them for a long line."""
    data = text.encode()
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return [
        [
            "docker.abc", time,
            {
                "container_id": "abc", "source": "stdout",
                "log": part.decode("utf-8", "surrogateescape"),
                "partial_message": "true", "partial_id": line, "partial_ordinal": str(ordinal),
                "partial_last": "true" if ordinal == len(parts) else "false",
            },
        ]
        for ordinal, part in enumerate(parts, 1)
    ]  # fmt: skip


def whole(text: str) -> list[Any]:
    return ["docker.abc", 7, {"container_id": "abc", "source": "stdout", "log": text}]


def packed(message: Any) -> bytes:
    data: bytes = msgpack.packb(message, unicode_errors="surrogateescape")
    return data


def records(messages: Iterable[Any]) -> list[dict[str, Any]]:
    """What a unit of these messages holds."""
    raw = [packed(message) for message in messages]
    unit = Unit("s", "forward", b"".join(raw), len(raw), 99, {"service": "from_tag"})
    decoded = decode_records(unit, {"host.name": "h"})
    assert not decoded.undecodable
    assert decoded.indexes == sorted(set(decoded.indexes))
    assert all(isinstance(check_line(line), Accepted) for line in decoded.lines)
    return [orjson.loads(line) for line in decoded.lines]


def bodies(messages: Iterable[Any]) -> list[str]:
    return [record["body"] for record in records(messages)]


LONG = "a" * CUT + "é" * 5000
"""Its second fragment begins within no character; with another cut it would."""


def test_a_line_is_one_record_where_its_last_fragment_stands() -> None:
    first, last = fragments_of(LONG)
    other = whole("other")
    assert bodies([first, other, last]) == ["other", LONG]
    [record] = records([first, last])
    assert record["attributes"] == {
        "container_id": "abc", "source": "stdout", "fluent.tag": "docker.abc",
    }  # fmt: skip
    assert record["time_unix_nano"] == 7_000_000_000
    in_one = ["docker.abc", [message[1:] for message in (first, other, last)]]
    assert bodies([in_one]) == ["other", LONG]


def test_a_character_that_was_cut_is_whole_again() -> None:
    assert bodies(fragments_of("é" * 10, size=3)) == ["é" * 10]


def test_fragments_are_known_by_fields_packed_as_bin() -> None:
    def as_bin(value: Any) -> Any:
        return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value

    fragments = fragments_of("é" * 10, size=3)
    for message in fragments:
        message[2] = {as_bin(key): as_bin(value) for key, value in message[2].items()}
    assert bodies(fragments) == ["é" * 10]
    found = [message.fragment for message in MessageReader().feed(packed(fragments[0]))]
    assert found == [Fragment("id-1", 1, last=False)]


def test_lines_of_both_outputs_are_told_apart() -> None:
    one, two = fragments_of("one line", "1", size=3), fragments_of("two line", "2", size=3)
    mixed = [message for pair in zip(one, two, strict=True) for message in pair]
    assert bodies(mixed) == ["one line", "two line"]


def without(*ordinals: int) -> list[Any]:
    return [m for n, m in enumerate(fragments_of("some line", size=2), 1) if n not in ordinals]


@pytest.mark.parametrize(
    "messages",
    [
        without(1),
        without(3),
        without(5),
        without()[:1],
        [without()[0], *without()],
        fragments_of("x" * (STRING_CHARACTERS_MAX + 1)),
        [["t", 5, {"partial_message": "true", "log": "x"}]],
        [["t", 5, {**fragments_of("x")[0][2], "partial_ordinal": "first"}]],
        [["t", 5, {**fragments_of("x")[0][2], "partial_last": 5}]],
        [["t", 5, {**fragments_of("x")[0][2], "partial_id": None}]],
    ],
    ids=[
        "no first", "a gap", "no last", "alone", "twice", "long", "no id", "ordinal", "last", "nil",
    ],
)  # fmt: skip
def test_what_cannot_be_whole_stays_as_it_came(messages: list[Any]) -> None:
    """Each can be joined later by its id and ordinal; nothing is left out."""
    found = records(messages)
    assert [record["body"] for record in found] == [message[2]["log"] for message in messages]
    for record, message in zip(found, messages, strict=True):
        for name in ("partial_id", "partial_ordinal"):
            if message[2].get(name) is not None:
                assert record["attributes"][name] == message[2][name]
        assert record["attributes"]["partial_message"] == "true"


@given(seed=st.integers(0, 10_000))
def test_no_byte_is_lost_or_there_twice_however_lines_are_mixed_and_cut(seed: int) -> None:
    rng = Random(seed)
    letters = ("ab", "cd", "ef", "gh")  # by which each line's text is found again
    texts = ["".join(rng.choices(pair, k=rng.randrange(1, 40))) for pair in letters]
    queues = [
        fragments_of(text, f"id-{n}", size=rng.randrange(1, 9)) for n, text in enumerate(texts)
    ]
    sent: list[Any] = []
    while any(queues):
        sent.append(rng.choice([queue for queue in queues if queue]).pop(0))
    cut = rng.randrange(len(sent) + 1)
    found = [*bodies(sent[:cut]), *bodies(sent[cut:])]
    for n, (pair, text) in enumerate(zip(letters, texts, strict=True)):
        own = [body for body in found if body[0] in pair]
        assert "".join(own) == text
        places = {at < cut for at, m in enumerate(sent) if m[2]["partial_id"] == f"id-{n}"}
        if len(places) == 1:  # all of it is in one unit
            assert own == [text]


def messages_of(values: Iterable[Any]) -> list[Message]:
    return MessageReader().feed(b"".join(packed(value) for value in values))


def gathering(bytes_max: int = 10_000) -> Gathering[Message]:
    return Gathering(bytes_max, 1.0)


def test_messages_wait_for_the_last_fragment_and_keep_their_order() -> None:
    waits = gathering()
    first, last = messages_of(fragments_of("a line", size=4))
    plain = messages_of([whole("plain")])
    assert waits.add(plain, 0) == plain
    assert waits.add([first], 0) == []
    assert waits.add(plain, 0.5) == []
    assert (waits.size, waits.until_s) == (len(first.raw) + len(plain[0].raw), 1.0)
    assert waits.add([last, *plain], 0.9) == [first, *plain, last, *plain]
    assert (waits.size, waits.flush()) == (0, [])


def test_nothing_waits_longer_than_it_may() -> None:
    first, last = messages_of(fragments_of("a line", size=4))
    waits = gathering()
    waits.add([first], 5)
    assert waits.add([], 5.9) == []
    assert waits.add([], 6) == [first]
    assert waits.add([last], 6) == [last], "nothing is known of its line any more"


def test_no_more_waits_than_may() -> None:
    waits = gathering(2000)
    many = messages_of(fragments_of("x" * 3000, size=100))
    taken = [message for one in many for message in waits.add([one], 0)]
    assert taken == many
    for message in many:
        waits.add([message], 0)
        assert waits.size <= 2000


def test_what_awaits_an_ack_waits_for_nothing() -> None:
    waits = gathering()
    first, last = fragments_of("a line", size=4)
    [held] = messages_of([first])
    [acked] = messages_of([[*last, {"chunk": "c"}]])
    assert waits.add([held], 0) == []
    assert waits.add([acked], 0) == [held, acked]
    [alone] = messages_of([[*first, {"chunk": "c"}]])
    assert waits.add([alone], 0) == [alone]


def test_a_fragment_is_known_by_what_docker_says() -> None:
    record = fragments_of("x")[0][2]
    assert fragment_of(record) == Fragment("id-1", 1, last=True)
    assert fragment_of({**record, "partial_message": True, "partial_last": False}) == (
        Fragment("id-1", 1, last=False)
    )
    others: list[object] = [None, 5, [], {}, {**record, "partial_message": "no"}]
    for wrong in [*others, {**record, "log": 5}]:
        assert fragment_of(wrong) is None


async def test_fragments_that_come_one_by_one_are_one_record(tmp_path: Path) -> None:
    async with listening(tmp_path, limits=WAITS) as (source, spool_writer):
        sender = await Sender.to(source)
        first, last = fragments_of(LONG)
        between, size = whole("between"), len(packed(first))
        sender.send(first)
        await wait_until_async(lambda: spool_writer.share.used == size)
        sender.send(between)
        await wait_until_async(lambda: spool_writer.share.used == size + len(packed(between)))
        sender.send(last)
        await wait_until_async(lambda: len(spool_writer.lines()) == 2)
        assert [orjson.loads(line)["body"] for line in spool_writer.lines()] == ["between", LONG]
        assert len(spool_writer.units()) == 1
        await wait_until_async(lambda: spool_writer.share.used == 0)
        sender.close()


@pytest.mark.parametrize("end", ["time", "close", "stop", "no message"])
async def test_a_line_that_is_never_whole_is_kept_in_fragments(tmp_path: Path, end: str) -> None:
    limits = SpoolWriterLimits(fragments_wait_s=0.05) if end == "time" else WAITS
    async with listening(tmp_path, limits=limits) as (source, spool_writer):
        sender = await Sender.to(source)
        first, _ = fragments_of(LONG)
        sender.send(first)
        await wait_until_async(lambda: spool_writer.share.used > 0 or bool(spool_writer.units()))
        if end == "close":
            sender.close()
        elif end == "stop":
            await wait_until_async(lambda: spool_writer.share.used >= len(packed(first)))
            await source.stop()
        elif end == "no message":
            sender.send(5)
        await wait_until_async(lambda: len(spool_writer.lines()) == 1)
        assert orjson.loads(spool_writer.lines()[0])["attributes"]["partial_ordinal"] == "1"
        await wait_until_async(lambda: spool_writer.share.used == 0)
        assert spool_writer.account.difference == 0
        sender.close()


async def test_a_line_that_has_begun_gives_way_where_there_is_no_room(tmp_path: Path) -> None:
    """Its sender waits as any other, however long, and nothing is dropped."""
    limits = replace(WAITS, unfinished_wait_s=0.0)
    async with listening(tmp_path, limits=limits) as (source, spool_writer):
        sender = await Sender.to(source)
        first, last = fragments_of(LONG)
        first[2]["log"] = "a"
        sender.send(first)
        await wait_until_async(lambda: spool_writer.share.used == len(packed(first)))
        spool_writer.leave_room(0)
        sender.send(last)
        await wait_until_async(
            lambda: len(spool_writer.lines()) == 1 and spool_writer.budget.is_awaited()
        )
        spool_writer.give_room()
        await wait_until_async(lambda: len(spool_writer.lines()) == 2)
        assert (spool_writer.account.dropped, spool_writer.share.refused) == ({}, 0)
        sender.close()
        await wait_until_async(lambda: spool_writer.share.used == 0)


async def test_fragments_that_are_acknowledged_hold_up_no_sender(tmp_path: Path) -> None:
    """It may wait for the ack of one before it sends the next."""
    async with listening(tmp_path, limits=WAITS) as (source, spool_writer):
        sender = await Sender.to(source)
        for number, message in enumerate(fragments_of(LONG)):
            sender.send([*message, {"chunk": str(number)}])
            async with asyncio.timeout(20):
                assert await sender.receive() == {"ack": str(number)}
        assert len(spool_writer.lines()) == 2
        sender.close()


async def test_lines_that_never_end_hold_no_more_than_is_allowed(tmp_path: Path) -> None:
    async with listening(tmp_path, limits=WAITS) as (source, spool_writer):
        sender = await Sender.to(source)
        count = 2 * FRAGMENTS_BYTES_MAX // CUT
        for number in range(count):
            sender.send(fragments_of(LONG, f"id-{number}")[0])
        await wait_until_async(lambda: len(spool_writer.lines()) >= count // 2)
        await wait_until_async(lambda: spool_writer.share.used <= FRAGMENTS_BYTES_MAX + CUT)
        sender.close()
        await wait_until_async(lambda: len(spool_writer.lines()) == count)
