"""A real logd that is killed again and again while publishers publish; everything is read back."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

import nats
import orjson

from penstock.base.clock import SystemClock
from tests.soak.checker import BrokenPromiseError
from tests.soak.figures import Figures, upkeep_of
from tests.soak.ledger import Ledger
from tests.soak.publishers import make_publishers
from tests.soak.servers import NatsServer
from tests.soak.streams import COMPACTED, DAEMON, STREAMS, make_checkers
from tests.support.logd import Logd

_WHOLE_EVERY = 20
_OFFLINE_EVERY = 10
_OFFLINE_S = 300
_CLEAN_EVERY = 25
_CLEAN_S = 30
_CLEAN_POLL_S = 0.2
_LOAD_S = (0.05, 1.2)
_ENDING_S = 0.1

Arguments = ParamSpec("Arguments")


class _Cleaned(NamedTuple):
    passes: int
    segments_replaced: int


Result = TypeVar("Result")


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
        tell: Called with a line about each run.

    Attributes:
        figures: What came of it, also when it was cancelled or failed.
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
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.figures = Figures()
        self._runs = runs
        self._rng = random.Random(seed)
        self._stopped_s = stopped_s
        self._rare = rare
        self._tell = tell
        self._clock = SystemClock()
        self._nats = NatsServer(directory / "nats")
        self._logd = Logd(directory / "logd", self._nats.url, STREAMS, program=program, **DAEMON)
        self._offline: subprocess.Popen[bytes] | None = None
        self._ledger = Ledger()
        self._publishers = make_publishers(seed)
        self._checkers = make_checkers(self._publishers)
        self._stop = asyncio.Event()
        self._done: list[str] = []

    async def run(self) -> Figures:
        """Do it all. Cancelled, it ends every process that it started.

        Raises:
            BrokenPromiseError: A promise was broken.
        """
        try:
            await self._threaded(self._nats.start)
            await self._start()
            async with self._load():
                for number in range(1, self._runs + 1):
                    await self._one(number)
            await self._check(restarted=False, whole=True)
            await self._threaded(self._balance)
            await self._end_logd()
            await self._threaded(self._check_offline)
        finally:
            self._stop.set()
            self._end_processes()
            self._sum_up()
        return self.figures

    async def _one(self, number: int) -> None:
        self._done = []
        await self._wait(self._rng.uniform(*_LOAD_S))
        await self._trouble()
        if number % _CLEAN_EVERY == 0:
            await self._let_clean()
        await self._kill("kill -9")
        if number % _OFFLINE_EVERY == 0:
            await self._threaded(self._check_offline)
        while self._rng.random() < 0.15:
            self._logd.daemon.launch()
            await self._wait(self._rng.uniform(0.2, 1.2))
            await self._kill("kill -9 while starting")
        await self._start()
        await self._check(whole=number % _WHOLE_EVERY == 0)
        self.figures.runs = number
        self._tell(
            f"run {number} of {self._runs}: {', '.join(self._done)};"
            f" ready after {self.figures.start_s[-1]:.3f} s; {self._ledger.records} records acked,"
            f" {sum(checker.counts['acked, found'] for checker in self._checkers)} found"
        )

    async def _trouble(self) -> None:
        """Some of what may happen before the kill."""
        if self._rng.random() < self._rare:
            self._note("SIGSTOP")
            os.kill(self._logd.daemon.pid, signal.SIGSTOP)
            await self._wait(self._stopped_s)
            os.kill(self._logd.daemon.pid, signal.SIGCONT)
            await self._wait(self._rng.uniform(*_LOAD_S))
        for number in (signal.SIGKILL, signal.SIGTERM):
            if self._rng.random() < self._rare:
                self._note(f"nats-server {number.name}")
                self._exited("nats-server", await self._threaded(self._nats.end, number))
                await self._wait(self._rng.uniform(0.0, 0.3))
                await self._threaded(self._nats.start)
                await self._wait(self._rng.uniform(*_LOAD_S))
        if self._rng.random() < self._rare:
            self._note("SIGTERM")
            await self._end_logd()
            await self._start()
            await self._check()

    async def _start(self) -> None:
        begun_ns = self._clock.monotonic_ns()
        await self._threaded(self._logd.daemon.start)
        self.figures.start_s.append((self._clock.monotonic_ns() - begun_ns) / 1e9)

    async def _kill(self, what: str) -> None:
        self._note(what)
        code = await self._threaded(self._logd.daemon.kill)
        self._exited("logd", code)
        if code != -signal.SIGKILL:
            raise BrokenPromiseError(f"logd had ended: {code}: {self._logd.daemon.log()[-3000:]}")

    async def _end_logd(self) -> None:
        code = await self._threaded(self._logd.daemon.stop)
        self._exited("logd", code)
        if code != 0:
            raise BrokenPromiseError(f"logd stopped: {code}: {self._logd.daemon.log()[-3000:]}")

    async def _check(self, *, restarted: bool = True, whole: bool = False) -> None:
        if self._ledger.broken:
            raise BrokenPromiseError("; ".join(self._ledger.broken))
        acked = self._ledger.take()
        with self._logd.client() as log:
            for checker in self._checkers:
                mine = [ack for ack in acked if ack.stream == checker.stream]
                await self._threaded(checker.look, log, mine, restarted=restarted, whole=whole)
        self.figures.events["checks"] += 1

    async def _let_clean(self) -> None:
        """Let compaction make a pass, for each life is too short for one.

        A pass over very many small segments, on a busy disk, may not come to its end in time; it
        must get on.
        """
        before = now = await self._threaded(self._cleaned)
        for _ in range(round(_CLEAN_S / _CLEAN_POLL_S)):
            await self._wait(_CLEAN_POLL_S)
            now = await self._threaded(self._cleaned)
            if all(new.passes > old.passes for new, old in zip(now, before, strict=True)):
                self._note("passes over keys")
                return
        for name, new, old in zip(COMPACTED, now, before, strict=True):
            assert new != old, f"{name}: compaction did nothing for {_CLEAN_S} s"
        self._note("part of a pass over keys")

    def _cleaned(self) -> list[_Cleaned]:
        """What compaction has done to each compacted stream in this life of logd."""
        stages = [self._logd.stage(name)["detail"] for name in COMPACTED]
        return [
            _Cleaned(int(detail["compaction_passes"]), int(detail["compaction_segments_replaced"]))
            for detail in stages
        ]

    def _check_offline(self) -> None:
        command = [sys.executable, "-m", "penstock.logd", "check", "--json"]
        self._offline = subprocess.Popen(
            [*command, str(self._logd.data_dir)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        output, _ = self._offline.communicate(timeout=_OFFLINE_S)
        if self._offline.returncode != 0:
            raise BrokenPromiseError(
                f"offline check: exit {self._offline.returncode}: {output.decode()[-3000:]}"
            )
        self.figures.events[f"offline: {orjson.loads(output)['verdict']}"] += 1

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
            with contextlib.suppress(nats.errors.Error, OSError):  # the server may be gone
                await client.close()

    # Ends.

    async def _threaded(
        self,
        work: Callable[Arguments, Result],
        *arguments: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        """Do it on a thread. Cancelled, end what the thread waits for, and wait for the thread.

        So no thread starts a process when nobody is there any more to end it.
        """
        doing = asyncio.create_task(asyncio.to_thread(work, *arguments, **options))
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            while not doing.done():
                self._end_processes()
                await asyncio.wait({doing}, timeout=_ENDING_S)
            if not doing.cancelled():
                doing.exception()  # what is cut short may fail
            raise

    def _end_processes(self) -> None:
        self._logd.daemon.close()
        self._nats.close()
        if self._offline is not None:
            self._offline.kill()
            self._offline.wait()

    def _sum_up(self) -> None:
        self.figures.publishers = self._ledger.counts
        self.figures.records["acked"] = self._ledger.records
        for checker in self._checkers:
            self.figures.records.update(checker.counts)
        self.figures.upkeep = upkeep_of(self._logd.directory / "logd.log")

    # Notes.

    def _note(self, event: str) -> None:
        self.figures.events[event] += 1
        self._done.append(event)

    def _exited(self, process: str, code: int) -> None:
        self.figures.exits[f"{process} {code}"] += 1

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()


async def _ignore(_: Exception) -> None:
    """A lost connection is what the soak is about; publishers see it as an ack that never came."""
