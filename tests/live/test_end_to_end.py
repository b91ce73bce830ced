"""The whole pipeline, killed part by part while five kinds of sender go on."""

import fcntl
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from tests.support.nats_server import running_nats_server
from tests.support.processes import Daemon, free_port
from tests.support.senders import (
    FluentdSender,
    InBackground,
    JetStreamSender,
    NatsInBackground,
    OtelSender,
    PlainSender,
    Sender,
    SpecsSender,
    wait_until_acked,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

KILLS_MAX = 10
START_S = 150
"""Seconds that Spark may take to start, or to finish a batch, on a machine with much to do."""

STREAMS = ("logs", "traces", "metrics", "events", "audit")


@dataclass
class Pipeline:
    """The demo's topology on ports of its own."""

    nats_url: str
    socket_path: str
    forward_port: int
    lake: Path
    checkpoint: Path
    logd: Daemon
    collector: Daemon
    router: Daemon

    def stored(self) -> int:
        """Records that are committed in the log."""
        stages = self.logd.status()["stages"]
        return sum(stage["sent"] for stage in stages if stage["name"].startswith("stream/"))

    def is_unlocked(self) -> bool:
        """Whether nothing runs on the router's checkpoint, a JVM without its driver included."""
        with (self.checkpoint / "lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    def shows_unfinished_batch(self) -> bool:
        """Whether a reader sees files of a batch whose end Spark has not noted."""
        files = [path.stat().st_mtime_ns for path in self.lake.glob("kind=*/**/*.parquet")]
        ends = [path.stat().st_mtime_ns for path in self.checkpoint.glob("*/*/commits/[0-9]*")]
        return max(files, default=0) > max(ends, default=0)


@contextmanager
def running_pipeline(directory: Path) -> Iterator[Pipeline]:
    admin = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    fetch, forward = f"127.0.0.1:{free_port()}", free_port()
    socket_path = directory / "collector.sock"
    with ExitStack() as stack:
        nats_url = stack.enter_context(running_nats_server(directory / "nats"))
        logd: dict[str, Any] = {
            "node": "logd-1",
            "data_dir": str(directory / "logd"),
            "nats": {"url": nats_url},
            "fetch": fetch,
            "admin": admin[0],
            "streams": [{"name": name, "subject": f"telemetry.{name}.>"} for name in STREAMS],
        }
        collector = {
            "name": "host-1",
            "data_dir": str(directory / "collector"),
            "nats": {"url": nats_url},
            "admin": admin[1],
            "sources": [
                {"type": "unix", "path": str(socket_path)},
                {"type": "forward", "listen": f"127.0.0.1:{forward}"},
                {"type": "file", "include": [f"{directory}/nats/*.log"], "service": "nats-server"},
                {"type": "host_metrics", "interval_s": 1},
            ],
        }
        router = {
            "job": "lake",
            "logd": fetch,
            "streams": list(STREAMS),
            "checkpoint_dir": str(directory / "checkpoint"),
            "admin": admin[2],
            "trigger": {"interval_s": 1},
            "routes": [{"name": "everything", "sinks": ["lake"]}],
            "on_malformed": "route",  # plain publishers send what is no record
            "sinks": {"lake": {"type": "parquet", "path": str(directory / "lake")}},
        }
        pipeline = Pipeline(
            nats_url=nats_url,
            socket_path=str(socket_path),
            forward_port=forward,
            lake=directory / "lake",
            checkpoint=directory / "checkpoint",
            logd=Daemon("logd", logd, directory),
            collector=Daemon("collector", collector, directory),
            router=Daemon("router", router, directory),
        )
        for daemon in (pipeline.logd, pipeline.collector, pipeline.router):
            stack.callback(daemon.close)
            daemon.start(within_s=START_S)
        yield pipeline


@pytest.mark.timeout(1200)
def test_pipeline_delivers_each_promised_record_once_and_in_order_through_kills(
    tmp_path: Path,
) -> None:
    with running_pipeline(tmp_path) as pipeline:
        specs, otel = SpecsSender(pipeline.socket_path), OtelSender(pipeline.socket_path)
        fluentd = FluentdSender(pipeline.forward_port)
        plain, jetstream = PlainSender(), JetStreamSender()
        local = InBackground([specs, otel], pause_s=0.01)
        remote = NatsInBackground(pipeline.nats_url, [plain, jetstream], pause_s=0.01)

        send_to_forward(fluentd, pipeline, count=300)
        kill_logd(pipeline, jetstream)
        kill_collector(pipeline)
        send_to_forward(fluentd, pipeline, count=300)
        kill_router_mid_batch(pipeline)
        after_kills = pipeline.stored()
        wait_until(lambda: pipeline.stored() > after_kills + 500, what="flow after the kills")

        remote.stop()
        local.stop()
        wait_until_acked(specs)
        wait_until_acked(otel)
        assert pipeline.collector.stop() == 0, pipeline.collector.log()[-3000:]
        finish_router(pipeline)

        rows = read_lake(pipeline.lake)
        assert_lake_is_the_log(rows, pipeline.logd)
        for sender in (specs, otel, fluentd, plain, jetstream):
            assert_arrived(sender, rows)
        assert jetstream.retries > 0, "logd was not missed while it was dead"
        assert pipeline.logd.stop() == 0


def send_to_forward(sender: FluentdSender, pipeline: Pipeline, *, count: int) -> None:
    """Send, and count as promised what the collector says it has made durable."""
    before = pipeline.collector.stage("source/forward")["received"]
    with sender.connected() as connection:
        for _ in range(count):
            sender.send(connection)
        wait_until(
            lambda: pipeline.collector.stage("source/forward")["received"] >= before + count,
            what="the collector has the forwarded records",
        )
    sender.received += count


def kill_logd(pipeline: Pipeline, jetstream: JetStreamSender) -> None:
    wait_until(lambda: pipeline.stored() > 500, what="records before the kill")
    retries = jetstream.retries
    pipeline.logd.kill()
    wait_until(lambda: jetstream.retries > retries, what="a publisher that misses logd")
    pipeline.logd.start()


def kill_collector(pipeline: Pipeline) -> None:
    before = pipeline.stored()
    wait_until(lambda: pipeline.stored() > before + 200, what="flow after logd's restart")
    pipeline.collector.kill()
    pipeline.collector.start()


def kill_router_mid_batch(pipeline: Pipeline) -> None:
    """Kill the driver between a batch's files and Spark's note of its end: it must come again."""
    for _ in range(KILLS_MAX):
        wait_until(
            pipeline.shows_unfinished_batch,
            within_s=START_S,
            what="a batch's files",
            momentary=True,
        )
        pipeline.router.kill()
        wait_until(pipeline.is_unlocked, within_s=START_S, what="the end of the driver's JVM")
        comes_again = pipeline.shows_unfinished_batch()
        pipeline.router.start(within_s=START_S)
        if comes_again:
            return
    pytest.fail("the driver noted the end of its batch before each kill")


def finish_router(pipeline: Pipeline) -> None:
    """Let the router catch up with the log as it is now, and end."""
    assert pipeline.router.stop(within_s=START_S) == 0, pipeline.router.log()[-3000:]
    pipeline.router.start("--until-caught-up", within_s=START_S)
    assert pipeline.router.wait(within_s=START_S) == 0, pipeline.router.log()[-3000:]


def read_lake(lake: Path) -> pa.Table:
    """All rows, as any reader of hive-partitioned Parquet gets them, in log order."""
    table = ds.dataset(lake, format="parquet", partitioning="hive").to_table(
        columns=["stream", "partition", "offset", "value", "kind", "service"]
    )
    return table.sort_by([("stream", "ascending"), ("offset", "ascending")])


def assert_lake_is_the_log(rows: pa.Table, logd: Daemon) -> None:
    """Each stream's offsets are there from 0 to its high watermark, each once."""
    counted = Counter(rows.column("stream").to_pylist())
    for stream in STREAMS:
        mask = [name == stream for name in rows.column("stream").to_pylist()]
        offsets = rows.filter(pa.array(mask)).column("offset").to_pylist()
        assert offsets == list(range(counted[stream])), f"{stream}: offsets are not dense"
        assert counted[stream] == logd.stage(f"stream/{stream}")["detail"]["high_watermark"] + 1


def assert_arrived(sender: Sender, rows: pa.Table) -> None:
    """What was promised is there, each once and in order; what was not sent is not."""
    numbers = [
        number
        for value in rows.column("value").to_pylist()
        if (number := sender.number_in(value)) is not None
    ]
    assert numbers == sorted(numbers), f"{sender.name}: order"
    assert len(numbers) == len(set(numbers)), f"{sender.name}: repeated"
    missing = set(range(sender.promised())) - set(numbers)
    assert not missing, f"{sender.name}: {len(missing)} promised records are missing"
    assert set(numbers) <= set(range(sender.sent()))
