"""The fetch api of a logd that is in no cluster."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.logd.api.operations import FetchApi, LoneGroups
from penstock.logd.api.server import ResponseSlot
from penstock.logd.errors import RefusedError
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.partition.cursors import CursorStore
from penstock.logd.standalone import LoneStreams, StreamSet
from tests.support.partition_context import QuietLink, make_context

LOGS = StreamConfig(name="logs", subject="t.>")


@asynccontextmanager
async def api(directory: Path) -> AsyncIterator[FetchApi]:
    numbers = itertools.count()
    streams = StreamSet(
        directory,
        QuietLink(),
        make_context=lambda _: make_context(),
        new_incarnation=lambda: f"{next(numbers)}",
    )
    await streams.start([LOGS])
    cursors = CursorStore(streams, cursors_max=10)
    endpoints = {"fetch": "127.0.0.1:1", "admin": "127.0.0.1:2"}
    try:
        lone = LoneStreams("me", streams, cursors, lambda: endpoints)
        yield FetchApi(lone, cursors, LoneGroups("me"))
    finally:
        await streams.close()


async def ask(found: FetchApi, name: str, **request: Any) -> dict[str, Any]:
    answer = await found.answer({"api": name} | request, ResponseSlot(asyncio.Lock()))
    return answer.header


async def test_a_lone_logd_is_a_cluster_of_one_without_a_name(tmp_path: Path) -> None:
    async with api(tmp_path) as found:
        itself = {"node": "me", "fetch": "127.0.0.1:1", "admin": "127.0.0.1:2", "rack": ""}
        assert await ask(found, "cluster") == {
            "cluster": None,
            "controller": "me",
            "node": "me",
            "nodes": [itself | {"state": "active", "live": True}],
        }


async def test_a_partition_is_described_with_who_has_it(tmp_path: Path) -> None:
    async with api(tmp_path) as found:
        answer = await ask(found, "streams", stream="logs")
        assert answer["node"] == "me"
        assert answer["streams"][0]["partitions"] == [
            {
                "partition": 0,
                "start_offset": 0,
                "high_watermark": -1,
                "end_offset": 0,
                "epoch": 1,
                "size_bytes": 0,
                "damaged_offsets": 0,
                "leader": "me",
                "leader_epoch": 1,
                "replicas": ["me"],
                "isr": ["me"],
                "observers": [],
                "target": None,
            }
        ]


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("alter_stream", {"stream": "logs", "options": {"fsync": "never"}}),
        ("set_mode", {"stream": "logs", "paused": True}),
        ("drain", {"node": "me"}),
        ("remove_node", {"node": "me"}),
        ("move", {"stream": "logs", "partition": 0, "replicas": ["other"]}),
        ("move", {"stream": "logs", "partition": 0, "replicas": None}),
        ("rebalance", {}),
        ("step_down", {"heir": None}),
        ("create_stream", {"config": {"name": "a", "subject": "a", "replication_factor": 3}}),
        ("create_stream", {"config": {"name": "a", "subject": "a", "partitions": 2}}),
        ("create_stream", {"config": {"name": "a", "subject": "a", "read_only": True}}),
    ],
)
async def test_what_needs_a_cluster_is_refused(
    tmp_path: Path, name: str, request_: dict[str, Any]
) -> None:
    async with api(tmp_path) as found:
        with pytest.raises(RefusedError) as refused:
            await ask(found, name, **request_)
        assert refused.value.code == "NOT_CLUSTERED"
        assert [one["name"] for one in (await ask(found, "streams"))["streams"]] == ["logs"]


async def test_one_replica_is_all_a_lone_logd_has(tmp_path: Path) -> None:
    async with api(tmp_path) as found:
        for factor in (None, 1, "all"):
            config = {"name": "a", "subject": "a", "replication_factor": factor, "min_isr": 1}
            assert (await ask(found, "create_stream", config=config))["stream"]["name"] == "a"
