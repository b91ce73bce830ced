"""Publish to logd's streams over NATS and know that it is stored.

    async with connected("nats://127.0.0.1:4222") as publisher:
        ack = await publisher.publish("telemetry.logs.shop", b"hello")
        print(ack.stream, ack.offset)
        await publisher.publish("prices.tea", b"3.20", key=b"tea")       # compaction keeps the last
        await publisher.delete("prices.tea", key=b"tea")                 # a tombstone
        records = [Record("telemetry.logs.shop", b"%d" % n, time.time_ns()) for n in range(1000)]
        await publisher.publish_batch("telemetry.logs.shop", records)    # one frame, one ack

Pipelined: `submit` returns once the message may be sent, with a future that ends with the ack.

        acks = [await publisher.submit("telemetry.logs.shop", line) for line in lines]
        await asyncio.gather(*acks)

To a stream with several partitions, each key to one of them (`partition_of`):

        await publisher.publish("prices", b"3.20", key=b"tea", partitions=8)  # prices.1, ...

From threads, without an event loop of one's own:

    with BlockingPublisher("nats://127.0.0.1:4222") as publisher:
        publisher.publish("telemetry.logs.shop", b"hello")

An ack means stored by the stream's policy. What is not acked is sent again, under the same message
id or batch sequence, until `PublishOptions.retry_s` is over: it is stored once.

Order. Messages are sent in the order of the calls. Batches of a subject are stored in that order,
whatever fails. So are plain messages while nothing fails; one that has to be sent again may be
overtaken by those sent after it, by fewer than `max_in_flight`. With `max_in_flight=1` they are
stored in order, one at a time.
"""

from penstock.base.extras import require

require("logd", "google_crc32c", "nats", "orjson", "pyarrow")

from penstock.logd.format.acks import Nack, PubAck
from penstock.logd.format.batch import Record
from penstock.logd.publisher.blocking import BlockingPublisher
from penstock.logd.publisher.connecting import connect_within, connected, nats_client
from penstock.logd.publisher.publisher import (
    BatchPartsError,
    Publisher,
    PublishOptions,
    PublishRefusedError,
    partition_of,
    partition_subject,
)

__all__ = [
    "BatchPartsError",
    "BlockingPublisher",
    "Nack",
    "PubAck",
    "PublishOptions",
    "PublishRefusedError",
    "Publisher",
    "Record",
    "connect_within",
    "connected",
    "nats_client",
    "partition_of",
    "partition_subject",
]
