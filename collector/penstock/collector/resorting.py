"""Other rules that sort records into lanes, while the collector runs.

Before a record is sorted by them, the checkpoint says so; whoever starts from it believes of what
the producers' sequences say only what the same rules sorted.
"""

from collections.abc import Callable, Iterable
from uuid import UUID, uuid4

from penstock.collector.core.sorting import UNKNOWN, Rules, Sorting
from penstock.collector.engine import Engine
from penstock.collector.saving import Saver
from penstock.collector.sources.file import FileSource
from penstock.service import ServiceError


class Resorting:
    """The change from the rules that hold to others: `announce`, then `apply` or `take_back`.

    Args:
        file_sources: Those that run, now.
    """

    def __init__(
        self, engine: Engine, saver: Saver, file_sources: Callable[[], Iterable[FileSource]]
    ) -> None:
        self._engine = engine
        self._saver = saver
        self._file_sources = file_sources
        self._before: Sorting | None = None

    async def announce(self, rules: Rules) -> None:
        """Make durable that no rules are to be relied on, if these are others.

        Raises:
            ServiceError: It cannot be; those that hold go on to.
        """
        before = self._saver.sorting
        if rules == before.rules:
            return
        self._before = before
        self._saver.sorting = Sorting(UNKNOWN, before.since)
        if not await self._saver.save():
            self.take_back()
            raise ServiceError(
                "the checkpoint cannot be written, and where records go would change",
                fix="look at the disk, and reload again",
            )

    def take_back(self) -> None:
        """Nothing was sorted otherwise."""
        if self._before is not None:
            self._saver.sorting, self._before = self._before, None

    def apply(self, rules: Rules) -> UUID:
        """Others hold from what is sorted next; returns the incarnation that publishes it.

        A new one where something is read that an earlier run may have sorted by those before, and
        delivered: it would be taken for that.
        """
        if self._before is not None:
            if self._reads_again():
                self._saver.incarnation = uuid4()
                self._engine.delivery.retire_idle()
            self._saver.sorting = self._before.changed(rules, self._begun())
            self._before = None
        return self._saver.incarnation

    def _begun(self) -> dict[str, int]:
        """By origin, the position before which everything was begun to be sorted."""
        tails = (tail for source in self._file_sources() for tail in source.tails)
        return self._engine.begun | {tail.state.origin: tail.lines.position for tail in tails}

    def _reads_again(self) -> bool:
        generations = self._engine.generations
        tails = (tail for source in self._file_sources() for tail in source.tails)
        files = [tail.state for tail in tails if tail.reads_again] + generations.waiting
        return self._engine.reads_again or any(f.generation < generations.first for f in files)
