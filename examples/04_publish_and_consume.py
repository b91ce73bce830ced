"""Publish to a stream and consume it with a cursor, which goes on where it stopped.

Needs a running logd with a stream `prices` of `prices.>`, and its NATS (the extra `logd`):

    python examples/04_publish_and_consume.py nats://127.0.0.1:4222 127.0.0.1:9293

Printed by the first run; a second one goes on at offset 2:

    stored in prices at 0
    0 tea 3.20
    1 tea deleted
"""

import sys

from penstock.logd.client import LogClient
from penstock.logd.publisher import BlockingPublisher

nats_url, server = sys.argv[1:]

with BlockingPublisher(nats_url) as publisher:
    ack = publisher.publish("prices.tea", b"3.20", key=b"tea")
    print("stored in", ack.stream, "at", ack.offset)
    publisher.delete("prices.tea", key=b"tea")

with LogClient(server) as log:
    cursor = log.cursor("example", "prices")
    committed = cursor.get()
    start, end = committed.offset if committed else 0, log.offsets("prices").end
    for offset, record in log.records("prices", start, end):
        value = "deleted" if record.value is None else record.value.decode()
        print(offset, (record.key or b"").decode(), value)
    cursor.commit(end)
