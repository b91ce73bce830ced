"""A job of a router with three sinks under load, on one machine or on a Spark cluster of it."""

import asyncio
import random
import shutil
import uuid
from contextlib import ExitStack, suppress
from typing import Any, Final

import psutil
from nats.aio.client import Client
from typing_extensions import override

from penstock.logd.format.acks import decode_ack
from penstock.logd.format.batch import Record, build_batch, encode_body
from penstock.logd.format.envelope import BatchPayload, decode_envelope, encode_batch
from tests.harness.checkers.claims import each_once, judge
from tests.harness.faults.process import stop_daemon
from tests.harness.ledger import Acked, Item, Ledger
from tests.harness.load import Load
from tests.harness.plan import Run, System
from tests.harness.publishers import Publisher, pause
from tests.harness.systems.router_sinks import RouterSinks, line_of
from tests.support.logd import Logd
from tests.support.moto_server import BUCKET, S3_KEYS, MotoRun
from tests.support.nats_server import RestartableNatsServer
from tests.support.processes import Daemon
from tests.support.router import FIRST_TIME_NS, RouterJob
from tests.support.spark_cluster import SparkCluster
from tests.support.waiting import wait_until

START_S: Final = 120.0
_PATIENCE_S: Final = 200.0
_PAUSE_S: Final = 0.5
"""Between two batches, at most."""

_RECORDS_MAX: Final = 200
_ACK_WAIT_S: Final = 60.0
_LOST_SHARE: Final = 0.5


class _Orders(Publisher):
    """Numbered records in batches of a producer's sequence; `count` of them are acked."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__("logs", "kills", rng)
        self.subject = "telemetry.logs.kills"
        self._producer, self._sequence = uuid.uuid4().bytes, 0

    @override
    async def turn(self, client: Client, ledger: Ledger, stop: asyncio.Event) -> None:
        numbers = range(self.count, self.count + self.rng.randint(1, _RECORDS_MAX))
        records = [Record(self.subject, line_of(n), FIRST_TIME_NS + n) for n in numbers]
        payload = BatchPayload(
            schema_version=1,
            record_count=len(records),
            producer_id=self._producer,
            previous_sequence=self._sequence,
            sequence=self._sequence + 1,
            body=encode_body(build_batch(records), compression="zstd"),
        )
        sent_ns = self.clock.unix_ns()
        answer = await client.request(self.subject, encode_batch(payload), timeout=_ACK_WAIT_S)
        envelope = decode_envelope(answer.data)
        ack = decode_ack(bytes(envelope.payload)) if envelope is not None else None
        if ack is None or ack.nack is not None:
            ledger.broken.append(f"{numbers} were refused: {answer.data!r}")
            return
        self._sequence, self.count = self._sequence + 1, numbers.stop
        item = Item(self.name, self._sequence, len(records) - 1)
        ledger.note(Acked(self.stream, item, ack.offset, sent_ns), self.rule)
        await pause(stop, self.rng.uniform(0, _PAUSE_S))


class RouterUnderLoad(System):
    """Its processes are for faults; `recover` starts a job that ended.

    Args:
        run: Says where; `--cluster`: on a Spark cluster of this host, whose executors are killed;
            `--store`: checkpoints are in a store, and after half of the ends nowhere else.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.nats = RestartableNatsServer(run.directory / "nats")
        streams = [{"name": "logs", "subject": "telemetry.logs.>"}]
        self._logd = Logd(run.directory / "logd", self.nats.url, streams)
        self._sinks = RouterSinks(run.directory, random.Random(run.seed + 1))
        self._orders = _Orders(random.Random(run.seed + 2))
        self._load = Load(self.nats.url, [self._orders])
        self.cluster = SparkCluster(run.directory / "cluster") if run.options.cluster else None

    @property
    def daemon(self) -> Daemon:
        return self._job.daemon

    @override
    def begin(self, stack: ExitStack) -> None:
        stack.callback(self.nats.close)
        stack.callback(self._logd.daemon.close)
        self.nats.start()
        self._logd.daemon.start()
        stack.enter_context(self._sinks)
        if self.cluster is not None:
            stack.callback(self.cluster.close)
            self.cluster.start()
        self._job = self._make_job()
        stack.callback(self.daemon.close)
        self.start()
        stack.enter_context(self._load)

    def start(self) -> None:
        with self.run.report.timed("router ready"):
            self.daemon.start(within_s=START_S)

    def jvm(self) -> psutil.Process:
        """Of the driver."""
        children = psutil.Process(self.daemon.pid).children()
        (found,) = [process for process in children if "java" in process.name()]
        return found

    def python_worker(self) -> psutil.Process:
        """One of those that plan or read; on a cluster those that read are elsewhere."""

        def workers() -> list[psutil.Process]:
            found: list[psutil.Process] = []
            for root in [self.jvm(), *(self.cluster.executors() if self.cluster else [])]:
                with suppress(psutil.NoSuchProcess):
                    found += [it for it in root.children(recursive=True) if "python" in it.name()]
            return sorted(found, key=lambda it: it.pid)

        return self.run.rng.choice(wait_until(workers, within_s=START_S, what="a Python worker"))

    def executor(self) -> psutil.Process:
        assert self.cluster is not None, "no executors without --cluster"
        found = wait_until(self.cluster.executors, within_s=START_S, what="an executor")
        return self.run.rng.choice(found)

    @override
    def recover(self) -> str:
        self._load.check()
        told = f"{self._orders.count} records acked"
        if not self.daemon.running:
            if self.run.options.store and self.run.rng.random() < _LOST_SHARE:
                shutil.rmtree(self._job.checkpoint_dir)
                self.run.report.counts["directories lost"] += 1
                told += ", its directory is lost"
            self.start()
        return told

    @override
    def conclude(self) -> None:
        self._load.stop()
        issued, report = self._orders.count, self.run.report
        report.counts["records"] += issued
        unsteady = self._sinks.unsteady
        unsteady.heal()
        report.facts["sink_down_share"] = round(unsteady.down_share, 2)
        report.counts["requests to the unsteady sink"] += unsteady.requests
        with report.timed("caught up"):
            self._wait_for_all(issued)
        sinks = self.daemon.status()["info"]["sinks"]
        report.counts["restarts of queries"] += sum(it["restarts"] for it in sinks.values())
        stop_daemon(self.daemon, self.run)
        dead = list((self._job.checkpoint_dir / "dead_letters").rglob("*.ndjson"))
        if dead:
            report.broken.append(f"dead letters, though nothing was refused: {dead}")
        claims = {sink: each_once(issued, issued) for sink in sinks}
        report.broken += judge(claims, self._sinks.stored())

    def _wait_for_all(self, issued: int) -> None:
        """Until every sink has what there is, however long, while the slowest gets on."""
        everything, seen = {"logs": issued}, self._job.committed()

        def moved() -> bool:
            return self._job.committed() != seen

        while seen != everything:
            what = f"the slowest sink has more than {seen} of {everything}"
            wait_until(moved, within_s=_PATIENCE_S, what=what)
            seen = self._job.committed()

    def _make_job(self) -> RouterJob:
        sinks = self._sinks.config()
        spark: dict[str, Any] = {}
        if self.cluster is not None:
            spark = {"master": self.cluster.url, "conf": self.cluster.conf}
        keys: dict[str, Any] = {}
        if self.run.options.store:
            bucket = {"type": "s3", "url": f"s3://{BUCKET}/kills", "endpoint": MotoRun().url}
            keys = {"checkpoint_store": bucket | S3_KEYS | {"lease_s": 5}}
        return RouterJob(
            self.run.directory / "router",
            self._logd.fetch,
            streams=["logs"],
            routes=[{"name": "everything", "sinks": list(sinks)}],
            sinks=sinks,
            spark=spark,
            connect_timeout_s=60,
            trigger={"interval_s": 0.2, "max_records": 4000},
            source={"min_partitions": 2},
            **keys,
        )
