"""Fetching and controlling over framed TCP, against a real logd."""

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import nats
import orjson
import pytest
from nats.aio.client import Client

from penstock.logd.api.protocol import REQUEST_HEAD, RESPONSE_HEAD, encode_request
from penstock.logd.client import LogClient
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.format.batch import decode_body
from penstock.logd.format.rows import batch_records
from tests.support.logd import Logd
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

LOGS = {"name": "logs", "subject": "telemetry.logs.>"}


@pytest.fixture
def logd(tmp_path: Path, nats_url: str) -> Iterator[Logd]:
    with Logd(tmp_path / "logd", nats_url, [LOGS]) as running:
        yield running


@pytest.fixture
async def client(nats_url: str) -> AsyncIterator[Client]:
    connection = await nats.connect(nats_url)
    yield connection
    await connection.close()


async def test_a_long_poll_ends_when_a_record_is_committed(logd: Logd, client: Client) -> None:
    def wait() -> tuple[int, int]:
        with logd.client() as log:
            fetched = log.fetch("logs", 0, wait_ms=20_000)
            return len(fetched.frames), fetched.next_offset

    waiting = asyncio.create_task(asyncio.to_thread(wait))
    with logd.client() as log:
        assert log.fetch("logs", 0).frames == []
    await client.jetstream().publish("telemetry.logs.a", b"one")
    assert await asyncio.wait_for(waiting, 10) == (1, 1)


async def test_out_of_range_names_the_range(logd: Logd, client: Client) -> None:
    await client.jetstream().publish("telemetry.logs.a", b"one")
    with logd.client() as log:
        with pytest.raises(RefusedError) as raised:
            log.fetch("logs", 7)
        assert raised.value.code == "OUT_OF_RANGE"
        assert raised.value.detail == {"earliest": 0, "latest": 1, "end_offset": 1}
        assert log.fetch("logs", 1).frames == []
        with pytest.raises(RefusedError, match="no stream 'other'"):
            log.fetch("other", 0)
        with pytest.raises(RefusedError, match="no partition 3"):
            log.offsets("logs", 3)


async def test_offsets_by_time_and_by_name(logd: Logd, client: Client) -> None:
    js = client.jetstream()
    for number in range(5):
        await js.publish("telemetry.logs.a", b"%d" % number)
    with logd.client() as log:
        times = [record.timestamp_ns for _, record in log.records("logs", 0)]
        assert log.offset_for_timestamp("logs", times[3]) == 3
        assert log.offset_for_timestamp("logs", 0) == 0
        assert log.offset_for_timestamp("logs", times[-1] + 1) == 5
        assert log.offsets("logs") == (0, 5)


async def test_a_subject_filter_keeps_offsets_and_passes_what_does_not_match(
    logd: Logd, client: Client
) -> None:
    for number in range(20):
        await client.publish(f"telemetry.logs.{'a' if number % 5 == 0 else 'b'}", b"%d" % number)
    await client.jetstream().publish("telemetry.logs.b", b"20")
    with logd.client() as log:
        fetched = log.fetch("logs", 0, subject="telemetry.*.a")
        assert fetched.next_offset == 21
        offsets = []
        for header, body in fetched.frames:
            offsets += [offset for offset, _ in batch_records(header, decode_body(body))]
        assert offsets == [0, 5, 10, 15]
        with pytest.raises(RefusedError, match="must not be empty"):
            log.fetch("logs", 0, subject="a..b")


async def test_streams_are_created_matched_and_deleted_at_run_time(
    logd: Logd, client: Client
) -> None:
    with logd.client() as log:
        created = log.create_stream("extra", "telemetry.*.app", dedup_window_s=5)
        assert log.create_stream("extra", "telemetry.*.app", dedup_window_s=5) == created
        with pytest.raises(RefusedError) as raised:
            log.create_stream("extra", "telemetry.other")
        assert raised.value.code == "STREAM_DIFFERS"
        for bad in (">", "*.logs", "_INBOX.>", "$SYS.a", "a..b", "a b"):
            with pytest.raises(RefusedError):
                log.create_stream("bad", bad)
        with pytest.raises(RefusedError):
            log.create_stream("../x", "telemetry.x")
        assert log.match("telemetry.logs.app") == ["extra", "logs"]
        await client.jetstream().publish("telemetry.logs.app", b"one", stream="extra")
        wait_until(lambda: logd.values("extra") == logd.values("logs") == [b"one"])
        logd.restart()
        assert [stream.name for stream in log.streams()] == ["extra", "logs"]
        log.delete_stream("extra")
        assert log.match("telemetry.logs.app") == ["logs"]
        assert list((logd.data_dir / "trash").iterdir()) == []
        again = log.create_stream("extra", "telemetry.*.app", dedup_window_s=5)
        assert again.incarnation != created.incarnation
        assert log.offsets("extra") == (0, 0)


async def test_overlapping_streams_all_store_and_only_the_named_one_answers(
    logd: Logd, client: Client
) -> None:
    with logd.client() as log:
        log.create_stream("all", "telemetry.>")
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    await client.publish("telemetry.logs.a", b"both", reply=inbox)
    answers = [(await subscription.next_msg(timeout=60)).data for _ in range(2)]
    assert {orjson.loads(answer)["stream"] for answer in answers} == {"all", "logs"}
    await client.publish(
        "telemetry.logs.a", b"one", reply=inbox, headers={"Nats-Expected-Stream": "all"}
    )
    assert orjson.loads((await subscription.next_msg(timeout=60)).data)["stream"] == "all"
    marker = await client.jetstream().publish("telemetry.other", b"marker")
    assert (marker.stream, subscription.pending_msgs) == ("all", 0)
    wait_until(lambda: logd.values("logs") == [b"both", b"one"])
    assert logd.values("all") == [b"both", b"one", b"marker"]


async def test_random_bytes_and_bad_requests_leave_the_daemon_serving(
    logd: Logd, client: Client
) -> None:
    await client.jetstream().publish("telemetry.logs.a", b"one")
    rng = random.Random(3)
    host, port = logd.fetch.split(":")
    for _ in range(60):
        with (
            contextlib.suppress(OSError),  # logd may hang up at any point
            socket.create_connection((host, int(port)), timeout=60) as raw,
        ):
            raw.sendall(_nonsense(rng))
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(65536):
                pass
    refused = _ask(logd, {"api": "fetch", "id": 4, "stream": "logs", "offset": -1})
    assert refused["id"] == 4
    assert refused["error"]["code"] == "BAD_REQUEST"
    assert _ask(logd, {"api": "nothing"})["error"]["code"] == "UNKNOWN_API"
    assert logd.values("logs") == [b"one"]
    wait_until(lambda: logd.daemon.status()["health"] == "ready", what="ready")


async def test_a_reader_that_does_not_read_delays_nobody(logd: Logd, client: Client) -> None:
    js = client.jetstream()
    for _ in range(40):
        await js.publish("telemetry.logs.a", b"x" * 500_000)
    host, port = logd.fetch.split(":")
    with socket.create_connection((host, int(port))) as stalled:
        request = {"api": "fetch", "stream": "logs", "offset": 0, "bytes_max": 20_000_000}
        stalled.sendall(encode_request(request))
        await js.publish("telemetry.logs.a", b"last", timeout=60)
        assert len(logd.values("logs")) == 41


def test_connections_beyond_the_limit_are_told_so(tmp_path: Path, nats_url: str) -> None:
    with Logd(tmp_path / "few", nats_url, [LOGS], max_connections=2) as logd:
        clients = [logd.client() for _ in range(2)]
        for log in clients:
            log.streams()
        with logd.client() as third, pytest.raises((RefusedError, UnavailableError)):
            third.streams()
        for log in clients:
            log.close()


def test_a_client_reconnects_after_the_server_came_back(logd: Logd) -> None:
    with logd.client() as log:
        log.streams()
        logd.restart()
        assert [stream.name for stream in log.streams()] == ["logs"]
        logd.daemon.stop()
        with pytest.raises(UnavailableError):
            log.streams()
        logd.daemon.start()
        assert [stream.name for stream in log.streams()] == ["logs"]


def test_many_readers_wait_at_once_and_all_are_served(logd: Logd, nats_url: str) -> None:
    seen: list[int] = []

    def wait() -> None:
        with LogClient(logd.fetch, timeout_s=20) as log:
            seen.append(log.fetch("logs", 0, wait_ms=20_000).next_offset)

    threads = [threading.Thread(target=wait) for _ in range(16)]
    for thread in threads:
        thread.start()

    async def publish() -> None:
        connection = await nats.connect(nats_url)
        await connection.jetstream().publish("telemetry.logs.a", b"one")
        await connection.close()

    asyncio.run(publish())
    for thread in threads:
        thread.join(20)
    assert seen == [1] * 16


def _nonsense(rng: random.Random) -> bytes:
    match rng.randrange(4):
        case 0:
            return rng.randbytes(rng.randrange(1, 200))
        case 1:
            return struct.pack("<I", rng.randrange(2**32)) + rng.randbytes(50)
        case 2:
            body = rng.randbytes(rng.randrange(1, 60))
            return REQUEST_HEAD.pack(len(body)) + body
        case _:
            document: dict[str, object] = {
                "api": rng.choice(["fetch", "offsets", "match", "streams", ""])
            }
            document |= {rng.choice(["stream", "offset", "at", "id"]): rng.choice([None, -1, "x"])}
            return encode_request(document)


def _ask(logd: Logd, request: dict[str, object]) -> dict[str, Any]:
    host, port = logd.fetch.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as raw, raw.makefile("rb") as file:
        raw.sendall(encode_request(request))
        header_length, _ = RESPONSE_HEAD.unpack(file.read(RESPONSE_HEAD.size))
        answer: dict[str, Any] = orjson.loads(file.read(header_length))
        return answer
