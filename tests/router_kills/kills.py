"""A real job that is killed again and again under load; a judge looks at what its sinks hold."""

import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from penstock.service import ExitCode
from tests.router_kills.destinations import Destinations
from tests.router_kills.judge import judge
from tests.router_kills.load import Load
from tests.support.logd import Logd
from tests.support.moto_server import BUCKET, S3_KEYS, MotoRun
from tests.support.nats_server import RestartableNatsServer as NatsServer
from tests.support.router import RouterJob
from tests.support.spark_cluster import SparkCluster
from tests.support.waiting import wait_until

_START_S: Final = 120.0
_PATIENCE_S: Final = 200.0
_CALM_S: Final = (0.0, 5.0)
"""Between a kill and the next one, from ready on."""

_STARTING_SHARE: Final = 0.2
"""Of the starts in which the driver is killed before it is ready."""

_PAUSE_S: Final = 0.25
_LOST_SHARE: Final = 0.5
_VICTIMS: Final = {"driver": 5, "jvm": 2, "worker": 3}
_CLUSTER_VICTIMS: Final = {"driver": 3, "jvm": 1, "worker": 1, "executor": 5}


def _store() -> dict[str, Any]:
    """A bucket, for the job file."""
    keys = {"type": "s3", "url": f"s3://{BUCKET}/kills", "endpoint": MotoRun().url, **S3_KEYS}
    return {"checkpoint_store": keys | {"lease_s": 5}}


@dataclass
class Outcome:
    """What came of it.

    Attributes:
        kills: By what was killed: the driver, its JVM, one of Spark's Python processes, an
            executor's JVM.
        ready_s: From start to ready, the longest.
        caught_up_s: From the last record to the last sink that has it.
        down_share: Of the time in which one of the sinks was down.
        requests: To that sink.
        lost: How often the job's directory was gone after a kill.
    """

    runs: int = 0
    records: int = 0
    ready_s: float = 0.0
    caught_up_s: float = 0.0
    down_share: float = 0.0
    requests: int = 0
    lost: int = 0
    query_restarts: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """For people."""
        return {**vars(self), "kills": dict(self.kills)}


class KillRun:
    """One harness. Call `run` once.

    Args:
        directory: For data and logs.
        runs: How many kills.
        seed: Of everything that is drawn.
        cluster: Whether the job runs on a Spark cluster of this host, whose executors are killed.
        store: Whether its checkpoints are in a store, and after half of the kills nowhere else.
        tell: Called with a line now and then.
        program: What to run as the router; a twin that is broken on purpose.
    """

    def __init__(
        self,
        directory: Path,
        *,
        runs: int,
        seed: int,
        cluster: bool = False,
        store: bool = False,
        tell: Callable[[str], None] = lambda _: None,
        program: tuple[str, ...] = (),
    ) -> None:
        self.outcome = Outcome()
        self._runs = runs
        self._rng = random.Random(seed)
        self._tell = tell
        self._nats = NatsServer(directory / "nats")
        streams = [{"name": "logs", "subject": "telemetry.logs.>"}]
        self._logd = Logd(directory / "logd", self._nats.url, streams)
        self._to = Destinations(directory, random.Random(seed + 1))
        self._cluster = SparkCluster(directory / "cluster") if cluster else None
        self._store = _store() if store else {}
        self._directory = directory
        self._program = program
        self._pause = threading.Event()
        self._seed = seed

    def run(self) -> Outcome:
        """Do it all; `outcome.broken` says what was not kept."""
        job = self._job()
        try:
            self._nats.start()
            self._logd.daemon.start()
            if self._cluster is not None:
                self._cluster.start()
            self._start(job)
            load = Load(self._nats.url, random.Random(self._seed + 2), pause_s=_PAUSE_S)
            for number in range(1, self._runs + 1):
                self._kill(job)
                self.outcome.runs = number
                self._tell(f"{number} of {self._runs}: {dict(self.outcome.kills)}, {load.acked}")
            self._conclude(job, load)
        finally:
            for daemon in (job.daemon, self._logd.daemon):
                daemon.close()
            if self._cluster is not None:
                self._cluster.close()
            self._nats.close()
            self._to.close()
        return self.outcome

    def _job(self) -> RouterJob:
        sinks = self._to.sinks()
        spark: dict[str, Any] = {}
        if self._cluster is not None:
            spark = {"master": self._cluster.url, "conf": self._cluster.conf}
        made = RouterJob(
            self._directory / "router",
            self._logd.fetch,
            streams=["logs"],
            routes=[{"name": "everything", "sinks": list(sinks)}],
            sinks=sinks,
            spark=spark,
            connect_timeout_s=60,
            trigger={"interval_s": 0.2, "records_max": 4000},
            source={"partitions_min": 2},
            **self._store,
        )
        if self._program:
            made.daemon.program = self._program
        return made

    # One run: the job runs when it begins and when it ends.

    def _kill(self, job: RouterJob) -> None:
        self._pause.wait(self._rng.uniform(*_CALM_S))
        victims = _VICTIMS if self._cluster is None else _CLUSTER_VICTIMS
        kind = self._rng.choices(tuple(victims), tuple(victims.values()))[0]
        match kind:
            case "driver":
                job.daemon.kill()
                if self._rng.random() < _STARTING_SHARE:
                    job.daemon.launch()
                    self._pause.wait(self._rng.uniform(0, self.outcome.ready_s))
                    job.daemon.kill()
                    kind = "driver, also while it started"
            case "jvm":
                self._end(self._jvm(job))
                code = job.daemon.wait(within_s=_START_S)
                if code != ExitCode.SOFTWARE:
                    self.outcome.broken.append(f"without its JVM the job ended with {code}")
            case "worker":
                self._end(self._python_worker(job))
            case _:
                assert self._cluster is not None
                self._end(self._rng.choice(wait_until(self._cluster.executors, within_s=_START_S)))
        self.outcome.kills[kind] += 1
        if not job.daemon.running:
            if self._store and self._rng.random() < _LOST_SHARE:
                shutil.rmtree(job.checkpoint_dir)
                self.outcome.lost += 1
            self._start(job)

    def _jvm(self, job: RouterJob) -> psutil.Process:
        (found,) = [it for it in psutil.Process(job.daemon.pid).children() if "java" in it.name()]
        return found

    def _python_worker(self, job: RouterJob) -> psutil.Process:
        """One of those that plan or read; on a cluster those that read are elsewhere."""

        def workers() -> list[psutil.Process]:
            roots = [self._jvm(job), *(self._cluster.executors() if self._cluster else [])]
            found: list[psutil.Process] = []
            for root in roots:
                with suppress(psutil.NoSuchProcess):
                    found += [it for it in root.children(recursive=True) if "python" in it.name()]
            return sorted(found, key=lambda it: it.pid)

        return self._rng.choice(wait_until(workers, within_s=_START_S, what="a Python worker"))

    def _end(self, process: psutil.Process) -> None:
        with suppress(psutil.NoSuchProcess):
            process.kill()

    def _start(self, job: RouterJob) -> None:
        began = time.monotonic()  # noqa: TID251 - of real processes
        job.daemon.start(within_s=_START_S)
        self.outcome.ready_s = max(self.outcome.ready_s, time.monotonic() - began)  # noqa: TID251

    # The end: nothing more is published or killed, everything is looked at.

    def _await_all(self, job: RouterJob) -> None:
        """Wait until every sink has what there is, however long, while the slowest gets on."""
        everything, seen = {"logs": self.outcome.records}, job.committed()

        def moved() -> bool:
            return job.committed() != seen

        while seen != everything:
            what = f"the slowest sink has more than {seen} of {everything}"
            wait_until(moved, within_s=_PATIENCE_S, what=what)
            seen = job.committed()

    def _conclude(self, job: RouterJob, load: Load) -> None:
        outcome = self.outcome
        outcome.records = load.finish()
        self._to.clear_up()
        began = time.monotonic()  # noqa: TID251
        self._await_all(job)
        outcome.caught_up_s = round(time.monotonic() - began, 1)  # noqa: TID251
        sinks = job.daemon.status()["info"]["sinks"]
        outcome.query_restarts = sum(sink["restarts"] for sink in sinks.values())
        outcome.down_share, outcome.requests = round(self._to.down_share, 2), self._to.requests
        assert job.daemon.stop() == 0, job.daemon.log()[-3000:]
        letters = list((job.checkpoint_dir / "dead_letters").rglob("*.ndjson"))
        if letters:
            outcome.broken.append(f"dead letters, though nothing was refused: {letters}")
        outcome.broken += judge(outcome.records, self._to.stored())
        outcome.ready_s = round(outcome.ready_s, 1)
