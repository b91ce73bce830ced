"""Batch envelopes by producer sequence, against a real logd."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from penstock.logd.format.acks import Nack, PubAck, decode_ack
from penstock.logd.format.batch import Record, build_batch, encode_body
from penstock.logd.format.envelope import (
    COOKIE,
    TYPE_BATCH,
    TYPE_BATCH_ACK,
    BatchPayload,
    decode_envelope,
    encode_batch,
    encode_envelope,
)
from tests.support.logd import Logd

pytestmark = pytest.mark.live

LOGS = {"name": "logs", "subject": "telemetry.logs.>"}
SUBJECT = "telemetry.logs.app"
PRODUCER = bytes(range(16))


@pytest.fixture
def logd(tmp_path: Path, nats_url: str) -> Iterator[Logd]:
    with Logd(tmp_path / "logd", nats_url, [LOGS]) as running:
        yield running


@pytest.fixture
async def client(nats_url: str) -> AsyncIterator[Client]:
    connection = await nats.connect(nats_url)
    yield connection
    await connection.close()


def batch(previous: int, sequence: int, count: int = 3, *, claim: int | None = None) -> bytes:
    records = [
        Record(SUBJECT, b"%d/%d" % (sequence, number), 1_700_000_000_000_000_000 + number)
        for number in range(count)
    ]
    return encode_batch(
        BatchPayload(
            schema_version=1,
            record_count=claim or count,
            producer_id=PRODUCER,
            previous_sequence=previous,
            sequence=sequence,
            body=encode_body(build_batch(records), compression="zstd"),
        )
    )


async def publish(client: Client, data: bytes) -> PubAck:
    reply = await client.request(SUBJECT, data, timeout=10)
    envelope = decode_envelope(reply.data)
    assert envelope is not None
    assert envelope.type == TYPE_BATCH_ACK
    return decode_ack(bytes(envelope.payload))


async def test_batches_of_a_producer_are_stored_once_and_in_order(
    logd: Logd, client: Client
) -> None:
    first = await publish(client, batch(0, 10))
    assert (first.nack, first.offset, first.count, first.duplicate) == (None, 2, 3, False)
    repeated = await publish(client, batch(0, 10))
    assert (repeated.nack, repeated.offset, repeated.duplicate) == (None, 2, True)
    gap = await publish(client, batch(20, 30))
    assert (gap.nack, gap.sequence) == (Nack.SEQUENCE_GAP, 10)
    second = await publish(client, batch(10, 30))
    assert (second.nack, second.offset) == (None, 5)
    old = await publish(client, batch(0, 10))
    assert (old.offset, old.duplicate) == (-1, True)
    assert logd.values("logs") == [b"10/0", b"10/1", b"10/2", b"30/0", b"30/1", b"30/2"]


async def test_unknown_producer_is_told_to_begin_again(logd: Logd, client: Client) -> None:
    refused = await publish(client, batch(5, 6))
    assert (refused.nack, refused.sequence) == (Nack.UNKNOWN_PRODUCER, 0)
    assert logd.values("logs") == []


async def test_sequences_survive_a_kill(logd: Logd, client: Client) -> None:
    first = await publish(client, batch(0, 1))
    await asyncio.to_thread(logd.restart, kill=True)
    again = await publish(client, batch(0, 1))
    assert (again.offset, again.duplicate) == (2, True)
    following = await publish(client, batch(1, 2))
    assert (following.offset, following.duplicate) == (5, False)
    assert following.epoch > first.epoch
    assert len(logd.values("logs")) == 6


@pytest.mark.parametrize("damage", ["missing", "garbage"])
async def test_sequences_are_found_in_the_log_when_their_snapshot_is_of_no_use(
    logd: Logd, client: Client, damage: str
) -> None:
    await publish(client, batch(0, 1))
    assert logd.daemon.stop() == 0
    (snapshot,) = logd.data_dir.glob("streams/*/0/producers")
    snapshot.unlink() if damage == "missing" else snapshot.write_bytes(b"garbage")
    logd.daemon.start()
    again = await publish(client, batch(0, 1))
    assert (again.offset, again.duplicate) == (2, True)


async def test_a_batch_that_is_not_what_it_says_is_refused(logd: Logd, client: Client) -> None:
    lying = await publish(client, batch(0, 1, claim=7))
    assert lying.nack is Nack.BAD_BATCH
    assert "7" in lying.description
    garbage = BatchPayload(
        schema_version=1,
        record_count=1,
        producer_id=PRODUCER,
        previous_sequence=0,
        sequence=1,
        body=b"\xff" * 64,
    )
    assert (await publish(client, encode_batch(garbage))).nack is Nack.BAD_BATCH
    short = await publish(client, encode_envelope(TYPE_BATCH, b"short"))
    assert short.nack is Nack.BAD_BATCH
    assert logd.values("logs") == []


async def test_a_damaged_envelope_is_a_plain_message(logd: Logd, client: Client) -> None:
    damaged = COOKIE + b"\x00\xff\xff\x40 and so on"
    ack = await client.jetstream().publish(SUBJECT, damaged)
    assert ack.seq == 1
    assert logd.values("logs") == [damaged]
    assert logd.stage("logs")["detail"]["malformed_envelopes"] == 1
