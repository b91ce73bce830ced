"""Looks at the newest records of the busiest streams again and again, for the specs they have."""

import asyncio
from typing import Any, Final

from penstock.base.clock import Clock
from penstock.deploy.console.poller import Poller
from penstock.deploy.console.records import RecordReader, newest_values
from penstock.deploy.console.specs.catalog import SpecCatalog, violations
from penstock.deploy.console.streams import Streams
from penstock.logd.errors import LogdError

INTERVAL_S: Final = 10.0
PARTITIONS_MAX: Final = 16
"""Partitions of one look: those that grow fastest."""

RECORDS_MAX: Final = 200
"""Records of each partition that one look reads."""


class SpecSampler:
    """The specs of one console's streams.

    Args:
        streams: The streams to sample.
        polling: Knows the collectors, which say what they refused.
        clock: Says when.
        interval_s: Seconds between two looks.
    """

    def __init__(
        self, streams: Streams, polling: Poller, clock: Clock, *, interval_s: float = INTERVAL_S
    ) -> None:
        self._streams, self._polling, self._clock = streams, polling, clock
        self._interval_s = interval_s
        self._catalog = SpecCatalog()
        self._ends: dict[tuple[str, int], int] = {}
        self._problem = ""

    async def run(self, log: RecordReader) -> None:
        """Look for ever."""
        while True:
            await self._look(log)
            await asyncio.sleep(self._interval_s if self._ends else 1)

    def describe(self) -> dict[str, Any]:
        """The document of the page: `specs`, `violations`, `problem`."""
        collectors = [
            (part.name, part.info("reconciliation"))
            for part in self._polling.seen()
            if part.component == "collector"
        ]
        return {
            "specs": self._catalog.describe(self._clock.unix_ns() // 10**9),
            "violations": violations(collectors),
            "problem": self._problem,
        }

    async def _look(self, log: RecordReader) -> None:
        rows = [
            row
            for row in self._streams.rows
            if row["end"] is not None and not row["stream"].startswith("__")
        ]
        grown = {}
        for row in rows:
            key = (row["stream"], row["partition"])
            # The first look tells what there is, and not how fast it comes.
            before = self._ends.get(key)
            grown[key] = (row["end"] if before is None or row["end"] < before else before, row)
        # Of those that grow as fast, first the ones that nobody has looked at.
        busiest = sorted(
            grown, key=lambda key: (grown[key][0] - grown[key][1]["end"], key in self._ends)
        )
        self._problem = ""
        for stream, partition in busiest[:PARTITIONS_MAX]:
            before, row = grown[stream, partition]
            end = row["end"]
            first = (stream, partition) not in self._ends
            self._ends[stream, partition] = end
            start = max(row["start"], end - RECORDS_MAX, 0 if first else before)
            if start < end:
                try:
                    values = await newest_values(log, stream, partition, start, RECORDS_MAX)
                except (LogdError, OSError) as error:
                    self._problem = f"{stream}: {error}"
                    continue
                unix_s = self._clock.unix_ns() // 10**9
                self._catalog.note(stream, values, end - before, unix_s)
        known = grown.keys()
        self._ends = {key: end for key, end in self._ends.items() if key in known}
