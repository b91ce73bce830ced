"""Connecting ends in time, whatever nats-py does with the request to stop; it says why it waits."""

import asyncio
from typing import Any

import pytest

from penstock.logd.errors import UnavailableError
from penstock.logd.publisher import PublishOptions, connect_within, connected
from tests.support.processes import free_port
from tests.support.waiting import wait_until_async


class Deaf:
    """Connects for ever and loses the first cancellations, as `asyncio.wait_for` can."""

    def __init__(self, lost: int) -> None:
        self.lost = lost

    async def connect(self, **_: Any) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if not self.lost:
                    raise
                self.lost -= 1


@pytest.mark.parametrize("lost", [0, 1, 2])
async def test_a_lost_cancellation_is_sent_again(lost: int) -> None:
    client: Any = Deaf(lost)
    with pytest.raises(TimeoutError):
        await connect_within(client, 0.01)
    assert client.lost == 0


async def test_who_is_cancelled_leaves_nothing_running() -> None:
    client: Any = Deaf(1)
    connecting = asyncio.create_task(connect_within(client, 100))
    await asyncio.sleep(0)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert asyncio.all_tasks() == {asyncio.current_task()}


INFO = b'INFO {"server_id":"x","version":"2.10.0","headers":true,"max_payload":1048576}\r\n'


class NatsServer:
    """Answers pings at a port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._clients: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def stop(self) -> None:
        self._server.close()
        while self._clients:
            self._clients.pop().close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.append(writer)
        writer.write(INFO)
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")


async def test_why_no_server_is_reached_is_said_once_an_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """nats-py tells each attempt, and a command printed them all."""
    server = NatsServer(free_port())
    tries: dict[str, Any] = {"reconnect_time_wait": 0.02}
    url = f"nats://127.0.0.1:{server.port}"
    refused = f"NATS: [Errno 111] Connect call failed ('127.0.0.1', {server.port})"
    with pytest.raises(UnavailableError, match="Errno 111"):
        async with connected(url, PublishOptions(connect_timeout_s=0.3), **tries):
            pytest.fail("nobody listens")
    assert caplog.messages == [refused]
    caplog.clear()
    await server.start()
    async with connected(url, **tries) as publisher:
        for outages in (1, 2):
            await server.stop()
            await wait_until_async(lambda: refused in caplog.messages)
            await server.start()
            await wait_until_async(lambda: publisher.connected)
            assert caplog.messages.count(refused) == 1, outages
            caplog.clear()
    await server.stop()
