"""Records that transforms make, brought to the spool as from a source with the transform's name."""

import asyncio
from typing import Final

from penstock.collector.budget import Budget
from penstock.collector.core.ledger import Ledger
from penstock.collector.intake import Intake, Payload
from penstock.collector.pipeline import Pipeline
from penstock.collector.spools import Spooling
from penstock.collector.transforms.graph import Graph
from penstock.service.clock import Clock

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

    async def run(self) -> None:
        """Take what is due, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            pipeline = self._pipeline
            while pipeline.retired:
                await self._take(pipeline.retired.pop(0), everything=True)
            if pipeline.graph.creators():
                await self._take(pipeline.graph, everything=False)

    async def finish(self) -> bool:
        """Take all there is, as before the end; whether there was any."""
        pipeline = self._pipeline
        graphs = [*pipeline.retired, pipeline.graph]
        pipeline.retired.clear()
        return any([await self._take(graph, everything=True) for graph in graphs])

    async def _take(self, graph: Graph, *, everything: bool) -> bool:
        clock = self._clock
        due = graph.flush(clock.monotonic_ns(), clock.unix_ns(), everything=everything)
        for name, lines in due.items():
            share = self._budget.share(name)
            intake = Intake(name, spool=self._spool, ledger=self._ledger, clock=clock, share=share)
            await intake.keep_surely(Payload("ndjson", b"\n".join(lines), len(lines)))
        return bool(due)
