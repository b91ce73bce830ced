"""A job with three sinks under load, killed at random; afterwards every sink is looked through.

The sinks: `lake` (Parquet, all records), `vault` (Parquet, errors, masked) and `hook` (HTTP, all
records, at a destination that honours idempotency keys and is down half of the time). A victim is
the `driver`, its `jvm`, or a Python `worker` of Spark's.
"""

import random
import threading
from collections import Counter
from pathlib import Path
from typing import Final

import psutil
import pyarrow.compute as pc
from typing_extensions import override

from tests.support.http_sink import HttpDestination
from tests.support.logd import Logd
from tests.support.router import RouterJob, log_line, publish, read_lake
from tests.support.waiting import wait_until

VICTIMS: Final = ("driver", "jvm", "worker")
STREAMS: Final = [{"name": "logs", "subject": "telemetry.logs.>"}]
_BATCH: Final = 250
_PAUSE_S: Final = 0.25
_STRIKE_S_MAX: Final = 1.5
_MASK: Final = {"mask": {"fields": ["body"], "pattern": "order", "replacement": "***"}}


class Load(threading.Thread):
    """Publishes numbered records in order, until it is told to stop."""

    def __init__(self, nats_url: str) -> None:
        super().__init__(daemon=True)
        self.published = 0
        self._nats_url = nats_url
        self._over = threading.Event()

    @override
    def run(self) -> None:
        while not self._over.is_set():
            first = self.published
            lines = [line(number) for number in range(first, first + _BATCH)]
            publish(self._nats_url, "telemetry.logs.x", lines)
            self.published += _BATCH
            self._over.wait(_PAUSE_S)

    def stop(self) -> None:
        self._over.set()
        self.join()


def line(number: int) -> bytes:
    return log_line(number, severity=17 if is_error(number) else 9)


def is_error(number: int) -> bool:
    return number % 5 == 0


class Assault:
    """One job and its killer.

    Args:
        directory: For everything.
        nats_url: Of the nats-server.
        logd: Running, with `STREAMS`.
        seed: Draws victims and moments.
    """

    def __init__(self, directory: Path, nats_url: str, logd: Logd, seed: int) -> None:
        self.killed: Counter[str] = Counter()
        self.hook = HttpDestination()
        self._dice = random.Random(seed)
        self._vault = directory / "vault"
        self._load = Load(nats_url)
        self.job = RouterJob(
            directory / "router",
            logd.fetch,
            streams=["logs"],
            trigger={"interval_s": 0.1, "records_max": 1000},
            routes=[
                {"name": "everything", "sinks": ["lake", "hook"]},
                {
                    "name": "errors",
                    "where": "severity_number >= 17",
                    "transforms": [_MASK],
                    "sinks": ["vault"],
                },
            ],
            sinks={
                "lake": {"type": "parquet", "path": str(directory / "router" / "lake")},
                "vault": {"type": "parquet", "path": str(self._vault)},
                "hook": {
                    "type": "http",
                    "url": self.hook.url,
                    "batch": {"records_max": 300},
                    "retry": {"first_s": 0.05, "max_s": 0.3},
                },
            },
        )

    def begin(self) -> None:
        """Start the load and the job."""
        self.hook.open()
        self._load.start()
        self.job.daemon.start(within_s=90)

    def strike(self, victim: str | None = None) -> str:
        """Kill one victim at a random moment; start the job again if that ended it."""
        victim = victim or self._dice.choice(VICTIMS)
        self.hook.status = self._dice.choice((200, 503))
        sent = self._sent()
        wait_until(lambda: self._sent() > sent, within_s=60, what="the lake gets records")
        threading.Event().wait(self._dice.uniform(0, _STRIKE_S_MAX))
        daemon = self.job.daemon
        if victim == "driver":
            family = psutil.Process(daemon.pid).children(recursive=True)
            daemon.kill()
            _, alive = psutil.wait_procs(family, timeout=60)
            assert alive == [], "the JVM or its workers outlived the driver"
        else:
            self._kill_one(victim)
        if victim == "jvm":
            assert daemon.wait(within_s=60) == 70, daemon.log()[-3000:]
        if victim != "worker":
            daemon.start(within_s=90)
        self.killed[victim] += 1
        return victim

    def end(self) -> list[str]:
        """Let everything catch up; returns what is wrong with what sinks hold."""
        self._load.stop()
        self.hook.status = 200
        wait_until(self._caught_up, within_s=120, what="all sinks have everything")
        assert self.job.daemon.stop(within_s=60) == 0, self.job.daemon.log()[-3000:]
        return self._verdict()

    def close(self) -> None:
        """Free everything, also after a failure."""
        self._load.stop()
        self.hook.close()
        if self.job.daemon._process is not None:
            self.job.daemon.close()

    @property
    def published(self) -> int:
        """Records, all acked."""
        return self._load.published

    def _verdict(self) -> list[str]:
        count = self.published
        lake = self.job.rows().column("value").to_pylist()
        vault = read_lake(self._vault)
        masked = vault.column("value").to_pylist()
        held: dict[str, tuple[list[object], list[object]]] = {
            "lake": (lake, [line(number) for number in range(count)]),
            "vault": (
                vault.column("offset").to_pylist(),
                [number for number in range(count) if is_error(number)],
            ),
            "hook": (
                sorted(record["attributes"]["number"] for record in self.hook.records),
                list(range(count)),
            ),
        }
        wrong = [
            f"{name}: {len(found)} records, {len(set(found))} of them different, not {len(want)}"
            for name, (found, want) in held.items()
            if found != want
        ]
        bodies = pc.any(pc.match_substring(vault.column("body"), "order")).as_py()
        if bodies or any(b"order" in value for value in masked):
            wrong.append("vault: a record came past its mask")
        return wrong

    def _sent(self) -> int:
        return int(self.job.daemon.stage("sink/lake")["sent"])

    def _caught_up(self) -> bool:
        stages = self.job.daemon.status()["stages"]
        return len(stages) == 3 and all(
            stage["lag"] == 0 and stage["name"].startswith("sink/") for stage in stages
        )

    def _kill_one(self, victim: str) -> None:
        """Kill one that lives still: workers come and go."""
        while True:
            try:
                self._prey(victim).kill()
            except psutil.NoSuchProcess:
                continue
            return

    def _prey(self, victim: str) -> psutil.Process:
        """The JVM, or one of the processes that read for it or wait to."""

        def found() -> list[psutil.Process]:
            family = psutil.Process(self.job.daemon.pid).children(recursive=True)
            jvms = [it for it in family if "java" in it.name()]
            if victim == "jvm":
                return jvms
            return [it for it in family if it not in jvms and "python" in it.name()]

        return self._dice.choice(wait_until(found, within_s=30, what=f"a {victim} to kill"))
