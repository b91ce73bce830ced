"""The checkpoint of a running collector: what is done, written before the spool gives it back."""

import asyncio
import errno
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.collector import failpoints
from penstock.collector.core.delivery import Delivery
from penstock.collector.core.files import Generations
from penstock.collector.replay import Replayer
from penstock.collector.reserve import Reserve
from penstock.collector.sources.file import FileSource
from penstock.collector.spools import Spools
from penstock.collector.state import SPOOL_ORIGIN, SPOOL_ORIGINS, URGENT_ORIGIN, State

if TYPE_CHECKING:
    from penstock.collector.opening import DataDirectory

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class Saver:
    """Writes the checkpoint.

    Args:
        file_sources: Those whose positions are part of it, now.

    Attributes:
        sorting: What the next one says of how records were sorted.
        incarnation: Which it names.
        trouble: Why it could not be written the last time; empty when it could.
    """

    def __init__(
        self,
        directory: "DataDirectory",
        spools: Spools,
        delivery: Delivery,
        generations: Generations,
        replayer: Replayer,
        file_sources: Callable[[], Iterable[FileSource]],
    ) -> None:
        self._checkpoint = directory.checkpoint
        self._reserve = Reserve(directory.path, directory.checkpoint.path)
        self.state = directory.state
        self._spools = spools
        self._replayer = replayer
        self._delivery = delivery
        self._generations = generations
        self._file_sources = file_sources
        self.trouble = ""
        self._saving = asyncio.Lock()
        self._saved: dict[str, Any] = {}
        self.sorting = self.state.sorting
        self.incarnation = self.state.incarnation
        self._log = structlog.get_logger()

    def begin(self) -> None:
        """Write what was found at start, which also makes the incarnation durable."""
        self._saved = self.state.as_document()
        failpoints.passed("recovery_before_checkpoint")
        try:
            self._checkpoint.save(self._saved)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self._reserve.give()  # nothing else is written yet
            self._checkpoint.save(self._saved)
        failpoints.passed("recovery_after_checkpoint")
        self._reserve.make()

    async def run(self, interval_s: Callable[[], float]) -> None:
        """Save regularly, until cancelled."""
        while True:
            await asyncio.sleep(interval_s())
            await self.save()

    async def save(self) -> bool:
        """Write the checkpoint; then, and only then, give back what it has passed.

        Returns:
            Whether what is known now is durable.
        """
        async with self._saving:
            state = self._now()
            document = state.as_document()
            if document == self._saved:
                if any(spool.journal.wants_room for spool in self._spools.both):
                    await self._give_back()  # what could not be, when it was saved
                self.trouble = ""
                return True
            error = await self._write(state, document)
            if error is not None and error.errno in _FULL:
                bulk, urgent = self._spools.bulk.journal, self._spools.urgent.journal
                async with bulk.held(), urgent.held():  # or they would fill what is given
                    self._reserve.give()
                    error = await self._write(state, document)
                    await asyncio.to_thread(self._reserve.make)
            self.trouble = "" if error is None else f"checkpoint cannot be written: {error}"
            if error is not None:
                self._log.warning("checkpoint cannot be written", error=str(error))
            return error is None

    async def _write(self, state: State, document: dict[str, Any]) -> OSError | None:
        failpoints.passed("checkpoint_before_write")
        try:
            await asyncio.to_thread(self._checkpoint.save, document)
        except OSError as error:
            return error
        failpoints.passed("checkpoint_after_write")
        self.state, self._saved = state, document
        await self._give_back()
        await asyncio.to_thread(self._reserve.make)
        return None

    async def _give_back(self) -> None:
        await self._spools.bulk.journal.delete_before(self.state.cursor)
        await self._spools.urgent.journal.delete_before(self.state.urgent_cursor)

    def _now(self) -> State:
        sources = list(self._file_sources())
        names = {source.name for source in sources}
        absent = (s for s in self._generations.waiting if s.source not in names)
        # A source and its successor both name what waits for that one.
        named = (state for source in sources for state in source.states)
        files = {state.generation: state for state in (*absent, *named)}
        cursors = {origin: self._delivery.cursor(origin) for origin in SPOOL_ORIGINS}
        positions = {state.origin: state.position for state in files.values()}
        return State(
            incarnation=self.incarnation,
            quarantine=self.state.quarantine,
            cursor=cursors[SPOOL_ORIGIN],
            urgent_cursor=cursors[URGENT_ORIGIN],
            replayed=self._replayer.done,
            senders=self._spools.bulk.senders.snapshot(),
            urgent_senders=self._spools.urgent.senders.snapshot(),
            lanes=self._delivery.done(),
            files=[files[generation] for generation in sorted(files)],
            next_generation=self._generations.following,
            sources=sorted({*self.state.sources, *names}),
            sorting=self.sorting.after({**cursors, **positions}),
        )
