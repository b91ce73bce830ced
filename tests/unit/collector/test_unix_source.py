"""The Unix-socket source on a real socket, with a spool that nobody empties."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.collector.limits import SpoolWriterLimits
from penstock.collector.sources.unix.source import UnixSettings, UnixSource
from tests.support.collector import encode_batch
from tests.support.spool_writer import SpoolingIntake, spooling
from tests.support.waiting import wait_until_async

SMALL, BIG, HUGE = [b"x"], [b"x" * 900_000], [b"x" * 2_000_000]


@asynccontextmanager
async def listening(
    directory: Path, spool_writer: SpoolingIntake, **more: Any
) -> AsyncIterator[UnixSource]:
    section = UnixSettings(type="unix", path=directory / "c.sock", mode=0o600, **more)
    source = UnixSource(
        "app",
        section,
        spool=spool_writer.spool,
        ledger=spool_writer.ledger,
        clock=spool_writer.clock,
        share=spool_writer.share,
        limits=spool_writer.limits,
    )
    await source.start()
    yield source
    await source.stop()


@pytest.fixture
async def spool_writer(tmp_path: Path) -> AsyncIterator[SpoolingIntake]:
    async with spooling(tmp_path, "app") as made:
        yield made


@pytest.fixture
async def source(tmp_path: Path, spool_writer: SpoolingIntake) -> AsyncIterator[UnixSource]:
    async with listening(tmp_path, spool_writer) as made:
        yield made


async def talk(source: UnixSource, *frames: bytes) -> list[dict[str, object]]:
    """Send frames, and read answers until the collector closes or all are answered."""
    reader, writer = await asyncio.open_unix_connection(source.endpoint)
    writer.write(b"".join(frames))
    answers: list[dict[str, object]] = []
    while len(answers) < len(frames):
        try:
            (length,) = struct.unpack(">I", await reader.readexactly(4))
        except (asyncio.IncompleteReadError, ConnectionResetError):
            break
        answers.append(json.loads(await reader.readexactly(length)))
    writer.close()
    return answers


async def test_a_batch_is_not_acked_before_it_is_durable(
    source: UnixSource, spool_writer: SpoolingIntake
) -> None:
    with spool_writer.disk.holds("sync") as sync:
        answers = asyncio.ensure_future(talk(source, encode_batch("s", 1, SMALL)))
        await wait_until_async(sync.reached.is_set)
        refused = await talk(source, encode_batch("t", 1, SMALL, codec="lz4"))
        assert [answer["nack"] for answer in refused] == [1]  # the source answers what it can
        assert not answers.done()
    assert await answers == [{"ack": 1}]


async def test_nothing_is_taken_after_a_batch_that_must_be_sent_again(
    source: UnixSource, spool_writer: SpoolingIntake
) -> None:
    frames = [encode_batch("s", n, lines) for n, lines in ((1, BIG), (2, BIG), (3, SMALL))]
    answers = await talk(source, *frames)
    refusal = {"nack": 2, "reason": "spool_full", "retry": True}
    assert refusal in answers
    assert {"nack": 3, "reason": "after_a_refused_batch", "retry": True} in answers
    await wait_until_async(lambda: spool_writer.journal.durable_offset)
    headers = [h.producer_sequence for h in spool_writer.journal.log.headers(0)]
    assert headers == [1]
    assert await talk(source, encode_batch("s", 3, SMALL)) == [{"ack": 3}]


async def test_a_repeat_of_what_was_taken_before_does_not_lift_a_refusal(
    source: UnixSource,
) -> None:
    frames = [
        encode_batch("s", n, lines) for n, lines in ((1, BIG), (2, BIG), (1, BIG), (3, SMALL))
    ]
    answers = await talk(source, *frames)
    assert {"ack": 3} not in answers
    assert {"nack": 3, "reason": "after_a_refused_batch", "retry": True} in answers


async def test_what_never_fits_is_refused_for_good_and_the_next_batch_is_taken(
    source: UnixSource,
) -> None:
    answers = await talk(source, encode_batch("s", 1, HUGE), encode_batch("s", 2, SMALL))
    assert answers == [{"nack": 1, "reason": "spool_full", "retry": False}, {"ack": 2}]


async def test_a_batch_with_a_bad_header_is_refused_for_good(source: UnixSource) -> None:
    bad = encode_batch("s", 1, SMALL, codec="lz4")
    refused, taken = await talk(source, bad, encode_batch("s", 2, SMALL))
    assert (refused["nack"], refused["retry"]) == (1, False)
    assert taken == {"ack": 2}


async def test_a_sender_that_breaks_the_framing_is_cut_off_and_counted(
    source: UnixSource, spool_writer: SpoolingIntake
) -> None:
    assert await talk(source, struct.pack(">I", 0)) == []
    assert spool_writer.account.notes["protocol_errors"] == 1


async def test_what_the_sender_dropped_itself_is_noted_once(
    source: UnixSource, spool_writer: SpoolingIntake
) -> None:
    first = encode_batch("s", 1, SMALL, dropped={"log": {"queue_full": 3}})
    second = encode_batch("s", 2, SMALL, dropped={"log": {"queue_full": 5, "my_own": 1}})
    await talk(source, first, second)
    assert spool_writer.account.as_dict()["sender_dropped"] == {"queue_full": 5, "other": 1}


async def test_what_the_sender_dropped_itself_is_noted_once_though_a_reload_replaces_the_source(
    tmp_path: Path, spool_writer: SpoolingIntake
) -> None:
    for sequence, count in ((1, 3), (2, 5)):
        batch = encode_batch("s", sequence, SMALL, dropped={"log": {"queue_full": count}})
        async with listening(tmp_path, spool_writer, max_senders=sequence) as source:
            await talk(source, batch)
    assert spool_writer.account.as_dict()["sender_dropped"] == {"queue_full": 5}


def accounted(emitted: int, acked: int, *, queued: int = 0) -> dict[str, int]:
    return {"emitted": emitted, "acked": acked, "queued": queued, "spooled": 0}


async def test_what_a_sender_reports_of_all_its_records_is_in_the_account_of_its_service(
    source: UnixSource, spool_writer: SpoolingIntake
) -> None:
    about: dict[str, Any] = {"resource": {"service.name": "shop"}}
    about["dropped"] = {"log": {"queue_full": 2, "my_own": 1}}
    first = encode_batch("s", 1, SMALL, account=accounted(9, 0, queued=5), **about)
    second = encode_batch("s", 2, SMALL, account=accounted(9, 1, queued=4), **about)
    for frame in (first, second):
        await talk(source, frame)
    apps = spool_writer.ledger.apps["app"]
    shown = apps.as_dict(spool_writer.clock.monotonic_ns())["senders"]["s"]
    assert shown["service"] == "shop"
    assert shown["dropped"] == {"queue_full": 2, "other": 1}
    assert (shown["emitted"], shown["acked"], shown["queued"]) == (9, 2, 4)
    assert (shown["difference"], shown["unseen"]) == (0, 0)
    await wait_until_async(
        lambda: not apps.as_dict(spool_writer.clock.monotonic_ns())["senders"]["s"]["connected"]
    )


@pytest.mark.parametrize("account", [5, {}, accounted(-1, 0), {**accounted(1, 0), "acked": "1"}])
async def test_a_sender_without_a_sound_report_is_in_the_account_of_all_others(
    source: UnixSource, spool_writer: SpoolingIntake, account: object
) -> None:
    dropped = {"log": {"queue_full": 3}}
    await talk(source, encode_batch("s", 1, SMALL, dropped=dropped, account=account))
    shown = spool_writer.ledger.apps["app"].as_dict(0)
    assert (shown["senders"], shown["unreported"]) == ({}, {"acked": 1, "dropped_queue_full": 3})


async def test_a_batch_that_is_repeated_before_it_is_durable_is_in_the_sums_once(
    source: UnixSource, spool_writer: SpoolingIntake
) -> None:
    first, second = (encode_batch("s", number, SMALL) for number in (1, 2))
    assert len(await talk(source, first, second, first, second)) == 4
    assert spool_writer.ledger.apps["app"].as_dict(0)["unreported"] == {"acked": 2}


async def test_senders_beyond_the_limit_are_counted_together(
    tmp_path: Path, spool_writer: SpoolingIntake
) -> None:
    async with listening(tmp_path, spool_writer, max_senders=1) as source:
        dropped = {"log": {"queue_full": 3}}
        first = encode_batch("a", 1, SMALL, account=accounted(1, 0))
        frames = [
            encode_batch("b", number, SMALL, dropped=dropped, account=accounted(3 + number, 0))
            for number in (1, 2)
        ]
        assert len(await talk(source, first, *frames)) == 3
        shown = spool_writer.ledger.apps["app"].as_dict(0)
        assert [*shown["senders"]] == ["a"]
        assert shown["untracked"] == {"acked": 2, "dropped_queue_full": 3}
        assert shown["unreported"] == {}


async def test_a_sender_that_reads_no_answers_is_cut_off_and_holds_nothing(
    tmp_path: Path,
) -> None:
    limits = SpoolWriterLimits(unfinished_timeout_s=0.2, unread_answer_s=0.05)
    async with (
        spooling(tmp_path, "app", limits=limits) as spool_writer,
        listening(tmp_path, spool_writer) as source,
    ):
        await flood_until_ended(source, spool_writer)
        await wait_until_async(lambda: spool_writer.share.used == 0)


async def flood_until_ended(source: UnixSource, spool_writer: SpoolingIntake) -> None:
    """Send what is answered at once and read no answer, until the connection is gone."""
    ended = asyncio.Event()
    with socket.socket(socket.AF_UNIX) as peer:
        peer.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(peer, str(source.endpoint))
        frame = encode_batch("s", 1, SMALL, codec="lz4")  # refused at once, again and again

        async def flood() -> None:
            try:
                while True:
                    await loop.sock_sendall(peer, frame * 1000)
            except ConnectionError:
                ended.set()

        sending = asyncio.ensure_future(flood())
        await wait_until_async(lambda: spool_writer.account.notes["answers_unread"] == 1)
        await asyncio.wait_for(ended.wait(), 30)  # the socket is gone, not only the task
        await sending
