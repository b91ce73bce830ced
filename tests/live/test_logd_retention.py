"""Retention in a real logd: what goes, what stays, and who is told."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import nats
import orjson
import pytest
from nats.aio.client import Client
from nats.js.errors import APIError

from penstock.logd.api.protocol import RESPONSE_HEAD, encode_request
from penstock.logd.client import LogClient
from penstock.logd.errors import RefusedError
from penstock.logd.format.batch import decode_body
from penstock.logd.format.rows import batch_records, split_frames
from tests.live.test_logd_batches import batch, publish
from tests.support.logd import Logd
from tests.support.waiting import wait_until_async

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

SIZE = 8000
MIB = 1 << 20


def make_logd(tmp_path: Path, nats_url: str, **options: Any) -> Logd:
    stream = {"name": "logs", "subject": "telemetry.logs.>"} | options
    return Logd(tmp_path / "logd", nats_url, [stream], retention_interval_s=0.1)


@pytest.fixture
async def client(nats_url: str) -> AsyncIterator[Client]:
    connection = await nats.connect(nats_url)
    yield connection
    await connection.close()


def payload(number: int) -> bytes:
    return (b"%d:" % number).ljust(SIZE, b"x")


async def publish_range(client: Client, first: int, end: int) -> None:
    """Publish numbered messages in order, all acked when it returns; numbers are offsets."""
    js = client.jetstream()
    for start in range(first, end, 50):
        acks = await asyncio.gather(
            *(
                js.publish("telemetry.logs.a", payload(n))
                for n in range(start, min(end, start + 50))
            )
        )
        assert [ack.seq - 1 for ack in acks] == list(range(start, min(end, start + 50)))


def start_of(log: LogClient) -> int:
    return log.offsets("logs").start


def read_all(log: LogClient) -> tuple[int, int]:
    """Read everything; the range. Each record must be the one of its offset."""
    start, end = log.offsets("logs")
    expected = start
    for offset, record in log.records("logs", start, end):
        assert offset == expected
        assert record.value is not None
        assert record.value == payload(offset)
        expected += 1
    assert expected == end
    return start, end


class StalledReader:
    """Asks for everything from offset 0 and takes nothing until it is told to."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        self.socket.settimeout(20)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect((host, int(port)))
        request = {"api": "fetch", "id": 1, "stream": "logs", "offset": 0, "bytes_max": 64 * MIB}
        self.socket.sendall(encode_request(request))
        self.head = self.receive(RESPONSE_HEAD.size)

    def receive(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            part = self.socket.recv(length - len(data))
            assert part, "the server closed the connection"
            data += part
        return bytes(data)

    def offsets(self) -> list[int]:
        """Take the response; the offsets in it, frames checked."""
        header_length, length = RESPONSE_HEAD.unpack(self.head)
        header = orjson.loads(self.receive(header_length))
        assert "error" not in header, header
        found = []
        for frame, body in split_frames(memoryview(self.receive(length)), where="test"):
            for offset, record in batch_records(frame, decode_body(body)):
                assert record.value == payload(offset)
                found.append(offset)
        self.socket.close()
        return found


def _is_settled(logd: Logd, log: LogClient) -> bool:
    """Whether what is to go has gone, and is counted."""
    detail = logd.stage("logs")["detail"]
    start = start_of(log)
    counted: bool = (detail["start_offset"], detail["records_deleted"]) == (start, start)
    return counted and detail["size_bytes"] < 3 * MIB


async def test_bytes_are_bounded_while_publishing_and_a_slow_reader_gets_what_it_asked_for(
    tmp_path: Path, nats_url: str, client: Client
) -> None:
    with make_logd(tmp_path, nats_url, retention={"bytes": 2 * MIB}) as logd:
        await publish_range(client, 0, 250)
        reader = StalledReader(logd.fetch)
        with logd.client() as log:
            await publish_range(client, 250, 1000)
            await wait_until_async(lambda: start_of(log) > 400)
            assert await asyncio.to_thread(reader.offsets) == list(range(250))
            await wait_until_async(lambda: _is_settled(logd, log))
            start, end = await asyncio.to_thread(read_all, log)
            assert end == 1000
            assert (end - start) * SIZE >= 2 * MIB, "what the limit keeps is kept"
            await wait_until_async(lambda: _is_settled(logd, log))
            start = start_of(log)
            with pytest.raises(RefusedError) as raised:
                log.fetch("logs", start - 1)
            assert raised.value.detail == {"earliest": start, "latest": 1000, "end_offset": 1000}
            for kill in (False, True):
                logd.restart(kill=kill)
                assert (start_of(log), log.offsets("logs").end) == (start, 1000)
            assert log.stream("logs").options["retention"]["bytes"] == 2 * MIB


async def test_records_go_by_age_and_their_ids_and_sequences_stay(
    tmp_path: Path, nats_url: str, client: Client
) -> None:
    with make_logd(tmp_path, nats_url, retention={"age_s": 1}) as logd, logd.client() as log:
        js = client.jetstream()
        await js.publish("telemetry.logs.a", b"x", headers={"Nats-Msg-Id": "one"})
        assert (await publish(client, batch(0, 1, count=2))).offset == 2
        await wait_until_async(lambda: log.offsets("logs") == (3, 3))
        logs = partial(logd.data_dir.glob, "streams/*/0/*.log")
        await wait_until_async(lambda: len([*logs()]) == 1, what="the file is gone, too")
        assert [path.stat().st_size for path in logs()] == [0]
        logd.restart(kill=True)
        assert log.offsets("logs") == (3, 3)
        again = await js.publish("telemetry.logs.a", b"x", headers={"Nats-Msg-Id": "one"})
        assert (again.seq, again.duplicate) == (1, True)
        repeated = await publish(client, batch(0, 1, count=2))
        assert (repeated.offset, repeated.duplicate) == (2, True)
        assert (await js.publish("telemetry.logs.a", b"y")).seq == 4


async def test_a_full_stream_refuses_and_accepts_again(
    tmp_path: Path, nats_url: str, client: Client
) -> None:
    limits = {"messages": 3}
    with make_logd(tmp_path, nats_url, retention=limits, discard="new") as logd:
        js = client.jetstream()
        for number in range(3):
            await js.publish("telemetry.logs.a", b"x", headers={"Nats-Msg-Id": f"{number}"})
        with pytest.raises(APIError) as raised:
            await js.publish("telemetry.logs.a", b"x")
        assert (raised.value.code, raised.value.err_code) == (503, 20005)
        assert raised.value.description == "maximum messages exceeded"
        known = await js.publish("telemetry.logs.a", b"x", headers={"Nats-Msg-Id": "1"})
        assert (known.seq, known.duplicate) == (2, True)
        assert logd.stage("logs")["detail"]["refused_stream_full"] == 1
        assert logd.values("logs") == [b"x"] * 3
        limits["age_s"] = 1
        await asyncio.to_thread(logd.restart)
        with logd.client() as log:
            await wait_until_async(lambda: log.offsets("logs") == (3, 3))
        assert (await js.publish("telemetry.logs.a", b"y")).seq == 4


async def test_a_stream_full_of_bytes_stays_below_its_limit(
    tmp_path: Path, nats_url: str, client: Client
) -> None:
    with make_logd(tmp_path, nats_url, retention={"bytes": MIB}, discard="new") as logd:
        js = client.jetstream(timeout=60)
        results = await asyncio.gather(
            *(js.publish("telemetry.logs.a", payload(n)) for n in range(300)),
            return_exceptions=True,
        )
        stored = [result for result in results if not isinstance(result, BaseException)]
        refused = [result for result in results if isinstance(result, APIError)]
        assert len(stored) + len(refused) == 300
        assert {error.description for error in refused} == {"maximum bytes exceeded"}
        assert 110 <= len(stored) <= MIB // SIZE
        assert logd.stage("logs")["detail"]["size_bytes"] <= MIB
        with logd.client() as log:
            assert log.offsets("logs") == (0, len(stored))


async def test_kill_during_retention_leaves_one_stretch_of_acked_records(
    tmp_path: Path, nats_url: str, client: Client
) -> None:
    with make_logd(tmp_path, nats_url, retention={"bytes": MIB}) as logd, logd.client() as log:
        start = end = 0
        for _ in range(5):
            publishing = asyncio.create_task(publish_until_it_fails(client, end))
            before = start
            await wait_until_async(lambda: start_of(log) > before)  # noqa: B023 - within the turn
            await asyncio.to_thread(logd.restart, kill=True)
            acked = await publishing
            start, end = await asyncio.to_thread(read_all, log)
            assert before < start < end
            assert end >= acked
            assert (end - start) * SIZE > MIB // 2


async def publish_until_it_fails(client: Client, first: int) -> int:
    """Publish from a number on; returns the number after the last that was acked."""
    js = client.jetstream()
    number = first
    with contextlib.suppress(nats.errors.Error):
        while True:
            ack = await js.publish("telemetry.logs.a", payload(number), timeout=3)
            assert ack.seq == number + 1
            number += 1
    return number
