"""Records that transforms make, brought to the spool as from a source with the transform's name.

The records that they were made of are done with: what is made is held until it is durable, or is
counted in the end.
"""

import asyncio
from collections import deque
from functools import partial
from typing import Final

from penstock.base.clock import Clock
from penstock.collector.budget import Budget
from penstock.collector.core.ledger import Ledger
from penstock.collector.errors import SpoolFailedError, SpoolFullError
from penstock.collector.intake import Intake, Payload, leave_where_it_fails
from penstock.collector.pipeline import Pipeline
from penstock.collector.spools import Spooling
from penstock.collector.transforms.graph import Graph

_LOOK_S: Final = 0.1
"""Between looks for what is due; the shortest interval is as long."""


class CreatedRecords:
    """Empties the pipeline's graph, whichever it is at the time, and those it has left."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        spool: Spooling,
        ledger: Ledger,
        budget: Budget,
        clock: Clock,
    ) -> None:
        self._pipeline = pipeline
        self._spool = spool
        self._ledger = ledger
        self._budget = budget
        self._clock = clock
        self._made: deque[tuple[str, Payload]] = deque()
        self._keeping = asyncio.Lock()

    async def run(self) -> None:
        """Take what is due, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            async with self._keeping:
                self._flush(everything=False)
                await self._keep()

    async def finish(self) -> bool:
        """Take all there is, as before the end; whether there was any."""
        found = self._keeping.locked()  # `run` may be at it
        async with self._keeping:
            self._flush(everything=True)
            found |= bool(self._made)
            await self._keep()
        return found

    async def leave(self) -> None:
        """At the end, hand over what there is without waiting for room.

        `give_up` counts what does not become durable.
        """
        self._flush(everything=True)
        made, self._made = self._made, deque()
        for name, payload in made:
            leave = partial(self._left, name)
            try:
                future = await self._intake(name).offer(payload, wait=False)
            except (SpoolFullError, SpoolFailedError):
                leave(payload)
            else:
                leave_where_it_fails(future, payload, leave)

    def give_up(self) -> None:
        """Count what is left as dropped."""
        for name, payload in self._made:
            self._ledger.dropped(name, "stopped", payload.count)
        self._made.clear()

    def _flush(self, *, everything: bool) -> None:
        pipeline = self._pipeline
        while pipeline.retired:
            self._take(pipeline.retired.pop(0), everything=True)
        self._take(pipeline.graph, everything=everything)

    def _take(self, graph: Graph, *, everything: bool) -> None:
        clock = self._clock
        due = graph.flush(clock.monotonic_ns(), clock.unix_ns(), everything=everything)
        for name, lines in due.items():
            self._made.append((name, Payload("ndjson", b"\n".join(lines), len(lines))))

    async def _keep(self) -> None:
        while self._made:
            name, payload = self._made.popleft()
            await self._intake(name).keep_surely(payload, leave=partial(self._left, name))

    def _left(self, name: str, payload: Payload) -> None:
        self._made.append((name, payload))

    def _intake(self, name: str) -> Intake:
        return Intake(
            name,
            spool=self._spool,
            ledger=self._ledger,
            clock=self._clock,
            share=self._budget.share(name),
        )
