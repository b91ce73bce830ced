"""How long OTLP requests wait, to be read and to be taken apart."""

import asyncio
import contextlib
from pathlib import Path

import grpc
import grpc.aio
import pytest

from penstock.collector.decode.otlp.messages import Encoding, Signal
from penstock.collector.limits import MIB, OTLP_RETRY_AFTER_S, SpoolWriterLimits
from penstock.collector.sources.otlp.grpc import OtlpGrpc
from penstock.collector.sources.otlp.response import Answer, Code
from penstock.collector.sources.otlp.settings import OtlpSettings
from penstock.collector.spool.memory_budget import Charge
from tests.support.receiving import connect, listening, otlp
from tests.support.spool_writer import spooling
from tests.support.waiting import wait_until_async
from tests.unit.collector.test_receiving import a_request, export, refusal

LONG_RECORDS = 90_000
"""Records of a request that is taken apart for a second or longer."""


@pytest.mark.parametrize("part", ["grpc", "http"])
async def test_a_request_waits_for_its_turn_no_longer_than_for_room(
    tmp_path: Path, part: str
) -> None:
    """Two are taken apart at once; the third comes while they are."""
    limits = SpoolWriterLimits(request_room_wait_s=0.0)
    making = otlp(max_message_bytes=4 * MIB)
    async with listening(tmp_path, making, limits=limits, spool_bytes=64 * MIB) as (
        source,
        spool_writer,
    ):
        endpoint = source.endpoints["grpc"]
        long = a_request(LONG_RECORDS)
        taking = [asyncio.ensure_future(export(endpoint, long)) for _ in range(2)]
        await wait_until_async(lambda: spool_writer.share.used == 2 * len(long))
        await (refused_by_grpc(endpoint) if part == "grpc" else refused_by_http(source.endpoints))
        assert not spool_writer.spool.undurable, "the two are still taken apart"
        assert await asyncio.gather(*taking) == [b"", b""]
        assert await export(endpoint, a_request()) == b""
        await wait_until_async(lambda: spool_writer.share.used == 0)


async def refused_by_grpc(endpoint: str) -> None:
    code, delay_s = await refusal(endpoint, a_request())
    assert (code, delay_s) == (grpc.StatusCode.RESOURCE_EXHAUSTED, OTLP_RETRY_AFTER_S)


async def refused_by_http(endpoints: dict[str, str]) -> None:
    reader, writer = await connect(endpoints["http"])
    body = a_request()
    head = f"POST /v1/logs HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    writer.write(head.encode() + b"content-type: application/x-protobuf\r\n\r\n" + body)
    assert (await reader.readline()).startswith(b"HTTP/1.1 429 ")
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_the_time_a_grpc_request_waited_to_be_read_counts(tmp_path: Path) -> None:
    until: list[float] = []

    async def take(_: Signal, __: bytes, ___: Encoding, ____: Charge, until_s: float) -> Answer:
        until.append(until_s)
        return Answer(Code.OK, b"")

    limits = SpoolWriterLimits(request_room_wait_s=60.0)
    section = OtlpSettings(type="otlp", grpc="127.0.0.1:0", max_message_bytes=MIB)
    async with spooling(tmp_path, "net", share_bytes=MIB, limits=limits) as spool_writer:
        server = OtlpGrpc(section, take, spool_writer)
        endpoint = await server.start("127.0.0.1:0", None)
        spool_writer.leave_room(MIB - 1)
        waiting = asyncio.ensure_future(export(endpoint, a_request()))
        await spool_writer.wait_for_awaited()
        now_s = asyncio.get_running_loop().time()
        spool_writer.give_room()
        assert await waiting == b""
        await server.stop()
        assert until[0] <= now_s + 60
