"""`penstock logd streams verify`: what replicas hold is compared, and what differs is named."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import orjson
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from penstock.logd.cli import cli
from penstock.logd.format.frame import crc32c, encode_header, parse_frames
from tests.support.logd import Logd
from tests.support.logd_cluster import LogdCluster, publish
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

SUBJECT = "t.a"
COUNT = 600
OPTIONS: dict[str, Any] = {"max_segment_bytes": 65_536, "replication_factor": 3}
FAST: dict[str, Any] = {"compaction_interval_s": 0.05, "compaction_dirty_ratio": 0.1}


def run(server: str, *arguments: str) -> Result:
    """The command, on a thread without an event loop, as it always is."""
    words = ["streams", "verify", "logs", "--server", server, *arguments]
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(CliRunner().invoke, cli, words).result()


def verify(server: str, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Its exit code, its document, and what it says on standard error."""
    done = run(server, "--json", *arguments)
    return done.exit_code, orjson.loads(done.stdout_bytes or b"{}"), done.stderr


def value(number: int) -> bytes:
    return b"number %d." % number + b"x" * 200


async def publish_many(url: str, *numbers: int, key: str = "") -> None:
    """Many at a time: so frames hold one record or several."""
    client = await nats.connect(url)
    for begin in range(0, len(numbers), 20):
        await asyncio.gather(
            *(
                publish(
                    client,
                    SUBJECT,
                    value(number),
                    {"Penstock-Key": key.format(number % 7)} if key else None,
                )
                for number in numbers[begin : begin + 20]
            )
        )
    await client.close()


@asynccontextmanager
async def publishing(url: str) -> AsyncIterator[None]:
    """While it lasts the stream is written to."""
    ended = asyncio.Event()

    async def go() -> None:
        number = 1_000_000
        while not ended.is_set():
            await publish_many(url, *range(number, number + 20))
            number += 20

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(go())
        yield
        ended.set()


@pytest.fixture
async def cluster(tmp_path: Path, nats_url: str) -> AsyncIterator[LogdCluster]:
    with LogdCluster(tmp_path, nats_url, **FAST) as found:
        found.create("logs", "t.>", **OPTIONS)
        await publish_many(nats_url, *range(COUNT))
        found.wait_in_sync("logs")
        yield found


def follower(cluster: LogdCluster) -> str:
    leader = cluster.leader("logs")
    return next(name for name in cluster.names if name != leader)


def segments(logd: Logd) -> list[Path]:
    return sorted(logd.data_dir.glob("streams/logs*/**/*.log"))


def holding(logd: Logd, text: bytes) -> tuple[Path, int]:
    """The segment that has a text, and where; compaction may be putting another in its place."""

    def found() -> tuple[Path, int] | None:
        for path in segments(logd):
            at = path.read_bytes().find(text)
            if at >= 0:
                return path, at
        return None

    there = wait_until(found, what=f"{text!r} is stored")
    assert there is not None
    return there


def differences(document: dict[str, Any]) -> Iterator[tuple[str, list[str], int, int]]:
    for partition in document["partitions"]:
        for one in partition["differences"]:
            yield one["kind"], one["nodes"], one["first"], one["upto"]


async def test_replicas_are_equal_while_they_are_written_to(
    cluster: LogdCluster, nats_url: str
) -> None:
    """Each has put small frames together on its own, so their files are not the same."""
    server = cluster.nodes["b"].fetch
    async with publishing(nats_url):
        for arguments in ((), ("--max-bytes-per-s", "300000")):
            code, document, error = await asyncio.to_thread(verify, server, *arguments)
            assert (code, error) == (0, ""), error
            (partition,) = document["partitions"]
            assert sorted(partition["nodes"]) == ["a", "b", "c"]
            assert partition["upto"] - partition["first"] == partition["records"] >= COUNT
            assert (partition["differences"], partition["complete"]) == ([], True)


async def test_a_flipped_byte_is_found_and_logd_mends_it(
    cluster: LogdCluster, nats_url: str
) -> None:
    name = follower(cluster)
    path, at = holding(cluster.nodes[name], b"number 300.")
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"N")
    async with publishing(nats_url):
        code, document, error = await asyncio.to_thread(verify, cluster.nodes[name].fetch)
    assert code == 65, error
    assert "fix: " in error
    found = list(differences(document))
    assert {(kind, tuple(nodes)) for kind, nodes, _, _ in found} == {("damaged", (name,))}
    assert any(first <= 300 < upto for _, _, first, upto in found)
    server = cluster.nodes[name].fetch
    wait_until(lambda: verify(server)[0] == 0, within_s=30, what="fetched from another node")


async def test_a_truncated_file_is_found(cluster: LogdCluster) -> None:
    name = follower(cluster)
    path, at = holding(cluster.nodes[name], b"number 300.")
    os.truncate(path, at)
    code, document, error = verify(cluster.nodes[name].fetch)
    assert code == 65, error
    found = list(differences(document))
    assert {tuple(nodes) for _, nodes, _, _ in found} == {(name,)}
    assert any(first <= 300 < upto for _, _, first, upto in found)


async def test_another_record_at_an_offset_is_found_though_its_frame_is_sound(
    cluster: LogdCluster,
) -> None:
    name = follower(cluster)
    logd = cluster.nodes[name]
    assert logd.daemon.stop() == 0
    path, _ = holding(logd, b"number 300.")
    parts = []
    for header, body in parse_frames(path.read_bytes()):
        changed = body.replace(b"number 300.", b"NUMBER 300.")
        parts += [encode_header(replace(header, body_crc=crc32c(changed))), changed]
    path.write_bytes(b"".join(parts))
    logd.daemon.start()
    cluster.wait_in_sync("logs")
    code, document, error = verify(logd.fetch)
    assert code == 65, error
    assert list(differences(document)) == [("differs", [name], 300, 301)]


async def test_a_node_that_is_down_is_named(cluster: LogdCluster) -> None:
    name = follower(cluster)
    assert cluster.nodes[name].daemon.stop() == 0
    code, document, error = verify(cluster.nodes[cluster.leader("logs")].fetch)
    assert code == 69
    assert f"could not be asked: {name}" in error
    (partition,) = document["partitions"]
    assert len(partition["nodes"]) == 2
    assert list(partition["unasked"]) == [name]
    assert partition["records"] == COUNT


async def test_compaction_at_one_node_and_not_at_another_is_no_difference(
    tmp_path: Path, nats_url: str
) -> None:
    cluster = LogdCluster(tmp_path, nats_url, **FAST)
    cluster.nodes["b"].config["compaction_interval_s"] = 3600
    with cluster:
        cluster.create("logs", "t.>", compact=True, **OPTIONS)
        await publish_many(nats_url, *range(2 * COUNT), key="k{}")
        cluster.wait_in_sync("logs")
        first = b"number 0."

        def is_compacted() -> bool:
            return all(first not in path.read_bytes() for path in segments(cluster.nodes["a"]))

        wait_until(is_compacted, within_s=60, what="node a has compacted")
        assert holding(cluster.nodes["b"], first)
        code, document, error = verify(cluster.nodes["a"].fetch)
        assert (code, error) == (0, ""), (error, document)
        (partition,) = document["partitions"]
        assert partition["upto"] == 2 * COUNT


async def test_of_one_node_alone_every_frame_is_checked(tmp_path: Path, nats_url: str) -> None:
    stream = {"name": "logs", "subject": "t.>", "max_segment_bytes": 65_536}
    with Logd(tmp_path / "logd", nats_url, [stream]) as logd:
        await publish_many(nats_url, *range(COUNT))
        code, document, error = verify(logd.fetch)
        assert (code, error) == (0, ""), error
        assert document["partitions"][0]["nodes"] == ["logd-1"]
        assert document["partitions"][0]["records"] == COUNT
        path, at = holding(logd, b"number 300.")
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"N")
        code, document, _ = verify(logd.fetch)
        assert code == 65
        ((kind, nodes, first, upto),) = differences(document)
        assert (kind, nodes) == ("damaged", ["logd-1"])
        assert first <= 300 < upto
        shown = run(logd.fetch).stdout
        assert f"logs/0: offsets {first} to {upto - 1} are damaged on logd-1" in shown
