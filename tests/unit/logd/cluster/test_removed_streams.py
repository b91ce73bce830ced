"""What a node keeps in memory of a stream that is deleted."""

import asyncio
import gc
import weakref
from pathlib import Path

from penstock.logd.metadata.streams import StreamConfig
from tests.support.one_node import one_node
from tests.support.waiting import wait_until_async

LOGS = StreamConfig(name="logs", subject="t.>")


def test_a_deleted_stream_is_freed_though_its_node_began_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with one_node(tmp_path, LOGS):
            pass
        async with one_node(tmp_path) as node:
            await wait_until_async(lambda: gc.get_freeze_count() > 0)
            partition = weakref.ref(node.partition("logs"))
            await node.engine.streams.delete("logs")

            def is_freed() -> bool:
                gc.collect()
                return partition() is None

            await wait_until_async(is_freed)

    try:
        asyncio.run(main())
    finally:
        gc.unfreeze()
