"""What goes wrong within the process: threads that hang, descriptors, memory, the clock."""

import asyncio
import contextlib
import sys
from pathlib import Path

import nats
import nats.errors
import psutil
import pytest

from penstock.logd.errors import RefusedError
from penstock.logd.limits import WRITE_HERE_BYTES_MAX
from tests.live.test_logd_retention import StalledReader
from tests.support.logd import Logd
from tests.support.logd_cluster import LogdCluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

LOGS = {"name": "logs", "subject": "telemetry.logs.>"}
AUDIT = {"name": "audit", "subject": "telemetry.audit.>"}


def faulty(directory: Path) -> list[str]:
    return [sys.executable, "-m", "tests.support.faulty_logd", str(directory)]


async def test_open_files_are_enough_for_every_stream_or_it_is_said_how_many_it_takes(
    tmp_path: Path, nats_url: str
) -> None:
    limited = ["prlimit", "--nofile=40:150", sys.executable, "-m", "penstock.logd"]
    streams = [LOGS, AUDIT, {"name": "more", "subject": "more"}]
    with (
        Logd(tmp_path / "logd", nats_url, streams, program=limited, max_connections=8) as logd,
        contextlib.ExitStack() as stack,
    ):
        readers = [stack.enter_context(logd.client()) for _ in range(8)]
        with pytest.raises(RefusedError, match="need 152 open files, the limit is 150"):
            readers[0].create_stream("fourth", "fourth")
        client = await nats.connect(nats_url)
        for name in ("logs", "audit"):
            await client.jetstream().publish(f"telemetry.{name}.a", b"x")
        assert [reader.offsets("logs").end for reader in readers] == [1] * 8
        await client.close()
        logd.config["streams"] = [*streams, {"name": "fourth", "subject": "fourth"}]
        assert await asyncio.to_thread(logd.daemon.stop) == 0
        logd.daemon.launch()
        assert logd.daemon.wait(within_s=30) == 78
        assert "need 152 open files" in logd.daemon.log()


async def test_a_node_of_a_cluster_without_open_files_leaves_replicas_closed_until_there_are_some(
    tmp_path: Path, nats_url: str
) -> None:
    """172 are enough for what connections may take, and five replicas."""
    cluster = LogdCluster(tmp_path, nats_url, max_connections=8)
    few = cluster.nodes["c"].daemon
    few.program = ("prlimit", "--nofile=40:172", sys.executable, "-m", "penstock.logd")
    with cluster, cluster.client("a", "b") as log, contextlib.ExitStack() as stack:
        wait_until(lambda: few.status()["health"] == "ready", within_s=30)
        cluster.have_decide("a")
        for name in ("first", "second"):
            log.create_stream(name, name, partitions=3)
        said = "6 replicas on this node and 98 connections need 174 open files, the limit is 172"
        wait_until(lambda: said in str(few.status()["reasons"]), within_s=30)
        assert few.status()["health"] == "degraded"
        assert str(few.status()["reasons"]).count("open files, the limit is") == 1
        crowd = [stack.enter_context(cluster.client("c")) for _ in range(8)]
        assert [len(each.cluster().nodes) for each in crowd] == [3] * 8
        client = await nats.connect(nats_url)
        ack = await client.jetstream().publish("second", b"x")
        assert ack.stream == "second"
        await client.close()

        cluster.have_decide("c")
        with pytest.raises(RefusedError, match=r"7 replicas .* need 176 open files"):
            log.create_stream("third", "third")
        log.delete_stream("first")
        wait_until(lambda: few.status()["health"] == "ready", within_s=30)
        for number in range(3):
            cluster.wait_in_sync("second", number=number)
        log.create_stream("third", "third")
        assert few.log().count("replica_open_failed") == 1


async def test_a_configured_stream_waits_for_open_files_on_the_only_node_of_a_cluster(
    tmp_path: Path, nats_url: str
) -> None:
    streams = [LOGS, AUDIT, {"name": "more", "subject": "more"}]
    limited = ("prlimit", "--nofile=40:157", sys.executable, "-m", "penstock.logd")
    cluster = LogdCluster(tmp_path, nats_url, size=1, streams=streams, max_connections=8)
    node = cluster.nodes["a"].daemon
    node.program = limited
    with cluster, cluster.client() as log:
        said = "stream more is not made yet: 3 replicas on this node and 89 connections need 159"
        wait_until(lambda: said in str(node.status()["reasons"]), within_s=30)
        log.delete_stream("audit")
        wait_until(lambda: node.status()["health"] == "ready", within_s=30)
        assert {stream.name for stream in log.streams()} == {"logs", "more"}


@pytest.mark.parametrize(
    ("size_bytes", "said"),
    [
        (9, "error: stopp"),  # on a busy machine it is a thread again
        (WRITE_HERE_BYTES_MAX, "still writing: logs, logs-lazy\n"),
    ],
    ids=["that the event loop writes to", "that a thread writes to"],
)
async def test_a_disk_that_never_answers_does_not_keep_the_process_from_ending(
    tmp_path: Path, nats_url: str, size_bytes: int, said: str
) -> None:
    lazy = {"name": "logs-lazy", "subject": "telemetry.lazy.>", "fsync": "never"}
    streams, program = [LOGS, lazy, AUDIT], faulty(tmp_path)
    with Logd(tmp_path / "logd", nats_url, streams, program=program, drain_timeout_s=1) as logd:
        client = await nats.connect(nats_url)
        js = client.jetstream()
        for name in ("logs", "lazy", "audit"):
            await js.publish(f"telemetry.{name}.a", b"acked")
        (tmp_path / "hang").write_text("/logs-")
        with pytest.raises(nats.errors.TimeoutError):
            await js.publish("telemetry.logs.a", b"n" * size_bytes, timeout=0.2)
        assert await asyncio.to_thread(logd.daemon.stop) == 75
        assert said in logd.daemon.log()
        (tmp_path / "hang").unlink()
        logd.daemon.start()
        assert logd.values("audit") == logd.values("logs-lazy") == [b"acked"]
        assert logd.values("logs") in ([b"acked"], [b"acked", b"n" * size_bytes])
        wait_until(lambda: logd.daemon.status()["health"] == "ready")
        await client.close()


async def test_stopping_says_when_what_was_acked_could_not_be_synced_at_last(
    tmp_path: Path, nats_url: str
) -> None:
    lazy = {"name": "lazy", "subject": "telemetry.lazy.>", "fsync": "never"}
    with Logd(tmp_path / "logd", nats_url, [lazy, LOGS], program=faulty(tmp_path)) as logd:
        client = await nats.connect(nats_url)
        for name in ("logs", "lazy"):
            await client.jetstream().publish(f"telemetry.{name}.a", b"acked")
        (tmp_path / "fail").write_text("/lazy-")
        assert await asyncio.to_thread(logd.daemon.stop) == 74
        assert "could not be synced: lazy\n" in logd.daemon.log()
        (tmp_path / "fail").unlink()
        await client.close()
        logd.daemon.start()
        assert logd.values("logs") == [b"acked"]


async def test_stalled_readers_cost_neither_memory_nor_other_peoples_time(
    tmp_path: Path, nats_url: str
) -> None:
    with Logd(tmp_path / "logd", nats_url, [LOGS]) as logd, logd.client() as log:
        client = await nats.connect(nats_url)
        js = client.jetstream()
        payloads = [b"%d:" % number + b"x" * 500_000 for number in range(80)]
        for payload in payloads:
            await js.publish("telemetry.logs.a", payload)
        process = psutil.Process(logd.daemon.pid)
        assert log.offsets("logs").end == len(payloads)
        before = process.memory_info().rss
        readers = [StalledReader(logd.fetch) for _ in range(24)]
        for number in range(200):
            ack = await js.publish("telemetry.logs.a", b"%d" % number)
            assert ack.seq == len(payloads) + number + 1
        assert [record.value for _, record in log.records("logs", 0, len(payloads))] == payloads
        grown = process.memory_info().rss - before
        assert grown < 64 << 20, f"{grown >> 20} MiB for readers that asked for 40 MiB each"
        for reader in readers:
            reader.socket.close()
        await client.close()
