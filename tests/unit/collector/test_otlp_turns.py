"""How long OTLP requests wait, to be read and to be taken apart."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.collector.limits import MIB, OTLP_RETRY_AFTER_S
from penstock.collector.sources import otlp_grpc, otlp_http
from tests.support.receiving import connect, listening, otlp
from tests.support.waiting import wait_until_async
from tests.unit.collector.test_receiving import a_request, export, refusal


async def test_a_request_waits_for_its_turn_no_longer_than_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in (otlp_grpc, otlp_http):
        monkeypatch.setattr(part, "ROOM_WAIT_S", 0.0)
    async with listening(tmp_path, otlp()) as (source, intake):
        while not source._mapping.locked():
            await source._mapping.acquire()
        code, delay_s = await refusal(source.endpoints["grpc"], a_request())
        assert (code, delay_s) == (grpc.StatusCode.RESOURCE_EXHAUSTED, OTLP_RETRY_AFTER_S)
        reader, writer = await connect(source.endpoints["http"])
        body = a_request()
        head = f"POST /v1/logs HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        writer.write(head.encode() + b"content-type: application/x-protobuf\r\n\r\n" + body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 429 ")
        writer.close()
        await writer.wait_closed()
        source._mapping.release()
        assert await export(source.endpoints["grpc"], body) == b""
        await wait_until_async(lambda: intake.share.used == 0)


async def test_the_time_a_grpc_request_waited_to_be_read_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp_grpc, "ROOM_WAIT_S", 60.0)
    async with listening(tmp_path, otlp(), share_bytes=MIB) as (source, intake):
        until: list[float] = []
        taken = source._taken

        async def noted(lines: Any, charge: Any, until_s: float) -> Any:
            until.append(until_s)
            return await taken(lines, charge, until_s)

        monkeypatch.setattr(source, "_taken", noted)
        intake.share.take(1)
        waiting = asyncio.ensure_future(export(source.endpoints["grpc"], a_request()))
        await wait_until_async(lambda: bool(intake.share._waiters))
        now_s = asyncio.get_running_loop().time()
        intake.share.give(1)
        assert await waiting == b""
        assert until[0] <= now_s + 60
