"""The fetch endpoint and its client on real sockets, without a daemon, when things go wrong."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.logd.client import LogClient
from penstock.logd.client.decoder import ResponseDecoder
from penstock.logd.fetch_connection import FetchLimits, Response, SendingTurn
from penstock.logd.fetch_server import FetchServer
from penstock.logd.fetch_wire import Document

pytestmark = pytest.mark.live


class Interrupted(BaseException):
    """What a signal's handler may raise at any point."""


class NoStreams:
    """Answers every request with the empty list of streams."""

    async def answer(self, request: Document, turn: SendingTurn) -> Response:
        return Response({"streams": []})


@asynccontextmanager
async def serving() -> AsyncIterator[str]:
    server = FetchServer(NoStreams(), FetchLimits(connections_max=4))
    address = server.listen("127.0.0.1:0")
    running = asyncio.create_task(server.run())
    try:
        yield address
    finally:
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()


def ask(address: str) -> list[Any]:
    with LogClient(address) as log:
        return log.streams()


async def test_running_out_of_descriptors_does_not_end_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    accept = loop.sock_accept
    failures = [errno.EMFILE, errno.ECONNABORTED]

    async def accept_or_fail(listening: socket.socket) -> tuple[socket.socket, Any]:
        if failures:
            raise OSError(failures.pop(), "no")
        return await accept(listening)

    monkeypatch.setattr(loop, "sock_accept", accept_or_fail)
    async with serving() as address:
        assert await asyncio.to_thread(ask, address) == []
        assert failures == []


async def test_a_call_after_an_interrupted_one_gets_its_own_answer() -> None:
    def interrupt_and_ask(address: str) -> list[Any]:
        with LogClient(address) as log:
            filled = ResponseDecoder.filled

            def interrupted(decoder: ResponseDecoder, count: int) -> None:
                if filled(decoder, count) is None:
                    raise Interrupted

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ResponseDecoder, "filled", interrupted)
                with pytest.raises(Interrupted):
                    log.streams()
            return log.streams()

    async with serving() as address:
        assert await asyncio.to_thread(interrupt_and_ask, address) == []
