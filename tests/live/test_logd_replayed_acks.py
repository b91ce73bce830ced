"""Acks that are sent again, or sent by somebody else, over a real NATS server."""

import asyncio
from pathlib import Path
from typing import Any

import nats
import pytest

from penstock.logd.errors import UnavailableError
from penstock.logd.format.acks import PubAck, encode_ack
from penstock.logd.publisher import Publisher, PublishOptions
from tests.support.nats_server import nats_server

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]


def ack(offset: int, stream: str = "orders") -> bytes:
    return encode_ack(PubAck(stream=stream, offset=offset, epoch=1))


async def test_an_ack_counts_for_its_own_message_only(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        client = await nats.connect(server.url)
        other = await nats.connect(server.url)
        inboxes: list[str] = []

        async def store(message: Any) -> None:
            """Stores the first message; of others it sends acks that are not theirs."""
            inboxes.append(message.reply)
            if message.data == b"first":
                await other.publish(message.reply, ack(0))
                return
            await other.publish(inboxes[0], ack(1))  # to the one that has its answer
            await other.publish(inboxes[0] + "x", ack(1))
            await other.publish(message.reply, ack(1, "payments"))  # of another stream

        await other.subscribe("orders.>", cb=store)
        await other.flush()
        options = PublishOptions(stream="orders", ack_timeout_s=20, retry_s=2)
        publisher = Publisher(client, options, pauses_s=(0.01, 0.05))
        stored = await publisher.publish("orders.a", b"first")
        assert stored.offset == 0
        with pytest.raises(UnavailableError, match="payments"):
            await publisher.publish("orders.a", b"second")
        assert len(set(inboxes)) == len(inboxes) > 2  # each try listens at an inbox of its own
        await publisher.close()
        await asyncio.gather(client.close(), other.close())
