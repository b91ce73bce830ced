"""The soak: one logd, one data directory, killed again and again under acked load.

Each run lets a mixed load go on for a moment, kills logd with SIGKILL, starts it again and reads
back what is new; every few runs, and at the end, all of it, and the files offline. What happens
when is drawn from the seed.
"""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import nats
import orjson

from penstock.service.clock import SystemClock
from tests.soak.checker import BrokenPromiseError, StreamChecker
from tests.soak.publishers import Ledger, Publisher, make_publishers
from tests.soak.servers import NatsServer
from tests.support.logd import Logd

MIB: Final = 1 << 20

_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "ids": {},
    "batches": {},
    "lazy": {"fsync": "interval", "fsync_interval_ms": 50},
    "kept": {"retention": {"bytes": MIB}},
    "aged": {"retention": {"age_s": 3}},
}
STREAMS: Final[list[dict[str, Any]]] = [
    {"name": name, "subject": f"soak.{name}.>", "segment_bytes_max": 64 * 1024} | options
    for name, options in _OPTIONS.items()
]
"""Small segments, so that rolling and deleting go on during the kills."""

UNDER_WAY_BYTES: Final = MIB // 4
"""What may be written and not committed, and so counts for retention and cannot be read yet."""

_WHOLE_EVERY = 20
_OFFLINE_EVERY = 10
_LOAD_S = (0.05, 1.2)


@dataclass
class Figures:
    """What a soak came to.

    Attributes:
        start_s: From the start of each process until it was ready.
        events: What was done to the processes, how often.
        acked: What publishers were told.
        records: Read back.
    """

    start_s: list[float] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    acked: Counter[str] = field(default_factory=Counter)
    records: int = 0

    def summary(self) -> dict[str, Any]:
        """For people and for JSON; seconds."""
        ordered = sorted(self.start_s)
        return {
            "restart_p50_s": round(ordered[len(ordered) // 2], 3) if ordered else None,
            "restart_max_s": round(ordered[-1], 3) if ordered else None,
            "events": dict(sorted(self.events.items())),
            "publishers": dict(sorted(self.acked.items())),
            "records_read_back": self.records,
        }


class Soak:
    """One soak. Call `run` once.

    Args:
        directory: For data and logs.
        runs: How many times logd is killed.
        seed: Of everything that is drawn.
        stopped_s: How long a stopped process (SIGSTOP) stays so.
        program: What to run instead of logd.
        rare: Probability of each of the rarer events in a run: SIGSTOP, a stop by SIGTERM, a kill
            or a restart of the nats-server.
    """

    def __init__(
        self,
        directory: Path,
        *,
        runs: int,
        seed: int,
        stopped_s: float = 2.0,
        program: Sequence[str] | None = None,
        rare: float = 0.04,
    ) -> None:
        self.figures = Figures()
        self._runs = runs
        self._rng = random.Random(seed)
        self._stopped_s = stopped_s
        self._rare = rare
        self._clock = SystemClock()
        self._nats = NatsServer(directory / "nats")
        self._logd = Logd(
            directory / "logd",
            self._nats.url,
            STREAMS,
            program=program,
            retention_interval_s=0.1,
        )
        self._ledger = Ledger()
        self._publishers = make_publishers(seed)
        self._checkers = [_checker(stream, self._publishers) for stream in STREAMS]
        self._stop = asyncio.Event()

    async def run(self) -> Figures:
        """Do it all.

        Raises:
            BrokenPromiseError: A promise was broken.
        """
        self._nats.start()
        try:
            await self._start()
            async with self._load():
                for number in range(1, self._runs + 1):
                    await self._one(number)
            await self._check(restarted=False, whole=True)
            await asyncio.to_thread(self._balance)
            assert await asyncio.to_thread(self._logd.daemon.stop) == 0
            await asyncio.to_thread(self._check_offline)
        finally:
            self._stop.set()
            self._logd.daemon.close()
            self._nats.close()
        self.figures.acked = self._ledger.counts
        self.figures.records = sum(checker.records_seen for checker in self._checkers)
        return self.figures

    async def _one(self, number: int) -> None:
        await self._wait(self._rng.uniform(*_LOAD_S))
        await self._trouble()
        await asyncio.to_thread(self._logd.daemon.kill)
        self.figures.events["kill -9"] += 1
        if number % _OFFLINE_EVERY == 0:
            await asyncio.to_thread(self._check_offline)
        while self._rng.random() < 0.15:
            self._logd.daemon.launch()
            await self._wait(self._rng.uniform(0.2, 1.2))
            await asyncio.to_thread(self._logd.daemon.kill)
            self.figures.events["kill -9 while starting"] += 1
        await self._start()
        await self._check(whole=number % _WHOLE_EVERY == 0)

    async def _trouble(self) -> None:
        """Some of what may happen before the kill."""
        if self._rng.random() < self._rare:
            self.figures.events["SIGSTOP"] += 1
            os.kill(self._logd.daemon.pid, signal.SIGSTOP)
            await self._wait(self._stopped_s)
            os.kill(self._logd.daemon.pid, signal.SIGCONT)
            await self._wait(self._rng.uniform(*_LOAD_S))
        for number in (signal.SIGKILL, signal.SIGTERM):
            if self._rng.random() < self._rare:
                self.figures.events[f"nats-server {number.name}"] += 1
                await asyncio.to_thread(self._nats.end, number)
                await self._wait(self._rng.uniform(0.0, 0.3))
                await asyncio.to_thread(self._nats.start)
                await self._wait(self._rng.uniform(*_LOAD_S))
        if self._rng.random() < self._rare:
            self.figures.events["SIGTERM"] += 1
            assert await asyncio.to_thread(self._logd.daemon.stop) == 0
            await self._start()
            await self._check()

    async def _start(self) -> None:
        begun_ns = self._clock.monotonic_ns()
        await asyncio.to_thread(self._logd.daemon.start)
        self.figures.start_s.append((self._clock.monotonic_ns() - begun_ns) / 1e9)

    async def _check(self, *, restarted: bool = True, whole: bool = False) -> None:
        if self._ledger.broken:
            raise BrokenPromiseError("; ".join(self._ledger.broken))
        acked = self._ledger.take()
        with self._logd.client() as log:
            for checker in self._checkers:
                mine = [ack for ack in acked if ack.stream == checker.stream]
                await asyncio.to_thread(checker.look, log, mine, restarted=restarted, whole=whole)
        self.figures.events["checks"] += 1

    def _check_offline(self) -> None:
        command = [sys.executable, "-m", "penstock.logd", "check", "--json"]
        done = subprocess.run(
            [*command, str(self._logd.data_dir)], capture_output=True, check=False, timeout=300
        )
        if done.returncode != 0:
            raise BrokenPromiseError(
                f"offline check: exit {done.returncode}: {done.stdout.decode()[-3000:]}"
            )
        self.figures.events[f"offline: {orjson.loads(done.stdout)['verdict']}"] += 1

    def _balance(self) -> None:
        """Nothing arrives any more: what `/status` counts must add up."""
        for stream in STREAMS:
            stage = self._logd.stage(stream["name"])
            parts = stage["sent"] + stage["detail"]["duplicates"] + stage["errors"] + stage["lag"]
            if stage["received"] != parts:
                raise BrokenPromiseError(f"counters do not add up: {stage}")

    @asynccontextmanager
    async def _load(self) -> AsyncIterator[None]:
        """Publish until the block ends; then what is under way has been acked or given up."""
        client = await nats.connect(
            self._nats.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05,
            error_cb=_ignore, disconnected_cb=None,
        )  # fmt: skip
        try:
            async with asyncio.TaskGroup() as tasks:
                for publisher in self._publishers:
                    tasks.create_task(publisher.run(client, self._ledger, self._stop))
                try:
                    yield
                finally:
                    self._stop.set()
        finally:
            await client.close()

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()


def _checker(stream: dict[str, Any], publishers: Sequence[Publisher]) -> StreamChecker:
    retention = stream.get("retention", {})
    return StreamChecker(
        stream["name"],
        {p.name: p.rule for p in publishers if p.stream == stream["name"]},
        {p.name for p in publishers if p.keyed},
        deletes=bool(retention),
        kept_bytes=retention.get("bytes", 0) - UNDER_WAY_BYTES,
    )


async def _ignore(_: Exception) -> None:
    """A lost connection is what the soak is about; publishers see it as an ack that never came."""
