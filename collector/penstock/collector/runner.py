"""Sources kept running: one that fails is made anew after a while, and the others go on.

A file source's successor reads from where delivery is done, so it begins only when all that was
read is: what the one before had in its hands when it failed is then met again, and what was done
is skipped, as after a crash.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from penstock.base.backoff import Backoff, Restarts
from penstock.base.clock import Clock
from penstock.collector.core.delivery import Delivery
from penstock.collector.core.ledger import Ledger
from penstock.collector.limits import RESTART_CALM_S, RESTART_MAX_S, RESTART_MIN_S
from penstock.collector.source_sections import Source as Section
from penstock.collector.sources.file import FileSource
from penstock.collector.sources.source import Source

_POLL_S = 0.05
_REASON_CHARACTERS_MAX = 200


def _restarts() -> Restarts:
    return Restarts(Backoff(RESTART_MIN_S, RESTART_MAX_S), calm=RESTART_CALM_S)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What runners need of the collector.

    Attributes:
        restarts: Makes what says how long a source that failed waits.
    """

    make: Callable[[Section], Source]
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
        self, section: Section, around: Surroundings, *, predecessor: "Runner | None" = None
    ) -> None:
        self.section = section
        self.source = around.make(section)
        self.predecessor = predecessor
        self.trouble = ""
        self._around = around
        self._restarts = around.restarts()
        self._stopping = asyncio.Event()
        self._log = structlog.get_logger().bind(source=self.source.name)

    @property
    def name(self) -> str:
        """The source's."""
        return self.source.name

    @property
    def file_sources(self) -> list[FileSource]:
        """Those whose files' positions belong into the checkpoint now."""
        found = [] if self.predecessor is None else self.predecessor.file_sources
        return [*found, self.source] if isinstance(self.source, FileSource) else found

    async def run(self) -> None:
        """Keep a source that was started running; returns when it has ended or was stopped."""
        clock = self._around.clock
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
        """Whether everything that the source read itself, not through the spool, is delivered."""
        return not self.file_sources or not self._around.delivery.is_pending(self.name)

    async def hand_over(self) -> None:
        """Return when a successor may begin; what this one knew is where that one looks."""
        while not self.is_done:  # noqa: ASYNC110 - delivery tells nobody
            await asyncio.sleep(_POLL_S)
        self.let_go()

    def let_go(self) -> None:
        """Leave what is known of files to whoever comes next; everything that was read is done."""
        sources = self.file_sources
        for source in sources:
            source.hand_over()
        if sources:
            self._around.ledger.unread(self.name)
        self.predecessor = None

    def failed(self, error: Exception) -> None:
        """It cannot run for this reason; `run` tries again after a while."""
        self.trouble = f"{type(error).__name__}: {error}"[:_REASON_CHARACTERS_MAX]
        self._around.ledger[self.name].notes["failures"] += 1
        self._log.error("a source failed; it begins again after a while", exc_info=error)

    async def _begin_again(self) -> bool:
        """Make the source anew and start it; false when it is to stop instead."""
        await self.hand_over()
        if self._stopping.is_set():
            return False
        self.source = self._around.make(self.section)
        await self.source.start()
        self.trouble = ""
        self._log.info("source began again", restarts=self._restarts.count)
        return True

    async def _close(self) -> None:
        """Give back its ports and descriptors."""
        try:
            await self.source.stop()
        except Exception as error:  # noqa: BLE001 - it failed before; the first reason counts
            self._log.warning("a failed source could not be stopped", error=str(error))

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True
