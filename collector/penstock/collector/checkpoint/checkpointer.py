"""The checkpoint of a running collector: written before the spool frees what is delivered.

The drop journal is written before it, for records before the checkpoint are not read again.

A full disk has no room for a new checkpoint, and without one the spool could never free any; nor
for the segment that the spool goes on in, where the only one is to go. So a file of a checkpoint's
size is kept in reserve for that case.
"""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.base.uncancelled import uncancelled
from penstock.collector import failpoints
from penstock.collector.checkpoint.state import SPOOL_ORIGIN, SPOOL_ORIGINS, URGENT_ORIGIN, State
from penstock.collector.delivery.core import Delivery
from penstock.collector.drops.journal import DropJournal
from penstock.collector.sources.files.identity import FileState, Generations
from penstock.collector.sources.files.source import FileSource
from penstock.collector.spool.replay import Replayer
from penstock.collector.spool.spool import Spools

if TYPE_CHECKING:
    from penstock.collector.checkpoint.recovery import DataDirectory

NAME: Final = "reserve"
_BYTES_MIN: Final = 256 * 1024
_CHECKPOINTS: Final = 4
HELD_SHARE: Final = 2
"""One part in so many of a spool may be kept for records that transforms hold in memory."""


class Reserve:
    """The file.

    Args:
        directory: The collector's data directory.
        checkpoint: The file that it is for.
    """

    def __init__(self, directory: Path, checkpoint: Path) -> None:
        self._path = directory / NAME
        self._checkpoint = checkpoint
        self._bytes = 0
        self._log = structlog.get_logger()

    def make(self) -> None:
        """Take the room, or more of it, where there is some."""
        try:
            size = max(_BYTES_MIN, _CHECKPOINTS * self._checkpoint.stat().st_size)
            if size <= self._bytes:
                return
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, size)
            finally:
                os.close(descriptor)
        except OSError as error:  # it goes on without, as long as the disk has room
            self._log.debug("checkpoint_preallocation_failed", error=str(error))
        else:
            self._bytes = size

    def give(self) -> None:
        """Give the room to who writes next; a disk that changes nothing says so there."""
        self._bytes = 0
        with suppress(OSError):
            self._path.unlink()


_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class Checkpointer:
    """Writes the checkpoint.

    Args:
        drops: Drop journal, which is written before each checkpoint.
        file_sources: Those whose positions are part of it, now.

    Attributes:
        routing: The route fingerprint that the next one names.
        incarnation: Incarnation in the checkpoint.
        settle_routing: Called before each save; may set `routing`.
        trouble: Why it could not be written the last time; empty when it could.
    """

    def __init__(  # noqa: PLR0913 - what a checkpoint is of
        self,
        directory: "DataDirectory",
        spools: Spools,
        delivery: Delivery,
        generations: Generations,
        replayer: Replayer,
        *,
        drops: DropJournal,
        file_sources: Callable[[], Iterable[FileSource]],
    ) -> None:
        self._checkpoint = directory.checkpoint
        self._reserve = Reserve(directory.path, directory.checkpoint.path)
        self.state = directory.state
        self._spools = spools
        self._replayer = replayer
        self._delivery = delivery
        self._drops = drops
        self._generations = generations
        self._file_sources = file_sources
        self.trouble = ""
        self._saving = asyncio.Lock()
        self._saved: dict[str, Any] = {}
        self._saved_at: tuple[Any, ...] = ()
        self.routing = self.state.routing
        self.incarnation = self.state.incarnation
        self.settle_routing: Callable[[], None] = lambda: None
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

    async def save(self, *, lets_go: bool = True) -> bool:
        """Write the checkpoint; then, and only then, give back what it has passed.

        Args:
            lets_go: Whether a spool that lacks room is held back no more.

        Returns:
            Whether what is known now is durable.
        """
        async with self._saving:
            if lets_go:
                self._let_go_of_full_spools()
            self.settle_routing()
            at = self._revisions()
            if at == self._saved_at:  # what thousands of idle files are need not be asked again
                return await self._confirm()
            state = self._now()
            document = state.as_document()
            if document == self._saved:
                self._saved_at = at
                return await self._confirm()
            await self._drops.flush()
            error = await self._write(state, document)
            if error is not None and error.errno in _FULL:
                async with self._reserve_given():
                    error = await self._write(state, document)
            if error is None:
                await self._give_back()
                await asyncio.to_thread(self._reserve.make)  # as large as the checkpoint asks for
            self._saved_at = at if error is None else ()
            self.trouble = "" if error is None else f"checkpoint cannot be written: {error}"
            if error is not None:
                self._log.warning("checkpoint_write_failed", error=str(error))
            return error is None

    async def _confirm(self) -> bool:
        """Finish a save of an unchanged checkpoint, which is durable already; return True."""
        if any(spool.journal.wants_room for spool in self._spools.both):
            await self._give_back()  # what could not be, when it was saved
        self.trouble = ""
        return True

    async def _write(self, state: State, document: dict[str, Any]) -> OSError | None:
        failpoints.passed("checkpoint_before_write")
        try:
            await uncancelled(asyncio.to_thread(self._checkpoint.save, document))
        except OSError as error:
            return error
        failpoints.passed("checkpoint_after_write")
        self.state, self._saved = state, document
        return None

    async def _give_back(self) -> None:
        """Give back what the checkpoint has passed, which takes a little room, too."""
        if not await self._delete_passed():
            async with self._reserve_given():
                await self._delete_passed()

    async def _delete_passed(self) -> bool:
        bulk = await self._spools.bulk.journal.delete_before(self.state.cursor)
        urgent = await self._spools.urgent.journal.delete_before(self.state.urgent_cursor)
        return bulk and urgent

    @asynccontextmanager
    async def _reserve_given(self) -> AsyncIterator[None]:
        bulk, urgent = self._spools.bulk.journal, self._spools.urgent.journal
        async with bulk.held(), urgent.held():  # or they would fill what is given
            self._reserve.give()
            yield
            await asyncio.to_thread(self._reserve.make)

    def _let_go_of_full_spools(self) -> None:
        """Hold nothing back in a spool that lacks room: what transforms give out needs it."""
        for spool in self._spools.both:
            journal = spool.journal
            is_full = journal.used_bytes * HELD_SHARE >= journal.bytes_max
            if not (is_full or journal.lacks_space):
                continue
            held = self._delivery.held_at(spool.origin)
            if held is not None and self._delivery.let_go(spool.origin):
                spool.note("holds_let_go")
                self._log.warning(
                    "holds_let_go",
                    spool=spool.origin,
                    position=held,
                    reason=f"the {'spool is half' if is_full else 'disk is'} full: "
                    "a kill loses records that transforms hold",
                )

    def _revisions(self) -> tuple[Any, ...]:
        """Return a value that is another one whenever `_now` may be."""
        return (
            self.incarnation,
            self.routing,
            self._replayer.done,
            self._spools.bulk.senders.snapshot(),
            self._spools.urgent.senders.snapshot(),
            self._delivery.revision,
            self._generations.following,
            len(self._generations.waiting),
            [(source, source.rounds) for source in self._file_sources()],
        )

    def _now(self) -> State:
        sources = list(self._file_sources())
        names = {source.name for source in sources}
        absent = (s for s in self._generations.waiting if s.source not in names)
        # A source and its successor both name what waits for that one.
        named = (state for source in sources for state in source.states)
        files = {state.generation: self._held_back(state) for state in (*absent, *named)}
        cursors = {origin: self._delivery.cursor(origin) for origin in SPOOL_ORIGINS}
        return State(
            incarnation=self.incarnation,
            quarantine=self.state.quarantine,
            cursor=cursors[SPOOL_ORIGIN],
            urgent_cursor=cursors[URGENT_ORIGIN],
            replayed=self._replayer.done,
            senders=self._spools.bulk.senders.snapshot(),
            urgent_senders=self._spools.urgent.senders.snapshot(),
            queues=self._delivery.done(),
            files=[files[generation] for generation in sorted(files)],
            new_from=self._new_from(files.values()),
            next_generation=self._generations.following,
            sources=sorted({*self.state.sources, *names}),
            routing=self.routing,
        )

    def _new_from(self, files: Iterable[FileState]) -> dict[str, dict[str, int]]:
        """Return from where on records are new to transforms; of files as far as they are known."""
        found = {origin: self._delivery.new_from(origin) for origin in SPOOL_ORIGINS}
        for state in files:
            known = 0 if state.mark is None else state.mark.end
            positions = self._delivery.new_from(state.origin)
            found[state.origin] = {name: min(known, at) for name, at in positions.items()}
        return {origin: positions for origin, positions in found.items() if positions}

    def _held_back(self, state: FileState) -> FileState:
        """The state of a file as a start shall find it: transforms may hold records of it."""
        held = self._delivery.held_at(state.origin)
        return state if held is None or held >= state.position else replace(state, position=held)
