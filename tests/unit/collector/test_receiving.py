"""What network sources hold while they receive: bounded, refused clearly, counted at the stop."""

import asyncio
import contextlib
import gzip
import json
import socket
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgpack
import pytest
from google.rpc import error_details_pb2, status_pb2
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from penstock.base.sockets import split_host_port
from penstock.collector.limits import MIB, OTLP_RETRY_AFTER_S, SpoolWriterLimits
from penstock.collector.sources.network.listener import Listener
from penstock.collector.sources.source import Source
from penstock.collector.sources.statsd.source import StatsdSettings, StatsdSource
from penstock.collector.spool.writer import Payload
from tests.support.receiving import (
    connect,
    forwarding,
    listening,
    otlp,
    send_datagrams,
    syslog,
)
from tests.support.spool_writer import SpoolingIntake, spooling
from tests.support.waiting import wait_until_async

EXPORT = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"


def a_request(records: int = 1) -> bytes:
    made = ExportLogsServiceRequest()
    scope = made.resource_logs.add().scope_logs.add()
    for _ in range(records):
        scope.log_records.add(time_unix_nano=5).body.string_value = "hi"
    return made.SerializeToString()


async def export(endpoint: str, body: bytes) -> bytes:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        method: Any = channel.unary_unary(EXPORT)
        answer: bytes = await method(body)
        return answer


async def until_answered(endpoint: str) -> None:
    """Send requests without records until one is taken."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                assert await export(endpoint, b"") == b""
                return


async def until_accepted(endpoint: str) -> None:
    """Connect until a connection is not ended at once: it hears what is wrong with its request."""
    async with asyncio.timeout(60):
        while True:
            reader, writer = await connect(endpoint)
            writer.write(b"no request of any protocol\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                if await reader.read(1):
                    writer.close()
                    return
            writer.close()


async def refusal(endpoint: str, body: bytes) -> tuple[grpc.StatusCode, int]:
    """The code of a refused gRPC request, and the delay that it names."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await export(endpoint, body)
    status, retry = status_pb2.Status(), error_details_pb2.RetryInfo()
    details = dict(caught.value.trailing_metadata() or ())["grpc-status-details-bin"]
    status.ParseFromString(details)
    assert status.details[0].Unpack(retry)
    return caught.value.code(), retry.retry_delay.seconds


async def test_http_bodies_count_from_their_first_byte(tmp_path: Path) -> None:
    """Half a body that never ends holds its bytes; the next one hears that there is no room."""
    async with listening(tmp_path, otlp(), share_bytes=MIB) as (source, spool_writer):
        slow, fast = [await connect(source.endpoints["http"]) for _ in range(2)]
        head = f"POST /v1/logs HTTP/1.1\r\nhost: x\r\ncontent-length: {MIB}\r\n"
        head += "content-type: application/json\r\n\r\n"
        slow[1].write(head.encode() + b" " * (MIB - 100_000))
        await wait_until_async(lambda: spool_writer.share.used >= MIB - 100_000)
        fast[1].write(head.encode() + b" " * 200_000)
        answer = await fast[0].readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: %d\r\n" % OTLP_RETRY_AFTER_S in answer.lower()
        assert (await fast[0].read()).find(b"received at once") > 0
        for _, writer in (slow, fast):
            writer.close()
        await wait_until_async(lambda: spool_writer.share.used == 0)
        assert (spool_writer.share.refused, spool_writer.account.notes["requests_deferred"]) == (
            1,
            1,
        )
        assert spool_writer.share.peak <= MIB


async def test_what_a_body_expands_to_counts_too(tmp_path: Path) -> None:
    async with listening(tmp_path, otlp(), share_bytes=MIB) as (source, spool_writer):
        spool_writer.share.take(MIB // 2)
        reader, writer = await connect(source.endpoints["http"])
        body = gzip.compress(b" " * (MIB - 1))
        head = f"POST /v1/logs HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        head += "content-encoding: gzip\r\ncontent-type: application/json\r\n\r\n"
        writer.write(head.encode() + body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 429 ")
        writer.close()
        await wait_until_async(lambda: spool_writer.share.used == MIB // 2)


async def test_a_grpc_request_is_not_read_before_there_is_room(tmp_path: Path) -> None:
    limits = SpoolWriterLimits(request_room_wait_s=60)
    async with listening(tmp_path, otlp(), share_bytes=MIB, limits=limits) as (
        source,
        spool_writer,
    ):
        spool_writer.leave_room(MIB - 1)
        waiting = asyncio.ensure_future(export(source.endpoints["grpc"], a_request()))
        await spool_writer.wait_for_awaited()
        spool_writer.give_room()
        assert await waiting == b""
        await wait_until_async(lambda: spool_writer.share.used == 0)
        assert spool_writer.account.notes["requests_deferred"] == 0


@pytest.mark.parametrize(
    ("limits", "left_bytes"),
    [
        (SpoolWriterLimits(request_room_wait_s=0.05), MIB - 1),
        (SpoolWriterLimits(otlp_max_calls=0), MIB),
    ],
)
async def test_a_grpc_sender_is_told_to_come_again_where_there_is_no_room(
    tmp_path: Path, limits: SpoolWriterLimits, left_bytes: int
) -> None:
    async with listening(tmp_path, otlp(), share_bytes=MIB, limits=limits) as (
        source,
        spool_writer,
    ):
        spool_writer.leave_room(left_bytes)
        code, delay_s = await refusal(source.endpoints["grpc"], a_request())
        assert (code, delay_s) == (grpc.StatusCode.RESOURCE_EXHAUSTED, OTLP_RETRY_AFTER_S)
        assert (spool_writer.share.used, spool_writer.units()) == (0, [])
        assert spool_writer.account.notes["requests_deferred"] == 1


async def test_a_request_whose_sender_gave_up_holds_its_bytes_until_it_is_durable(
    tmp_path: Path,
) -> None:
    async with listening(tmp_path, otlp()) as (source, spool_writer):
        body = a_request(20)
        async with spool_writer.journal.held():  # the disk is slow
            asking = asyncio.ensure_future(export(source.endpoints["grpc"], body))
            await wait_until_async(lambda: spool_writer.spool.undurable)
            held_bytes = spool_writer.share.used
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            # Another one is answered: gRPC has told the first that its sender gave up.
            await until_answered(source.endpoints["grpc"])
            (unit,) = spool_writer.spool.undurable
            assert spool_writer.share.used == held_bytes == len(unit.payload) - 19 > len(body)
        await wait_until_async(lambda: spool_writer.share.used == 0)
        assert len(spool_writer.units()) == 1


@pytest.mark.parametrize("part", ["grpc", "http"])
async def test_connections_above_their_number_are_closed_and_counted(
    tmp_path: Path, part: str
) -> None:
    async with listening(tmp_path, otlp(max_connections=2)) as (source, spool_writer):
        endpoint = source.endpoints[part]
        connections = [await connect(endpoint) for _ in range(2)]
        for _, writer in connections:
            writer.write(b"PRI * HTTP/2.0\r\n\r\n"[:3])
        reader, writer = await connect(endpoint)  # accepted after those
        assert await reader.read() == b""
        writer.close()
        assert spool_writer.account.notes["connections_refused"] == 1
        for _, writer in connections:
            writer.close()
        await until_accepted(endpoint)
        if part == "grpc":
            await until_answered(endpoint)


async def test_an_endpoint_of_ipv6_can_be_connected_to_as_it_is_told(tmp_path: Path) -> None:
    listener = Listener("net", _hang_up, max_connections=1, note=lambda *_: None)
    await listener.listen_tcp("[::1]:0")
    assert listener.endpoint is not None
    host, port = split_host_port(listener.endpoint)
    _, writer = await asyncio.open_connection(host, port)
    writer.close()
    await listener.close()


async def _hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def test_head_is_answered_without_a_body(tmp_path: Path) -> None:
    async with listening(tmp_path, otlp()) as (source, spool_writer):
        reader, writer = await connect(source.endpoints["http"])
        writer.write(b"HEAD /v1/logs HTTP/1.1\r\nhost: x\r\n\r\n" * 2)
        for _ in range(2):  # the second is read where a body would have been
            assert b" 405 " in await reader.readuntil(b"\r\n\r\n")
        writer.close()
        assert spool_writer.account.notes["protocol_errors"] == 0


async def test_a_forward_message_in_the_middle_ends_for_want_of_room(tmp_path: Path) -> None:
    """The one that holds room already must not wait; the one that holds none does."""
    limits = SpoolWriterLimits(unfinished_wait_s=0.05)
    making = forwarding()
    async with listening(tmp_path, making, share_bytes=MIB, limits=limits) as (
        source,
        spool_writer,
    ):
        part = msgpack.packb(["app", 5, {"message": "x" * 2 * MIB}, {"chunk": "c"}])
        reader, writer = await connect(source.endpoint)
        writer.write(part)
        with contextlib.suppress(ConnectionResetError):  # what it still sent was not read
            assert await reader.read() == b"", "closed, and no ack"
        writer.close()
        await wait_until_async(lambda: spool_writer.share.used == 0)
        assert spool_writer.account.notes["connections_ended_no_room"] == 1

        spool_writer.leave_room(0)
        reader, writer = await connect(source.endpoint)
        writer.write(msgpack.packb(["app", 5, {"message": "hi"}, {"chunk": "c"}]))
        await spool_writer.wait_for_awaited()
        spool_writer.give_room()
        assert await reader.read(100) == msgpack.packb({"ack": "c"})
        writer.close()
        await wait_until_async(lambda: spool_writer.share.used == 0)


async def test_a_forward_message_that_stands_still_ends(tmp_path: Path) -> None:
    limits = SpoolWriterLimits(unfinished_timeout_s=0.05)
    async with listening(tmp_path, forwarding(), limits=limits) as (source, spool_writer):
        idle = await connect(source.endpoint)
        reader, writer = await connect(source.endpoint)
        writer.write(b"\x94\xa3app")
        assert await reader.read() == b""
        assert spool_writer.account.notes["messages_unfinished"] == 1
        idle[1].write(msgpack.packb(["app", 5, {"message": "hi"}, {"chunk": "c"}]))
        assert await idle[0].read(100) == msgpack.packb({"ack": "c"}), "idle before one is fine"
        for one in (writer, idle[1]):
            one.close()


async def test_a_forward_message_ends_whose_sender_reads_no_acks(tmp_path: Path) -> None:
    limits = SpoolWriterLimits(unfinished_timeout_s=2.0)
    async with listening(tmp_path, forwarding(), limits=limits) as (source, spool_writer):
        spool_writer.journal.resize(1 << 30)
        loop = asyncio.get_running_loop()
        with socket.socket() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.setblocking(False)
            host, port = source.endpoint.split(":")
            await loop.sock_connect(peer, (host, int(port)))
            message = msgpack.packb(["app", 5, {}, {"chunk": "c" * MIB}])
            sending = asyncio.ensure_future(loop.sock_sendall(peer, message * 12))
            await wait_until_async(lambda: spool_writer.account.notes["answers_unread"] == 1)
            await wait_until_async(lambda: spool_writer.share.used == 0)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


async def until_full(spool_writer: SpoolingIntake) -> None:
    """Fill the spool, so that the next message has to wait."""
    await spool_writer.persist(Payload("lines", b"x" * 1_000_000, 1, {"service": "s"}))


def message(make: str) -> bytes:
    if make == "forward":
        return bytes(msgpack.packb(["app", 5, {"message": "x" * 200_000}]))
    return b"<13>" + b"x" * 30_000 + b"\n"


@pytest.mark.parametrize("make", ["forward", "syslog"])
async def test_what_waits_for_the_spool_at_the_stop_is_taken_or_counted(
    tmp_path: Path, make: str
) -> None:
    """Stopping waits for the spool; when its time is over, what was read is dropped by name."""
    making = forwarding() if make == "forward" else syslog()
    async with listening(tmp_path, making, drop_newest=False) as (source, spool_writer):
        await until_full(spool_writer)
        _, writer = await connect(source.endpoint)
        count = 1 if make == "forward" else 8
        writer.write(message(make) * count)
        writes = asyncio.ensure_future(writer.drain())
        await spool_writer.wait_for_waiting()
        stopping = asyncio.ensure_future(source.stop())
        await asyncio.wait([stopping], timeout=0.2)
        assert not stopping.done(), "it waits for the spool"
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        writes.cancel()
        writer.close()
        received = spool_writer.account.received - 1
        durable = sum(unit.count for unit in spool_writer.units()) - 1
        assert spool_writer.account.dropped["stopped"] == received - durable > 0
        assert (
            spool_writer.account.difference == 0 or spool_writer.account.held
        )  # what is spooled is held
        await wait_until_async(lambda: spool_writer.share.used == 0)


async def test_a_last_line_that_waits_for_the_spool_does_not_hold_up_the_end_of_the_stop(
    tmp_path: Path,
) -> None:
    async with listening(tmp_path, syslog(udp="127.0.0.1:0"), drop_newest=False) as (
        source,
        spool_writer,
    ):
        _, writer = await connect(source.endpoint)
        # The second has no line break: it is taken when the stop comes.
        writer.write(b"<13>hi\n<13>" + b"x" * 30_000)
        await wait_until_async(lambda: spool_writer.account.received == 1)
        await until_full(spool_writer)
        await spool_writer.persist(Payload("lines", b"x" * 20_000, 1, {"service": "s"}))
        # The source does not run: nobody looks at its datagrams before the stop.
        await send_datagrams(source.endpoints["udp"], b"<13>nobody has looked at it yet")
        stopping = asyncio.ensure_future(source.stop())
        await spool_writer.wait_for_waiting()
        stopping.cancel()
        await asyncio.wait([stopping], timeout=60)
        ended = stopping.done()
        spool_writer.journal.resize(1 << 30)  # whatever came of it, the test ends
        await asyncio.gather(stopping, return_exceptions=True)
        writer.close()
        assert ended
        assert spool_writer.account.dropped["stopped"] == 2
        await wait_until_async(lambda: spool_writer.share.used == 0)


async def test_what_cannot_wait_any_longer_for_the_spool_is_counted(tmp_path: Path) -> None:
    async with spooling(tmp_path, "net", drop_newest=False) as spool_writer:
        await until_full(spool_writer)
        keeping = asyncio.ensure_future(
            spool_writer.persist_or_drop(Payload("ndjson", b"x" * 200_000, 3))
        )
        await spool_writer.wait_for_waiting()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        assert keeping.cancelled()
        assert spool_writer.account.dropped["stopped"] == 3


async def test_a_request_that_the_stop_interrupts_is_counted_when_it_is_durable(
    tmp_path: Path,
) -> None:
    async with spooling(tmp_path, "net") as spool_writer:
        keeping = asyncio.ensure_future(spool_writer.persist(Payload("ndjson", b"{}", 1)))
        await asyncio.sleep(0)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await wait_until_async(lambda: len(spool_writer.units()) == 1)
        await wait_until_async(lambda: spool_writer.account.received == 1)


async def test_the_last_line_of_statsd_needs_no_newline(tmp_path: Path) -> None:
    section = StatsdSettings(type="statsd", udp=None, tcp="127.0.0.1:0", flush_interval_s=3600)

    def make(spool_writer: SpoolingIntake) -> Source:
        return StatsdSource(section, {"host.name": "h"}, spool_writer=spool_writer)

    async with listening(tmp_path, make) as (source, spool_writer):
        _, writer = await connect(source.endpoint)
        writer.write(b"a:1|c\nb:2|c")
        writer.close()
        await wait_until_async(lambda: spool_writer.account.notes["samples_aggregated"] == 2)
        await source.stop()
        assert {json.loads(line)["name"] for line in spool_writer.lines()} == {"a", "b"}
