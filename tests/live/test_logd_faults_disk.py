"""Disks that fill up, fail to sync, refuse or lose files, under a real logd."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import nats.js.errors
import pytest
from click.testing import CliRunner
from nats.aio.client import Client

from penstock.logd.cli import cli
from penstock.logd.errors import LogdError, RefusedError
from penstock.logd.format.acks import Nack
from tests.support.logd import Logd
from tests.support.logd_cluster import LogdCluster
from tests.support.mounts import ThinDisk, grow, mounted, run, small_file_system
from tests.support.waiting import wait_until, wait_until_async

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

LOGS = {"name": "logs", "subject": "t.logs", "max_segment_bytes": 65_536}


@pytest.fixture
async def client(nats_url: str) -> AsyncIterator[Client]:
    connection = await nats.connect(nats_url)
    yield connection
    await connection.close()


def listed(logd: Logd) -> tuple[str, str]:
    """The state of the one stream that is listed, and what is said below."""
    done = CliRunner().invoke(cli, ["streams", "ls", "--server", logd.fetch])
    return done.stdout.splitlines()[1].split()[1], done.stderr


async def publish_until_refused(client: Client, stream: str, size: int) -> list[bytes]:
    """Publish numbered messages one after another; what was acked, each at its offset."""
    acked: list[bytes] = []
    for number in range(20_000):
        payload = b"%d:" % number + b"x" * size
        try:
            ack = await client.jetstream().publish(f"t.{stream}", payload, timeout=20)
        except nats.js.errors.APIError as error:
            if error.err_code != Nack.STORAGE_FAILED.err_code:
                raise
            return acked
        assert ack.seq == number + 1
        acked.append(payload)
    pytest.fail("nothing was ever refused")


async def publish_more(client: Client, stream: str, size: int) -> int:
    """Publish until it is refused; how many were acked."""
    for number in range(20_000):
        try:
            await publish(client, stream, b"%d:" % number + b"x" * size)
        except nats.js.errors.APIError:
            return number
    pytest.fail("nothing was ever refused")


async def publish(client: Client, stream: str, payload: bytes) -> int:
    ack = await client.jetstream().publish(f"t.{stream}", payload, timeout=20)
    return int(ack.seq) - 1


def fill_up(directory: Path) -> Path:
    """Take what room there is left."""
    ballast = directory / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return ballast


def expect_end(logd: Logd, code: int, text: str) -> None:
    logd.daemon.launch()
    assert logd.daemon.wait(within_s=30) == code
    assert text in logd.daemon.log()


SIZES = {"tiny": 50, "small": 900, "page": 3900, "large": 20_000, "huge": 100_000}
"""Of messages: each stream's log meets the end of the disk at another step."""


async def test_a_full_disk_stops_its_streams_alone_and_nothing_acked_is_lost(
    tmp_path: Path, nats_url: str, client: Client
) -> None:
    streams = [LOGS | {"name": name, "subject": f"t.{name}"} for name in (*SIZES, "elsewhere")]
    with small_file_system(tmp_path / "small", "6m") as small, contextlib.ExitStack() as stack:
        logd = Logd(
            tmp_path / "logd", nats_url, streams, data_dir=str(small / "data"), min_free_bytes=0
        )
        stack.callback(logd.daemon.close)
        logd.daemon.start()
        await asyncio.to_thread(logd.daemon.stop)
        (place,) = (small / "data" / "streams").glob("elsewhere-*")
        elsewhere = shutil.copytree(place, tmp_path / "elsewhere")
        stack.enter_context(mounted(place, "--bind", elsewhere))
        logd.daemon.start()
        acked = await asyncio.gather(
            *(publish_until_refused(client, name, size) for name, size in SIZES.items())
        )
        assert await publish(client, "elsewhere", b"still") == 0
        stored = {name: await asyncio.to_thread(logd.values, name) for name in SIZES}
        assert dict(zip(SIZES, acked, strict=True)) == stored
        ballast = fill_up(small)
        with logd.client() as log, pytest.raises(RefusedError, match="No space left"):
            log.create_stream("new", "t.new")
        logd.daemon.kill()
        expect_end(logd, 69, "No space left")
        ballast.unlink()
        grow(small, "24m")
        logd.daemon.start()
        for name, before in stored.items():
            assert await publish(client, name, b"after") == len(before)
            assert await asyncio.to_thread(logd.values, name) == [*before, b"after"]
        assert logd.values("elsewhere") == [b"still"]
        with logd.client() as log:
            assert log.create_stream("new", "t.new").partitions[0].end_offset == 0
        logd.daemon.close()


async def test_a_stream_goes_on_when_there_is_space_again(
    tmp_path: Path, nats_url: str, client: Client
) -> None:
    with small_file_system(tmp_path / "small", "4m") as small:
        logd = Logd(
            tmp_path / "logd", nats_url, [LOGS], data_dir=str(small / "data"), min_free_bytes=0
        )
        with running(logd):
            acked = await publish_until_refused(client, "logs", 100_000)
            grow(small, "32m")
            await wait_until_async(lambda: logd.daemon.status()["health"] == "ready")
            assert await publish(client, "logs", b"after") == len(acked)
            stage = logd.stage("logs")
            counted = stage["sent"] + stage["errors"] + stage["lag"] + stage["detail"]["duplicates"]
            assert stage["received"] == counted
            assert stage["sent"] == len(acked) + 1
            for _ in range(2):
                assert await asyncio.to_thread(logd.values, "logs") == [*acked, b"after"]
                await asyncio.to_thread(logd.restart, kill=True)


async def test_a_stream_that_meets_a_full_disk_at_its_first_message_goes_on_with_space(
    tmp_path: Path, nats_url: str, client: Client
) -> None:
    """Its epoch, begun at the start, is written down with the first message."""
    with small_file_system(tmp_path / "small", "16m") as small:
        logd = Logd(
            tmp_path / "logd", nats_url, [LOGS], data_dir=str(small / "data"), min_free_bytes=0
        )
        with running(logd):
            assert await publish(client, "logs", b"before") == 0
            await asyncio.to_thread(logd.daemon.stop)
            logd.daemon.start()
            ballast = fill_up(small)
            assert await publish_until_refused(client, "logs", 10) == []
            ballast.unlink()
            await wait_until_async(lambda: logd.daemon.status()["health"] == "ready")
            assert await publish(client, "logs", b"after") == 1
            assert await asyncio.to_thread(logd.values, "logs") == [b"before", b"after"]


@pytest.mark.parametrize("lacks", ["bytes", "files"])
def test_a_replica_that_met_a_full_disk_at_its_creation_takes_part_with_space(
    tmp_path: Path, nats_url: str, lacks: str
) -> None:
    """Without bytes its log fails at the first write; without files it cannot be opened."""
    cluster = LogdCluster(tmp_path, nats_url, min_free_bytes=0)
    node = cluster.nodes[cluster.names[0]]
    with streams_on_their_own_disk(node.data_dir) as small, cluster:
        with filled(small, lacks):
            cluster.create("logs", "t.logs")
            wait_until(lambda: "No space left" in "".join(node.daemon.status()["reasons"]))
        cluster.wait_in_sync("logs", size=3)
        wait_until(lambda: node.daemon.status()["health"] == "ready")


@pytest.mark.parametrize("lacks", ["bytes", "files"])
async def test_cursors_that_met_a_full_disk_are_stored_with_space(
    tmp_path: Path, nats_url: str, client: Client, lacks: str
) -> None:
    """Their stream is logd's own, made with the first of them."""
    logd = Logd(tmp_path / "logd", nats_url, [LOGS], min_free_bytes=0)
    with streams_on_their_own_disk(logd.data_dir) as small, running(logd), logd.client() as log:
        assert await publish(client, "logs", b"read") == 0
        cursor = log.cursor("reader", "logs")

        def is_stored() -> bool:
            with contextlib.suppress(LogdError):
                cursor.commit(1)
                return True
            return False

        with filled(small, lacks), pytest.raises(LogdError, match="No space left"):
            await asyncio.to_thread(cursor.commit, 1)
        await wait_until_async(is_stored)
        assert cursor.get() is not None


@contextlib.contextmanager
def streams_on_their_own_disk(data_dir: Path) -> Iterator[Path]:
    """The state of the cluster lies elsewhere: streams are created, whatever their disk lacks."""
    (data_dir / "streams").mkdir(parents=True)
    with small_file_system(data_dir / "streams", "16m,nr_inodes=100") as small:
        yield small


@contextlib.contextmanager
def filled(small: Path, lacks: str) -> Iterator[None]:
    """Take the bytes, or files, that are left, until the block ends."""
    if lacks == "bytes":
        taken = [fill_up(small)]
    else:
        taken = []
        with contextlib.suppress(OSError):
            while True:
                path = small / f"ballast-{len(taken)}"
                path.touch()
                taken.append(path)
    yield
    for path in taken:
        path.unlink()


@pytest.mark.parametrize("harm", ["none", "failed"])
async def test_a_deleted_stream_gives_the_disk_back_at_once(
    tmp_path: Path, nats_url: str, client: Client, harm: str
) -> None:
    """Its files are closed, too: one that is open takes its space until the process ends."""
    with small_file_system(tmp_path / "small", "24m") as small:
        logd = Logd(tmp_path / "logd", nats_url, [LOGS | {"max_segment_bytes": 64 << 20}])
        logd.config |= {"data_dir": str(small / "data"), "min_free_bytes": 0}
        with running(logd), logd.client() as log:
            before = used_bytes(small)
            if harm == "failed":
                await publish_until_refused(client, "logs", 500_000)
            else:
                for _ in range(8):
                    await publish(client, "logs", bytes(1_000_000))
            log.fetch("logs", 0, bytes_max=1)  # a reader has had its file open, too
            assert used_bytes(small) > before + 7_000_000
            log.delete_stream("logs")
            await wait_until_async(lambda: open_and_deleted(logd) == [])
            assert used_bytes(small) < before + 1_000_000


def used_bytes(directory: Path) -> int:
    found = os.statvfs(directory)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def open_and_deleted(logd: Logd) -> list[str]:
    """Files of its data directory that the process has open, though they are deleted."""
    found = []
    for link in Path(f"/proc/{logd.daemon.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(link.readlink()))
    ended = " (deleted)"
    return [name for name in found if name.endswith(ended) and str(logd.directory.parent) in name]


async def test_a_sync_that_fails_takes_back_what_was_not_durable_and_nothing_else(
    tmp_path: Path, nats_url: str, client: Client
) -> None:
    with small_file_system(tmp_path / "small", "14m") as small:
        disk, place = ThinDisk(small), tmp_path / "thin"
        logd = Logd(
            tmp_path / "logd", nats_url, [LOGS], data_dir=str(place / "data"), min_free_bytes=0
        )
        with disk.mounted(place), running(logd):
            acked = await publish_until_refused(client, "logs", 60_000)
            assert len(acked) > 10
            assert await asyncio.to_thread(logd.values, "logs") == acked
            assert logd.daemon.status()["health"] == "degraded"
        grow(small, "80m")
        disk.repair()
        with disk.mounted(place), running(logd):
            stored = await asyncio.to_thread(logd.values, "logs")
            assert stored[: len(acked)] == acked
            assert len(stored) <= len(acked) + 1, "what was refused may be there, nothing else"
            assert await publish(client, "logs", b"after") == len(stored)


async def test_a_file_that_may_not_grow_is_refused_like_a_full_disk(
    tmp_path: Path, nats_url: str, client: Client
) -> None:
    logs = LOGS | {"max_segment_bytes": 1 << 20}
    with Logd(tmp_path / "logd", nats_url, [logs]) as logd:
        run("prlimit", "--pid", str(logd.daemon.pid), "--fsize=300000:")
        acked = await publish_until_refused(client, "logs", 20_000)
        assert await asyncio.to_thread(logd.values, "logs") == acked
        assert "File too large" in logd.daemon.status()["reasons"][0]
        await asyncio.to_thread(logd.restart, kill=True)
        assert await publish(client, "logs", b"after") == len(acked)


@pytest.mark.skipif(os.getuid() != 0, reason="chattr needs root")
async def test_a_directory_that_takes_no_files_stops_its_stream_until_it_does(
    tmp_path: Path, nats_url: str, client: Client
) -> None:
    with Logd(tmp_path / "logd", nats_url, [LOGS]) as logd:
        (directory,) = logd.data_dir.glob("streams/logs-*/0")
        run("chattr", "+i", directory)
        try:
            acked = await publish_until_refused(client, "logs", 9_000)
            assert await asyncio.to_thread(logd.values, "logs") == acked
            await asyncio.to_thread(logd.restart, kill=True)
            assert "Operation not permitted" in logd.daemon.status()["reasons"][0]
        finally:
            run("chattr", "-i", directory)
        with logd.client() as log:
            log.open_stream("logs")
        assert await publish(client, "logs", b"after") == len(acked)


async def test_publishers_are_refused_while_there_is_space_for_retention_and_purges(
    tmp_path: Path, nats_url: str, client: Client
) -> None:
    with small_file_system(tmp_path / "small", "24m") as small:
        logd = Logd(
            tmp_path / "logd", nats_url, [LOGS], data_dir=str(small / "data"),
            min_free_bytes=16 * 2**20, retention_interval_s=1,
        )  # fmt: skip
        with running(logd):
            acked = await publish_until_refused(client, "logs", 2000)
            status = logd.daemon.status()
            assert any("min_free_bytes, 16,777,216" in reason for reason in status["reasons"])
            state, below = await asyncio.to_thread(listed, logd)
            assert state == "refusing"
            assert "logd-1 refuses publishers: the disk of this node has" in below
            await asyncio.to_thread(logd.restart, kill=True)
            with pytest.raises(nats.js.errors.APIError):
                await publish(client, "logs", b"refused after a restart, too")
            with logd.client() as log:
                assert log.purge("logs", len(acked)) == len(acked)
            await wait_until_async(lambda: logd.daemon.status()["health"] == "ready")
            assert await asyncio.to_thread(listed, logd) == ("ok", "")
            assert await publish(client, "logs", b"after a purge") == len(acked)
            more = len(acked) + 1 + await publish_more(client, "logs", 2000)
            with logd.client() as log:
                log.alter_stream("logs", retention={"bytes": 2**20})
            await wait_until_async(lambda: logd.daemon.status()["health"] == "ready")
            assert await publish(client, "logs", b"after retention") == more


async def test_a_log_whose_files_were_removed_takes_no_more(
    tmp_path: Path, nats_url: str, client: Client
) -> None:
    with Logd(tmp_path / "logd", nats_url, [LOGS]) as logd:
        assert await publish(client, "logs", b"one") == 0
        (directory,) = logd.data_dir.glob("streams/logs-*")
        shutil.rmtree(directory)
        assert await publish_until_refused(client, "logs", 10) == []
        assert "removed" in logd.daemon.status()["reasons"][0]
        logd.daemon.kill()
        logd.daemon.start()
        assert "has lost its data directory" in logd.daemon.status()["reasons"][0]


@contextlib.contextmanager
def running(logd: Logd) -> Iterator[None]:
    """Run it; killed at the end."""
    logd.daemon.start()
    try:
        yield
    finally:
        logd.daemon.kill()
