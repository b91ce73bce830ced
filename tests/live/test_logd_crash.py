"""kill -9 under load: what was acked is there, in order, byte for byte."""

import asyncio
import contextlib
import random
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from tests.live.test_logd_batches import batch, publish
from tests.support.logd import Logd

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

LOGS = {"name": "logs", "subject": "telemetry.logs.>"}
PUBLISHERS = 4
KILLS = 3


async def pause(stop: asyncio.Event) -> None:
    """Let a moment pass, less when the test ends."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.03):
            await stop.wait()


class Publisher:
    """Publishes numbered messages one after another, each again until it is acked."""

    def __init__(self, client: Client, number: int, rng: random.Random) -> None:
        self.client = client
        self.number = number
        self.rng = rng
        self.acked: dict[int, tuple[int, bytes]] = {}

    async def run(self, stop: asyncio.Event) -> None:
        js = self.client.jetstream()
        count = 0
        while not stop.is_set():
            payload = b"%d:%d:" % (self.number, count) + self.rng.randbytes(
                self.rng.randrange(2000)
            )
            headers = {"Nats-Msg-Id": f"{self.number}-{count}"}
            ack = None
            while ack is None and not stop.is_set():
                with contextlib.suppress(nats.errors.Error, nats.js.errors.Error):
                    ack = await js.publish(
                        f"telemetry.logs.p{self.number}", payload, headers=headers, timeout=0.5
                    )
                if ack is None:
                    await pause(stop)
            if ack is not None:
                self.acked[count] = (ack.seq - 1, payload)
            count += 1


class BatchPublisher:
    """Publishes batches in its own sequence; after a refusal it goes on from what logd has."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.acked: list[int] = []

    async def run(self, stop: asyncio.Event) -> None:
        last = 0
        while not stop.is_set():
            with contextlib.suppress(nats.errors.Error, TimeoutError):
                ack = await asyncio.wait_for(publish(self.client, batch(last, last + 1)), 0.5)
                if ack.nack is None:
                    last += 1
                    self.acked.append(last)
                elif ack.sequence is not None:
                    last = ack.sequence
                continue
            await pause(stop)


async def test_acked_records_survive_kills_in_order_and_equal(
    tmp_path: Path, nats_url: str
) -> None:
    rng = random.Random(7)
    client = await nats.connect(nats_url)
    stop = asyncio.Event()
    publishers = [Publisher(client, number, rng) for number in range(PUBLISHERS)]
    batches = BatchPublisher(client)
    with Logd(tmp_path / "logd", nats_url, [LOGS]) as logd:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(batches.run(stop))
            for publisher in publishers:
                tasks.create_task(publisher.run(stop))
            try:
                for kill in range(1, KILLS + 1):
                    async with asyncio.timeout(30):
                        while sum(len(p.acked) for p in publishers) < kill * 150:
                            await pause(stop)
                    await asyncio.to_thread(logd.restart, kill=True)
            finally:
                stop.set()
        stored = logd.values("logs")
        assert logd.daemon.stop() == 0
    await client.close()
    _check_plain(publishers, stored)
    _check_batches(batches, stored)


def _check_plain(publishers: list[Publisher], stored: list[bytes | None]) -> None:
    for publisher in publishers:
        assert len(publisher.acked) > KILLS
        for offset, payload in publisher.acked.values():
            assert stored[offset] == payload
        prefix = b"%d:" % publisher.number
        mine = [value for value in stored if value is not None and value.startswith(prefix)]
        numbers = [int(value.split(b":", 2)[1]) for value in mine]
        assert numbers == sorted(set(numbers)), "each once, in the publisher's order"


def _check_batches(batches: BatchPublisher, stored: list[bytes | None]) -> None:
    mine = [value for value in stored if value is not None and b"/" in value[:8]]
    mine = [value for value in mine if value.split(b"/")[0].isdigit() and len(value) < 12]
    sequences = [int(value.split(b"/")[0]) for value in mine]
    assert sequences == sorted(sequences)
    assert set(batches.acked) <= set(sequences)
    assert all(sequences.count(sequence) == 3 for sequence in set(sequences))
