"""Sources kept running: one that fails is made again after a while, and the others go on.

A file source's successor reads from where delivery is done, so it begins only when all that was
read is: what the one before had in its hands when it failed is then met again, and what was done
is skipped, as after a crash.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from penstock.base.backoff import Backoff, Restarts
from penstock.base.clock import Clock
from penstock.collector.delivery.core import Delivery
from penstock.collector.ledger import Ledger
from penstock.collector.limits import RESTART_CALM_S, RESTART_MAX_S, RESTART_MIN_S
from penstock.collector.registry import SOURCES
from penstock.collector.sources.files.source import FileSource
from penstock.collector.sources.settings import SourceSettings
from penstock.collector.sources.source import Source, SourceContext
from penstock.service import ServiceError


def make_source(settings: SourceSettings, context: SourceContext) -> Source:
    """Make a source of its settings; `context` gets its name."""
    own = replace(context, name=settings.name or settings.type)
    source: Source = SOURCES.kind(settings.type).factory.from_settings(settings, own)
    return source


_POLL_S = 0.05
_REASON_CHARACTERS_MAX = 200


def _restarts() -> Restarts:
    return Restarts(Backoff(RESTART_MIN_S, RESTART_MAX_S), calm=RESTART_CALM_S)


@dataclass(frozen=True, slots=True)
class RunnerContext:
    """Parts of the collector that runners need.

    Attributes:
        restarts: Makes the policy of how long a failed source waits.
    """

    make: Callable[[SourceSettings], Source]
    delivery: Delivery
    ledger: Ledger
    clock: Clock
    restarts: Callable[[], Restarts] = _restarts


class Runner:
    """One configured source, whichever object it is now.

    Args:
        section: Its configuration.
        predecessor: Ran under another configuration; what it read is delivered first.

    Attributes:
        source: The source that runs or ran last.
        trouble: Why it does not run now; empty when it does, or has ended.
    """

    def __init__(
        self,
        section: SourceSettings,
        context: RunnerContext,
        *,
        predecessor: "Runner | None" = None,
    ) -> None:
        self.section = section
        self.source = context.make(section)
        self.predecessor = predecessor
        self.trouble = ""
        self._context = context
        self._restarts = context.restarts()
        self._stopping = asyncio.Event()
        self._log = structlog.get_logger().bind(source=self.source.name)

    @property
    def name(self) -> str:
        """The source's."""
        return self.source.name

    @property
    def file_sources(self) -> list[FileSource]:
        """File sources whose positions belong into the checkpoint now."""
        found = [] if self.predecessor is None else self.predecessor.file_sources
        return [*found, self.source] if isinstance(self.source, FileSource) else found

    async def run(self) -> None:
        """Keep a source that was started running; returns when it has ended or was stopped."""
        clock = self._context.clock
        while True:
            began_ns = clock.monotonic_ns()
            try:
                if self.predecessor is not None:
                    await self.predecessor.hand_over()
                    self.predecessor = None
                if self._stopping.is_set() or (self.trouble and not await self._begin_again()):
                    return
                await self.source.run()
            except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
                self.failed(error)
            else:
                return
            if self._stopping.is_set():
                return
            wait_s = self._restarts.failed((clock.monotonic_ns() - began_ns) / 1e9)
            await self._close()
            if await self._stopped_within(wait_s):
                return

    async def stop(self) -> None:
        """Take nothing more; `run` returns."""
        self._stopping.set()
        try:
            await self.source.stop()
        except Exception as error:  # noqa: BLE001 - a source that cannot stop is cancelled
            self.failed(error)

    @property
    def is_done(self) -> bool:
        """True if all that the source read itself, not through the spool, is delivered."""
        return not self.file_sources or not self._context.delivery.is_pending(self.name)

    async def hand_over(self) -> None:
        """Return when a successor may begin; what this one knew is where that one looks."""
        while not self.is_done:  # noqa: ASYNC110 - delivery tells nobody
            await asyncio.sleep(_POLL_S)
        self.let_go()

    def let_go(self) -> None:
        """Leave what is known of files to the successor; everything that was read is done."""
        sources = self.file_sources
        for source in sources:
            source.hand_over()
        if sources:
            self._context.ledger.unread(self.name)
        self.predecessor = None

    def failed(self, error: Exception) -> None:
        """It cannot run for this reason; `run` tries again after a while."""
        self.trouble = f"{type(error).__name__}: {error}"[:_REASON_CHARACTERS_MAX]
        self._context.ledger[self.name].notes["failures"] += 1
        self._log.error("source_failed", exc_info=error)

    async def _begin_again(self) -> bool:
        """Make the source again and start it; false when it is to stop instead."""
        await self.hand_over()
        if self._stopping.is_set():
            return False
        self.source = self._context.make(self.section)
        await self.source.start()
        self.trouble = ""
        self._log.info("source_restarted", restarts=self._restarts.count)
        return True

    async def _close(self) -> None:
        """Give back its ports and descriptors."""
        try:
            await self.source.stop()
        except Exception as error:  # noqa: BLE001 - it failed before; the first reason counts
            self._log.warning("source_stop_failed", error=str(error))

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True


STOP_WAIT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Difference:
    """Names of sources, by what becomes of them."""

    kept: tuple[str, ...]
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]


class SourceSet:
    """Sources by name, each run by its own task.

    Args:
        stop_wait_s: Maximum seconds in which an exchanged source stops.

    Attributes:
        around: Context of new sources.
        ended: Set when every source has ended by itself, as standard input does.
    """

    def __init__(self, context: RunnerContext, *, stop_wait_s: float = STOP_WAIT_S) -> None:
        self.context = context
        self._stop_wait_s = stop_wait_s
        self.ended = asyncio.Event()
        self._runners: dict[str, Runner] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leaving: list[Runner] = []
        self._changing = False
        self._log = structlog.get_logger()

    @property
    def runners(self) -> list[Runner]:
        return list(self._runners.values())

    @property
    def file_sources(self) -> list[FileSource]:
        """File sources whose positions belong into the checkpoint, also of leaving sources."""
        for runner in [runner for runner in self._leaving if runner.is_done]:
            runner.let_go()
            self._leaving.remove(runner)
        everyone = [*self._runners.values(), *self._leaving]
        return [source for runner in everyone for source in runner.file_sources]

    async def start(self, sections: Iterable[SourceSettings]) -> None:
        """Start every source; `run` makes them receive.

        Raises:
            ServiceError: One cannot be started.
        """
        for section in sections:
            runner = Runner(section, self.context)
            await runner.source.start()
            self._runners[runner.name] = runner

    def run(self) -> None:
        """Receive."""
        for runner in self.runners:
            self._run(runner)

    async def stop(self) -> None:
        """Take nothing more; sources that end by themselves have ended on return."""
        await asyncio.gather(*(runner.stop() for runner in self.runners))
        finite = [
            self._tasks[name]
            for name, runner in self._runners.items()
            if runner.source.endpoint is None and name in self._tasks
        ]
        if finite:
            await asyncio.wait(finite)

    async def cancel(self) -> None:
        """End what still runs."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def change(self, sections: Sequence[SourceSettings], difference: Difference) -> None:
        """Run these sources instead; what is kept goes on undisturbed.

        Sources that are new are started first, so that one that cannot be costs the others nothing.
        One that comes back while it leaves goes on where that one stops.

        Raises:
            ServiceError: One cannot be started; all run as they did.
        """
        wanted = {section.name or section.type: section for section in sections}
        old = [self._runners[name] for name in (*difference.changed, *difference.removed)]
        leaving = {runner.name: runner for runner in self._leaving}
        fresh: list[Runner] = []
        stopped: list[Runner] = []
        self._changing = True
        try:
            for name in difference.added:
                fresh.append(  # noqa: PERF401 - those before one that fails must be known
                    await self._started(wanted[name], leaving.get(name))
                )
            stopped += old
            await _all(self._end(runner) for runner in old)
            for name in difference.changed:
                fresh.append(  # noqa: PERF401 - likewise
                    await self._started(wanted[name], self._runners[name])
                )
        except BaseException:
            await _all(self._stop(runner) for runner in fresh)
            for runner in stopped:
                await self._revive(runner)
            raise
        finally:
            self._changing = False
        self._leaving = [
            *(runner for runner in self._leaving if runner.name not in difference.added),
            *(self._runners.pop(name) for name in difference.removed),
        ]
        for runner in fresh:
            self._runners[runner.name] = runner
            self._run(runner)
        self._runners = {name: self._runners[name] for name in wanted}

    async def _started(self, section: SourceSettings, predecessor: Runner | None = None) -> Runner:
        runner = Runner(section, self.context, predecessor=predecessor)
        try:
            await runner.source.start()
        except BaseException:
            await self._stop(runner)
            raise
        return runner

    async def _end(self, runner: Runner) -> None:
        """Stop a source, and return when its task has ended; both share the time for it."""
        task = self._tasks.pop(runner.name)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._stop_wait_s
        try:
            await self._stop(runner)
            left = deadline - loop.time() if runner.source.endpoint is None else 0
            await asyncio.wait([task], timeout=max(0, left))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _stop(self, runner: Runner) -> None:
        """Stop a runner within a limit; one that waits for room in a full spool gives up then."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._stop_wait_s):
                await runner.stop()

    async def _revive(self, old: Runner) -> None:
        """Run a source that was stopped as it was."""
        runner = Runner(old.section, self.context, predecessor=old)
        self._runners[runner.name] = runner
        try:
            await runner.source.start()
        except ServiceError as error:
            runner.failed(error)
        self._run(runner)

    def _run(self, runner: Runner) -> None:
        task = asyncio.get_running_loop().create_task(runner.run())
        self._tasks[runner.name] = task
        task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._log.error("source_ended", exc_info=task.exception())
        if not self._changing and all(one.done() for one in self._tasks.values()):
            self.ended.set()


async def _all(steps: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Carry out steps beside one another, each to its end; raises what one of them raised."""
    for ended in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended


def difference(before: Iterable[SourceSettings], after: Iterable[SourceSettings]) -> Difference:
    """Return what changes between two configurations' sources."""
    old = {section.name or section.type: section for section in before}
    new = {section.name or section.type: section for section in after}
    both = [name for name in new if name in old]
    return Difference(
        kept=tuple(name for name in both if old[name] == new[name]),
        added=tuple(name for name in new if name not in old),
        changed=tuple(name for name in both if old[name] != new[name]),
        removed=tuple(name for name in old if name not in new),
    )
