"""Lines from standard input.

There is no acknowledgement on a pipe: reading stops while the spool is full, which holds the writer
back. What was read and not yet durable when the process is killed is lost; that is at most one read
and one commit.
"""

import asyncio
import os
import select
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field
from typing_extensions import override

from penstock.collector.limits import LINE_BYTES_MAX, READ_BYTES
from penstock.collector.sources.line_framing import Line, LineCutter
from penstock.collector.sources.settings import LinesSettings
from penstock.collector.sources.source import Source, SourceContext
from penstock.collector.spool.writer import SpoolWriter, payload_of_lines


class StdinSettings(LinesSettings):
    """Lines from standard input; reading stops while the spool is full."""

    type: Literal["stdin"]
    service: str = Field(default="stdin", min_length=1)
    max_line_bytes: int = Field(default=LINE_BYTES_MAX, ge=64, le=LINE_BYTES_MAX)


class StdinSource(Source):
    """Reads a file descriptor to its end; the end of input is a normal end of `run`."""

    settings = StdinSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: SourceContext) -> Self:
        return cls(
            settings.service,
            settings.max_line_bytes,
            spool_writer=context.spool_writer(),
            rules=settings.line_options(),
        )

    def __init__(
        self,
        service: str,
        max_line_bytes: int,
        *,
        spool_writer: SpoolWriter,
        descriptor: int = 0,
        rules: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = spool_writer.source
        self._rules = rules
        self._service = service
        self._lines = LineCutter(max_line_bytes)
        self._spool_writer = spool_writer
        self._descriptor = descriptor
        self._stopping = asyncio.Event()

    @override
    async def start(self) -> None:
        """Do nothing: standard input is open."""

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
        self._spool_writer.log.info("stdin_ended")

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

    async def _take(self, lines: Sequence[Line]) -> None:
        if not lines:
            return
        payload = payload_of_lines(lines, service=self._service, rules=self._rules)
        self._spool_writer.note("lines_truncated", len(payload.meta["truncated"]))
        try:
            await self._spool_writer.persist_with_retry(payload)
        except asyncio.CancelledError:
            if self._lines.waits:  # a line that has begun goes, too
                self._spool_writer.dropped("stopped", 1)
            raise
