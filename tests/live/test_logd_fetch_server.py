"""The fetch endpoint and its client on real sockets, without a daemon, when things go wrong."""

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog
from typing_extensions import override

from penstock.logd.api.operations import Document
from penstock.logd.api.protocol import REQUEST_HEAD, RESPONSE_HEAD, ResponseDecoder, encode_request
from penstock.logd.api.server import Api, FetchLimits, FetchServer, Response, ResponseSlot
from penstock.logd.client import LogClient
from penstock.logd.errors import RefusedError
from penstock.logd.security.principal import Principal
from penstock.logd.storage import FileRange
from penstock.logd.storage.disk import RealFile
from tests.support.descriptors import no_more_descriptors
from tests.support.fetch_desk import LetsIn
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.live


class Interrupted(BaseException):
    """What a signal's handler may raise at any point."""


class NoStreams(LetsIn):
    """Answers every request with the empty list of streams."""

    async def answer(self, request: Document, turn: ResponseSlot) -> Response:
        return Response({"node": "a", "streams": []})


@asynccontextmanager
async def serving(
    api: Api | None = None, limits: FetchLimits | None = None
) -> AsyncIterator[tuple[str, FetchServer]]:
    server = FetchServer(api or NoStreams(), limits or FetchLimits(max_connections=4))
    address = server.listener.listen("127.0.0.1:0")
    running = asyncio.create_task(server.listener.run())
    try:
        yield address, server
    finally:
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()


def ask(address: str) -> list[Any]:
    with LogClient(address) as log:
        return log.streams()


class Choosy(NoStreams):
    """Lets nobody send anything."""

    @override
    def admit(self, request: Document, caller: Principal) -> None:
        raise RefusedError("PERMISSION_DENIED", "not you")


async def test_what_follows_a_request_that_is_refused_is_not_waited_for_and_not_kept() -> None:
    size = 3 * 65_536 + 1
    async with serving(Choosy()) as (address, server):
        reader, writer = await connect(address)
        writer.write(encode_request({"api": "restore", "stream": "x", "upload": size, "id": 1}))
        refused, _ = await receive(reader)
        assert (refused["id"], refused["error"]["code"]) == (1, "PERMISSION_DENIED")
        assert server.counts.uploads == 0
        writer.write(bytes(size) + encode_request({"api": "streams", "id": 2}))
        assert (await receive(reader))[0] == {"id": 2, "node": "a", "streams": []}, (
            "it goes on behind that"
        )
        writer.write(encode_request({"api": "restore", "upload": "much", "id": 3}))
        assert (await receive(reader))[0]["error"]["code"] == "BAD_REQUEST"
        assert await reader.read() == b"", "nobody knows where that ends"
        await hang_up(writer)


async def test_a_reader_that_never_pauses_takes_turns_with_everybody_else() -> None:
    async with serving() as (address, server):
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as flood:
            flood.sendall((REQUEST_HEAD.pack(1) + b"x") * 2000)
            seen = {server.counts.requests}
            async with asyncio.timeout(20):
                while server.counts.requests < 2000:
                    await asyncio.sleep(0)
                    seen.add(server.counts.requests)
    assert len(seen) > 1000


async def test_running_out_of_descriptors_does_not_end_the_server() -> None:
    async with serving() as (address, _):
        host, port = address.split(":")
        with socket.socket() as connection:
            connection.setblocking(False)
            with structlog.testing.capture_logs() as told, no_more_descriptors():
                await asyncio.get_running_loop().sock_connect(connection, (host, int(port)))
                await wait_until_async(
                    lambda: "connection_accept_failed" in [it["event"] for it in told],
                    what="a connection that is not accepted",
                )
            reader, writer = await asyncio.open_connection(sock=connection)
            writer.write(encode_request({"api": "streams", "id": 1}))
            assert (await receive(reader))[0]["streams"] == []
            await hang_up(writer)


async def test_a_call_after_an_interrupted_one_gets_its_own_answer() -> None:
    def interrupt_and_ask(address: str) -> list[Any]:
        with LogClient(address) as log:
            filled = ResponseDecoder.filled

            def interrupted(decoder: ResponseDecoder, count: int) -> None:
                if filled(decoder, count) is None:
                    raise Interrupted

            with pytest.MonkeyPatch.context() as patch:
                # As Ctrl-C between two reads of an answer does: a signal would come anywhere.
                patch.setattr(ResponseDecoder, "filled", interrupted)
                with pytest.raises(Interrupted):
                    log.streams()
            return log.streams()

    async with serving() as (address, _):
        assert await asyncio.to_thread(interrupt_and_ask, address) == []


class Slow(LetsIn):
    """Answers when it is told to; with a payload of its own if it has one.

    Attributes:
        asked: The ids that were asked for, in order.
        cancelled: How many were let go unanswered.
    """

    def __init__(self, payload: bytes = b"", ranges: list[FileRange] | None = None) -> None:
        self.asked: list[int] = []
        self.cancelled = 0
        self.go: dict[int, asyncio.Event] = {}
        self.payload = payload
        self.ranges = ranges or []

    async def answer(self, request: Document, turn: ResponseSlot) -> Response:
        number = request["id"]
        self.asked.append(number)
        if request["api"] == "empty":
            return Response({})
        if request["api"] == "now":
            await turn.take()
            return Response({}, self.ranges, self.payload)
        self.go[number] = asyncio.Event()
        try:
            await self.go[number].wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Response({})


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(address: str) -> Streams:
    host, port = address.rsplit(":", 1)
    return await asyncio.open_connection(host, int(port))


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


async def receive(reader: asyncio.StreamReader) -> tuple[Document, bytes]:
    async with asyncio.timeout(20):
        header, payload = RESPONSE_HEAD.unpack(await reader.readexactly(RESPONSE_HEAD.size))
        document: Document = orjson.loads(await reader.readexactly(header))
        return document, await reader.readexactly(payload)


async def test_64_requests_of_one_connection_are_answered_as_they_become_ready() -> None:
    api = Slow()
    async with serving(api, FetchLimits(outstanding_max=64)) as (address, server):
        reader, writer = await connect(address)
        numbers = list(range(1, 65))
        writer.write(b"".join(encode_request({"api": "wait", "id": n}) for n in numbers))
        await wait_until_async(lambda: len(api.go) == 64)
        writer.write(encode_request({"api": "wait", "id": 65}))
        refused, _ = await receive(reader)
        assert (refused["id"], refused["error"]["code"]) == (65, "TOO_MANY_REQUESTS")
        for number in reversed(numbers):
            api.go[number].set()
            assert (await receive(reader))[0] == {"id": number}
        assert (api.asked, server.counts.outstanding) == (numbers, 0)
        writer.write(encode_request({"api": "now", "id": 66}))
        assert (await receive(reader))[0] == {"id": 66}
        await hang_up(writer)


async def test_requests_of_all_connections_are_bounded_too_and_end_with_their_connection() -> None:
    api = Slow()
    limits = FetchLimits(outstanding_total_max=3)
    async with serving(api, limits) as (address, server):
        first, second = await connect(address), await connect(address)
        for number in (1, 2, 3):
            first[1].write(encode_request({"api": "wait", "id": number}))
        await wait_until_async(lambda: len(api.go) == 3)
        second[1].write(encode_request({"api": "wait", "id": 4}))
        refused, _ = await receive(second[0])
        assert refused["error"] == {
            "code": "TOO_MANY_REQUESTS",
            "message": "3 requests are under way on all connections; ask again when some are done",
            "limit": 3,
        }
        await hang_up(first[1])
        await wait_until_async(lambda: api.cancelled == 3 and server.listener.connections == 1)
        assert server.counts.outstanding == 0
        second[1].write(encode_request({"api": "now", "id": 5}))
        assert (await receive(second[0]))[0] == {"id": 5}
        await hang_up(second[1])


async def test_a_reader_that_takes_nothing_is_cut_off_and_delays_nobody() -> None:
    api = Slow(payload=bytes(32 * 1024 * 1024))
    async with serving(api, FetchLimits(stall_s=0.3)) as (address, server):
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=20) as stalled:
            for number in (1, 2):
                stalled.sendall(encode_request({"api": "now", "id": number}))
            await wait_until_async(lambda: api.asked == [1, 2])
            reader, writer = await connect(address)
            writer.write(encode_request({"api": "empty", "id": 3}))
            assert await receive(reader) == ({"id": 3}, b"")
            await wait_until_async(lambda: server.counts.stalled == 1)
        await hang_up(writer)


class NoSendfile(RealFile):
    """Its descriptor is of a kind that sendfile is not for."""

    def __init__(self, path: Path, flags: int) -> None:
        super().__init__(path, flags)
        self._null = RealFile(Path("/dev/null"), os.O_RDONLY)
        self._data = path.read_bytes()

    @override
    def fileno(self) -> int:
        return self._null.fileno()

    @override
    def read(self, position: int, length: int) -> bytes:
        return self._data[position : position + length]


class OnlySendfile(RealFile):
    """It cannot be read."""

    @override
    def read(self, position: int, length: int) -> bytes:
        raise AssertionError("it is to be sent without being read")


@pytest.mark.parametrize("kind", [OnlySendfile, NoSendfile])
async def test_a_range_arrives_whole_with_sendfile_and_without(
    tmp_path: Path, kind: type[RealFile]
) -> None:
    data = random.Random(1).randbytes(3_000_001)
    (tmp_path / "data").write_bytes(data)
    file = kind(tmp_path / "data", os.O_RDONLY)
    part = FileRange(file, 1, len(data) - 2, 0, 1)
    async with serving(Slow(ranges=[part]), FetchLimits()) as (address, _):
        reader, writer = await connect(address)
        writer.write(encode_request({"api": "now", "id": 1}))
        assert (await receive(reader))[1] == data[1:-1]
        await hang_up(writer)
