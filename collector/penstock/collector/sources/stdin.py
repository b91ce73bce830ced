"""Lines from standard input.

There is no acknowledgement on a pipe: reading stops while the spool is full, which holds the writer
back. What was read and not yet durable when the process is killed is lost; that is at most one read
and one commit.
"""

import asyncio
import os
import select

import structlog
from typing_extensions import override

from penstock.collector.core.ledger import Ledger
from penstock.collector.core.lines import Line, LineCutter
from penstock.collector.errors import SpoolFailedError, SpoolFullError
from penstock.collector.limits import READ_BYTES
from penstock.collector.sources.source import Source
from penstock.collector.spool import Spool, Unit
from penstock.service.clock import Clock

_RETRY_S = 1.0


class StdinSource(Source):
    """Reads a file descriptor to its end; the end of input is a normal end of `run`."""

    def __init__(  # noqa: PLR0913 - what it reads, and what it feeds
        self,
        name: str,
        service: str,
        line_bytes_max: int,
        *,
        spool: Spool,
        ledger: Ledger,
        clock: Clock,
        descriptor: int = 0,
    ) -> None:
        self.name = name
        self._service = service
        self._lines = LineCutter(line_bytes_max)
        self._spool = spool
        self._ledger = ledger
        self._clock = clock
        self._descriptor = descriptor
        self._stopping = asyncio.Event()
        self._log = structlog.get_logger().bind(source=name)

    @property
    @override
    def endpoint(self) -> str | None:
        return None

    @override
    async def start(self) -> None:
        """Nothing to prepare: standard input is open."""

    @override
    async def run(self) -> None:
        while not self._stopping.is_set():
            data = await self._read()
            if data is None:
                continue
            if not data:
                break
            await self._take(self._lines.feed(data))
        rest = self._lines.flush()
        if rest is not None:
            await self._take([rest])
        self._log.info("standard input ended")

    @override
    async def stop(self) -> None:
        self._stopping.set()

    async def _read(self) -> bytes | None:
        """The next bytes; empty at the end, None when there was nothing to read for a while."""
        return await asyncio.to_thread(self._read_blocking)

    def _read_blocking(self) -> bytes | None:
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN | select.POLLHUP)
        if not poller.poll(100):
            return None
        try:
            return os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return None

    async def _take(self, lines: list[Line]) -> None:
        if not lines:
            return
        truncated = [index for index, line in enumerate(lines) if line.truncated]
        self._ledger[self.name].notes["lines_truncated"] += len(truncated)
        unit = Unit(
            source=self.name,
            format="lines",
            payload=b"\n".join(line.text for line in lines),
            count=len(lines),
            received_ns=self._clock.unix_ns(),
            meta={"service": self._service, "truncated": truncated},
        )
        while True:
            try:
                future = await self._spool.put(unit)
                assert future is not None
                await future
            except SpoolFullError:
                self._ledger.dropped(self.name, "spool_full", unit.count)
            except SpoolFailedError as error:
                self._log.warning("the spool cannot write; trying again", error=str(error))
                await asyncio.sleep(_RETRY_S)
                continue
            return
