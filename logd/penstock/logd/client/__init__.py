"""Read a logd's streams and manage them, over its framed TCP protocol; no daemon's code.

Blocking, for scripts and Spark executors (needs pyarrow, google-crc32c and orjson only):

    with LogClient("127.0.0.1:9293") as log:
        start, end = log.offsets("logs")
        for offset, record in log.records("logs", start, end):      # what is there now
            print(offset, record.value)
        for header, batch in log.follow_batches("logs", "latest"):  # Arrow, for ever
            print(header.base_offset, batch.num_rows)

The same on an event loop, with many calls at a time over one connection:

    async with AsyncLogClient("127.0.0.1:9293") as log:
        only_shop = FollowOptions(subject="telemetry.*.shop", out_of_range="earliest")
        async for offset, record in log.follow("logs", "earliest", only_shop):
            print(offset, record.value)

A consumer that goes on where it stopped; each record is seen at least once:

    with LogClient("127.0.0.1:9293") as log:
        cursor = log.cursor("billing", "logs")
        for offset, record in cursor.follow(commit=CommitPolicy(records=1000, seconds=5)):
            print(offset, record.value)

Of a cluster, name one node or a few (`"host-a:9293,host-b:9293"`): the client learns the others and
goes to the leader of what it reads. When that one is lost it waits for the next and goes on. To
spread the load of reading, `LogClient(..., prefer="replica")` reads from replicas in sync.

Of a cluster, several consumers share the partitions of streams as members of a group:

    with LogClient("127.0.0.1:9293") as log, log.join_group("billing", "logs") as consumer:
        for item in consumer:                    # item.partition, item.offset, item.record
            print(item.offset, item.record.value)

Each record is seen at least once. For exactly once, store `item.next_offset` with the results in
one transaction, and say by `positions` where that store wants to go on.

A logd with TLS that wants to know who asks (docs/security.md):

    access = Access(ca_file="ca.pem", token_file="token")
    with LogClient("logd.example:9293", access=access) as log:
        print(log.streams())

Publishing needs NATS, not this connection: `penstock.logd.publisher`.

A range of offsets: `records`, `batches`. All that comes: `follow`, `follow_batches`, or those of
`cursor` from a committed position. A share of the partitions: `join_group`. Whole frames: `fetch`.

`follow` and `follow_batches` go on by themselves after logd was away. They never pass anything
over on their own: an offset that is gone is an error unless `out_of_range` says where to go on, and
a stream that was deleted and made again always is one.

The modules are imported as their names are asked for: a command that lists streams does without an
event loop and without Arrow.
"""

from typing import TYPE_CHECKING

from penstock.base.extras import require
from penstock.base.lazy_module import lazy_names

require("logd", "google_crc32c", "orjson", "pyarrow")

if TYPE_CHECKING:
    from penstock.logd.api.models import (
        ClusterInfo,
        Cursor,
        GroupInfo,
        GroupMemberInfo,
        GroupPartitionInfo,
        NodeInfo,
        PartitionInfo,
        StreamInfo,
    )
    from penstock.logd.client.access import ANYBODY, Access
    from penstock.logd.client.async_client import AsyncCursorHandle, AsyncLogClient
    from penstock.logd.client.blocking_group import GroupConsumer, Positions
    from penstock.logd.client.client import CursorHandle, LogClient
    from penstock.logd.client.following import (
        CommitPolicy,
        FollowOptions,
        GroupOptions,
        OutOfRange,
        Position,
        passes,
    )
    from penstock.logd.client.group_consumer import (
        AsyncGroupConsumer,
        AsyncPositions,
        GroupRecord,
        GroupRows,
    )
    from penstock.logd.client.results import Fetched, OffsetRange
    from penstock.logd.client.routing import Prefer
    from penstock.logd.format.rows import (
        Frame,
        batch_records,
        decoded_size,
        slice_rows,
        split_frames,
    )
    from penstock.logd.metadata.records import GroupPartition

__all__ = [
    "ANYBODY",
    "Access",
    "AsyncCursorHandle",
    "AsyncGroupConsumer",
    "AsyncLogClient",
    "AsyncPositions",
    "ClusterInfo",
    "CommitPolicy",
    "Cursor",
    "CursorHandle",
    "Fetched",
    "FollowOptions",
    "Frame",
    "GroupConsumer",
    "GroupInfo",
    "GroupMemberInfo",
    "GroupOptions",
    "GroupPartition",
    "GroupPartitionInfo",
    "GroupRecord",
    "GroupRows",
    "LogClient",
    "NodeInfo",
    "OffsetRange",
    "OutOfRange",
    "PartitionInfo",
    "Position",
    "Positions",
    "Prefer",
    "StreamInfo",
    "batch_records",
    "decoded_size",
    "passes",
    "slice_rows",
    "split_frames",
]

if not TYPE_CHECKING:  # else a type checker would take any name for one of these
    __getattr__ = lazy_names(
        __name__,
        "penstock.logd",
        {
            "api.models": (
                "ClusterInfo Cursor GroupInfo GroupMemberInfo GroupPartitionInfo NodeInfo"
                " PartitionInfo StreamInfo"
            ),
            "client.access": "ANYBODY Access",
            "client.async_client": "AsyncCursorHandle AsyncLogClient",
            "client.blocking_group": "GroupConsumer Positions",
            "client.client": "CursorHandle LogClient",
            "client.following": (
                "CommitPolicy FollowOptions GroupOptions OutOfRange Position passes"
            ),
            "client.group_consumer": "AsyncGroupConsumer AsyncPositions GroupRecord GroupRows",
            "client.results": "Fetched OffsetRange",
            "client.routing": "Prefer",
            "format.rows": "Frame batch_records decoded_size slice_rows split_frames",
            "metadata.records": "GroupPartition",
        },
    )
