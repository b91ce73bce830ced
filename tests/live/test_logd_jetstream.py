"""Publishing as to JetStream, with nothing but a stock nats-py."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.js.client import JetStreamContext
from nats.js.errors import (
    APIError,
    BadRequestError,
    NoStreamResponseError,
    ServerError,
    ServiceUnavailableError,
)

from tests.support.logd import Logd
from tests.support.nats_server import nats_server
from tests.support.processes import free_port
from tests.support.waiting import wait_until, wait_until_async

pytestmark = pytest.mark.live

ORDERS = {"name": "orders", "subject": "orders.new"}
EVENTS = {"name": "events", "subject": "events.>", "max_header_bytes": 1024}
SUBJECT_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"


@pytest.fixture
def logd(tmp_path: Path, nats_url: str) -> Iterator[Logd]:
    with Logd(tmp_path / "logd", nats_url, [ORDERS, EVENTS]) as running:
        yield running


@pytest.fixture
async def client(nats_url: str) -> AsyncIterator[Client]:
    connection = await nats.connect(nats_url)
    yield connection
    await connection.close()


async def refused(js: JetStreamContext, subject: str, headers: dict[str, str]) -> APIError:
    with pytest.raises(APIError) as raised:
        await js.publish(subject, b"x", headers=headers)
    return raised.value


async def test_publish_async_gives_every_message_its_ack(logd: Logd, client: Client) -> None:
    js = client.jetstream(publish_async_max_pending=64)
    waiting = [
        await js.publish_async("orders.new", b"%d" % n, headers={"Nats-Msg-Id": str(n % 150)})
        for n in range(200)
    ]
    await js.publish_async_completed()
    acks = [future.result() for future in waiting]
    assert [ack.seq for ack in acks] == [*range(1, 151), *range(1, 51)]
    assert [bool(ack.duplicate) for ack in acks] == [False] * 150 + [True] * 50
    assert {ack.stream for ack in acks} == {"orders"}
    assert len(logd.values("orders")) == 150


async def test_expectations_are_met_or_refused_with_jetstreams_codes(
    logd: Logd, client: Client
) -> None:
    js = client.jetstream()
    assert (await js.publish("orders.new", b"1", headers={SUBJECT_SEQUENCE: "0"})).seq == 1
    met = {
        "Nats-Msg-Id": "two",
        "Nats-Expected-Stream": "orders",
        "Nats-Expected-Last-Sequence": "1",
        SUBJECT_SEQUENCE: "1",
        f"{SUBJECT_SEQUENCE}-Subject": "orders.new",
    }
    assert (await js.publish("orders.new", b"2", headers=met)).seq == 2
    assert (await js.publish("orders.new", b"2", headers=met)).duplicate, "before expectations"
    for header, value, number in (
        ("Nats-Expected-Stream", "events", 10060),
        ("Nats-Expected-Last-Sequence", "1", 10071),
        (SUBJECT_SEQUENCE, "1", 10071),
        ("Nats-Expected-Last-Msg-Id", "one", 10070),
        (f"{SUBJECT_SEQUENCE}-Subject", "orders.new", 10193),
    ):
        error = await refused(js, "orders.new", {header: value})
        assert (type(error), error.code, error.err_code) == (BadRequestError, 400, number)
    assert logd.values("orders") == [b"1", b"2"]


async def test_what_is_not_offered_is_refused_and_not_stored(logd: Logd, client: Client) -> None:
    js = client.jetstream()
    with pytest.raises(BadRequestError) as ttl:
        await js.publish("events.a", b"x", msg_ttl=5)
    assert ttl.value.err_code == 10166
    for header, kind, number in (
        ("Nats-Rollup", ServerError, 10111),
        ("Nats-Incr", BadRequestError, 10168),
        ("Nats-Batch-Id", BadRequestError, 10174),
        ("Nats-Schedule", BadRequestError, 10188),
        (SUBJECT_SEQUENCE, BadRequestError, 20004),
    ):
        error = await refused(js, "events.a", {header: "1"})
        assert (type(error), error.err_code) == (kind, number)
    assert (await refused(js, "events.a", {"Long": "x" * 2000})).err_code == 10097
    assert logd.values("events") == []


JETSTREAM_ONLY = (
    {"Nats-Expected-Stream": "ORDERS"},
    {"Nats-Expected-Last-Sequence": "7"},
    {"Nats-Expected-Last-Msg-Id": "x"},
    {SUBJECT_SEQUENCE: "7"},
    {"Nats-TTL": "1m"},
    {"Nats-Rollup": "sub"},
    {"Nats-Schedule": "@every 1h"},
    {"Nats-Msg-Id": "i" * 300},
)
"""What a message may ask of the JetStream that it is for."""


async def test_a_stream_that_only_listens_stores_what_is_meant_for_others(
    logd: Logd, client: Client
) -> None:
    with logd.client() as log:
        log.create_stream("audit", "svc.>", ack_on_reply=False, max_message_bytes=4096)
        for number, headers in enumerate(JETSTREAM_ONLY):
            await client.publish("svc.a", b"%d" % number, headers=headers)
        await client.publish("svc.a", b"x" * 5000)
        await client.publish("svc.a", b"last")
        await client.flush()
        following = log.follow("audit", log.offsets("audit")[0])
        stored = [next(following)[1] for _ in range(len(JETSTREAM_ONLY) + 1)]
        assert [one.value for one in stored] == [
            *(b"%d" % number for number in range(len(JETSTREAM_ONLY))), b"last"
        ]  # fmt: skip
        assert [dict(one.headers) for one in stored[:-1]] == [
            {name: value.encode() for name, value in headers.items()} for headers in JETSTREAM_ONLY
        ]
        gaps = log.gaps()
    missed = [(gap.streams, gap.reason, gap.messages) for gap in chain(gaps.lasting, gaps.ended)]
    assert missed == [(["audit"], "too_large", 1)]


async def test_beside_a_jetstream_on_the_subject_its_publisher_hears_only_its_own_stream(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "js"
    with (
        nats_server(tmp_path / "nats", "-js", "-sd", str(directory)) as server,
        Logd(tmp_path / "logd", server.url, [{"name": "audit", "subject": "orders.>"}]) as logd,
    ):
        connection = await nats.connect(server.url)
        try:
            js = connection.jetstream()
            await js.add_stream(name="ORDERS", subjects=["orders.>"], allow_rollup_hdrs=True)
            asked = {"Nats-Expected-Stream": "ORDERS"}
            for last, more in enumerate(({}, {"Nats-Expected-Last-Sequence": "1"},
                                         {"Nats-Rollup": "sub"})):  # fmt: skip
                ack = await js.publish("orders.a", b"%d" % last, headers=asked | more)
                assert (ack.stream, ack.seq) == ("ORDERS", last + 1)
            await wait_until_async(
                lambda: logd.values("audit") == [b"0", b"1", b"2"], what="the copies"
            )
        finally:
            await connection.close()


async def test_only_one_of_many_writers_gets_the_next_sequence(
    logd: Logd, client: Client, nats_url: str
) -> None:
    other = await nats.connect(nats_url)
    try:
        for last in range(5):
            expecting = {SUBJECT_SEQUENCE: str(last)}
            answers = await asyncio.gather(
                *(
                    writer.jetstream().publish("orders.new", b"%d" % last, headers=dict(expecting))
                    for writer in (client, other)
                    for _ in range(4)
                ),
                return_exceptions=True,
            )
            lost = [answer for answer in answers if isinstance(answer, APIError)]
            assert len(lost) == 7
            assert {error.err_code for error in lost} == {10071}
    finally:
        await other.close()
    assert logd.values("orders") == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_subject_without_a_stream_has_no_responders(logd: Logd, client: Client) -> None:
    js = client.jetstream()
    with pytest.raises(NoStreamResponseError):
        await js.publish("invoices.new", b"x")
    with logd.client() as log:
        log.create_stream("invoices", "invoices.>")
        assert (await js.publish("invoices.new", b"one", stream="invoices")).seq == 1
        log.delete_stream("invoices")
    with pytest.raises(NoStreamResponseError):
        await js.publish("invoices.new", b"two")


async def test_services_keep_their_subject_while_a_stream_comes_and_goes(
    logd: Logd, client: Client, nats_url: str
) -> None:
    service = await nats.connect(nats_url)
    heard: list[bytes] = []

    async def answer(message: Msg) -> None:
        heard.append(message.data)
        if message.reply:
            await message.respond(b"done " + message.data)

    await service.subscribe("svc.prices", cb=answer)
    async with asyncio.timeout(20):  # nats-py's flush may overtake its subscribe
        while not heard:
            with suppress(NoRespondersError):
                await client.request("svc.prices", b"ready")

    async def use(name: bytes) -> None:
        """What callers of the service do while others listen, too."""
        reply = await client.request("svc.prices", name, timeout=20)
        assert reply.data == b"done " + name
        await client.publish("svc.prices", b"told " + name)
        await client.flush()

    try:
        await use(b"before")
        with logd.client() as log:
            log.create_stream("prices", "svc.*", ack_on_reply=False)
            await use(b"meanwhile")
            await use(b"again")
            start, _ = log.offsets("prices")
            following = log.follow("prices", start)
            stored = [next(following)[1].value for _ in range(4)]
            log.delete_stream("prices")
        await use(b"after")
        await wait_until_async(lambda: len(heard) == 9)
    finally:
        await service.close()
    assert stored == [b"meanwhile", b"told meanwhile", b"again", b"told again"]
    assert heard == [
        b"ready",
        *(
            told + name
            for name in (b"before", b"meanwhile", b"again", b"after")
            for told in (b"", b"told ")
        ),
    ]


Call = Callable[[JetStreamContext], Awaitable[object]]


async def fetch(js: JetStreamContext, *, count: int) -> object:
    reading = await js.pull_subscribe_bind("reader", stream="orders")
    try:
        return await reading.fetch(count, timeout=60)
    finally:
        await reading.unsubscribe()


JETSTREAM_CALLS: dict[str, Call] = {
    "account_info": lambda js: js.account_info(),
    "find_stream": lambda js: js.find_stream_name_by_subject("orders.new"),
    "add_stream": lambda js: js.add_stream(name="orders", subjects=["orders.new"]),
    "update_stream": lambda js: js.update_stream(name="orders", subjects=["orders.new"]),
    "stream_info": lambda js: js.stream_info("orders"),
    "streams_info": lambda js: js.streams_info(),
    "streams_info_iterator": lambda js: js.streams_info_iterator(),
    "purge_stream": lambda js: js.purge_stream("orders"),
    "delete_stream": lambda js: js.delete_stream("orders"),
    "add_consumer": lambda js: js.add_consumer("orders", durable_name="reader"),
    "add_unnamed_consumer": lambda js: js.add_consumer("orders", filter_subject="orders.new"),
    "consumer_info": lambda js: js.consumer_info("orders", "reader"),
    "consumers_info": lambda js: js.consumers_info("orders"),
    "delete_consumer": lambda js: js.delete_consumer("orders", "reader"),
    "pause_consumer": lambda js: js.pause_consumer("orders", "reader", "2099-01-01T00:00:00Z"),
    "resume_consumer": lambda js: js.resume_consumer("orders", "reader"),
    "subscribe": lambda js: js.subscribe("orders.new"),
    "subscribe_stream": lambda js: js.subscribe("orders.new", stream="orders"),
    "subscribe_durable": lambda js: js.subscribe("orders.new", durable="d", stream="orders"),
    "subscribe_queue": lambda js: js.subscribe("orders.new", queue="q"),
    "subscribe_ordered": lambda js: js.subscribe("orders.new", ordered_consumer=True),
    "pull_subscribe": lambda js: js.pull_subscribe("orders.new", "reader"),
    "pull_subscribe_stream": lambda js: js.pull_subscribe("orders.new", "r", stream="orders"),
    "fetch_one": lambda js: fetch(js, count=1),
    "fetch_many": lambda js: fetch(js, count=5),
    "get_msg": lambda js: js.get_msg("orders", 1),
    "get_last_msg": lambda js: js.get_last_msg("orders", "orders.new"),
    "get_direct": lambda js: js.get_msg("orders", 1, direct=True),
    "delete_msg": lambda js: js.delete_msg("orders", 1),
    "key_value": lambda js: js.key_value("settings"),
    "create_key_value": lambda js: js.create_key_value(bucket="settings"),
    "delete_key_value": lambda js: js.delete_key_value("settings"),
    "object_store": lambda js: js.object_store("files"),
    "create_object_store": lambda js: js.create_object_store("files"),
    "delete_object_store": lambda js: js.delete_object_store("files"),
}
"""What a user of JetStream tries next, as nats-py has it; `js.publish()` works."""

HINTS_AT_ONCE_S = 10.0
"""Far below the timeouts of these calls, which are 60 s here."""


async def failed_at_once(client: Client, call: Call) -> Exception:
    js = client.jetstream(timeout=60)
    before = time.monotonic()  # noqa: TID251 - what a user waits
    with pytest.raises((APIError, NoRespondersError)) as raised:
        await call(js)
    assert time.monotonic() - before < HINTS_AT_ONCE_S  # noqa: TID251
    error: Exception = raised.value
    return error


async def test_without_hints_no_call_of_jetstream_hangs(logd: Logd, client: Client) -> None:
    for name, call in JETSTREAM_CALLS.items():
        error = await failed_at_once(client, call)
        assert isinstance(error, NoRespondersError | ServiceUnavailableError), (name, error)


def hinting(directory: Path, url: str, **options: Any) -> Logd:
    return Logd(directory, url, [ORDERS], nats={"url": url, "jetstream_hints": True}, **options)


def serving(logd: Logd) -> str:
    return str(logd.daemon.status()["info"]["jetstream_hints"]["serving"])


async def test_with_hints_every_call_of_jetstream_names_the_way_at_once(
    tmp_path: Path, nats_url: str, client: Client
) -> None:
    with hinting(tmp_path / "one", nats_url) as one, hinting(tmp_path / "two", nats_url) as two:
        for logd in (one, two):  # each takes the other for what it is
            await asyncio.to_thread(wait_until, lambda logd=logd: serving(logd) == "hints")
        for name, call in JETSTREAM_CALLS.items():
            error = await failed_at_once(client, call)
            assert isinstance(error, APIError), (name, error)
            assert error.code == 501, (name, error)
            assert "penstock logd" in str(error.description), (name, error)
            assert "not JetStream" in str(error.description), (name, error)
        assert (await client.jetstream().publish("orders.new", b"x")).seq == 1


async def test_hints_leave_a_jetstream_alone_also_one_that_comes_later(tmp_path: Path) -> None:
    port = free_port()
    with (
        nats_server(tmp_path / "nats", port=port) as server,
        hinting(tmp_path / "logd", server.url) as logd,
    ):
        await asyncio.to_thread(wait_until, lambda: serving(logd) == "hints")
        server.kill()
        with nats_server(tmp_path / "js", "-js", "-sd", str(tmp_path / "js"), port=port) as again:
            connection = await nats.connect(again.url)
            try:
                js = connection.jetstream(timeout=20)
                for number in range(20):
                    await js.add_stream(name=f"S{number}", subjects=[f"s.{number}"])
                await asyncio.to_thread(wait_until, lambda: serving(logd) == "jetstream")
                assert len(await js.streams_info()) == 20
            finally:
                await connection.close()


async def test_hints_leave_when_a_jetstream_begins_to_answer(
    tmp_path: Path, nats_url: str, client: Client
) -> None:
    """As where another server of the NATS cluster has one: the connection stays."""
    with hinting(tmp_path / "logd", nats_url) as logd:
        await asyncio.to_thread(wait_until, lambda: serving(logd) == "hints")

        async def answer(message: Msg) -> None:
            await message.respond(b'{"type":"io.nats.jetstream.api.v1.account_info_response"}')

        jetstream = await client.subscribe("$JS.API.>", cb=answer)
        await client.flush()
        await asyncio.to_thread(wait_until, lambda: serving(logd) == "jetstream")
        for _ in range(20):
            answered = await client.request("$JS.API.STREAM.NAMES", timeout=20)
            assert b"error" not in answered.data
        await jetstream.unsubscribe()


async def test_hints_are_published_on_no_subject_of_a_stream(
    tmp_path: Path, nats_url: str, client: Client
) -> None:
    with hinting(tmp_path / "logd", nats_url) as logd:
        await asyncio.to_thread(wait_until, lambda: serving(logd) == "hints")
        for reply in ("orders.new", "$SYS.REQ.SERVER.PING", "_PENSTOCK.PROBE.1"):
            await client.publish("$JS.API.INFO", b"", reply)
        inbox = await client.subscribe(client.new_inbox())
        await client.publish("$JS.API.INFO", b"", inbox.subject)
        assert b"501" in (await inbox.next_msg(timeout=10)).data
        assert logd.values("orders") == []
