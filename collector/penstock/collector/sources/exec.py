"""Lines that a program writes: one that goes on, or one that is run again and again.

Both outputs become log records, distinguished by ``log.iostream``. There is no acknowledgement: the
program is held back while the spool has no room, and what was read and not yet durable when the
process is killed is lost. A program that ends is started again after a wait that doubles.
"""

import asyncio
import contextlib
import shutil
from typing import Any, Literal, Self

from pydantic import Field
from typing_extensions import override

from penstock.base.backoff import Backoff
from penstock.collector.limits import (
    LINE_BYTES_MAX,
    READ_BYTES,
    RESTART_CALM_S,
    RESTART_MAX_S,
    RESTART_MIN_S,
)
from penstock.collector.sources.line_framing import LineCutter
from penstock.collector.sources.program import OUTPUT_GRACE_S, Program
from penstock.collector.sources.settings import LinesSettings
from penstock.collector.sources.source import Source, SourceContext
from penstock.collector.spool.writer import SpoolWriter, payload_of_lines
from penstock.service import NoNul


class ExecSettings(LinesSettings):
    """Lines that a program writes to its outputs."""

    type: Literal["exec"]
    command: list[NoNul] = Field(min_length=1, description="program and arguments; no shell")
    interval_s: float | None = Field(
        default=None, ge=0.1, le=86_400, description="none: it goes on, and is started when it ends"
    )
    timeout_s: float = Field(default=60.0, gt=0, le=86_400, description="of one run by interval")
    service: str = Field(min_length=1)
    max_line_bytes: int = Field(default=LINE_BYTES_MAX, ge=64, le=LINE_BYTES_MAX)


class ExecSource(Source):
    """Runs one command, without a shell.

    Args:
        restart_min_s: The first wait before a program that ended is started again.
        output_grace_s: The grace of each run: see `Program`.
    """

    settings = ExecSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: SourceContext) -> Self:
        return cls(settings, spool_writer=context.spool_writer())

    def __init__(
        self,
        section: ExecSettings,
        *,
        spool_writer: SpoolWriter,
        restart_min_s: float = RESTART_MIN_S,
        output_grace_s: float = OUTPUT_GRACE_S,
    ) -> None:
        self.name = spool_writer.source
        self._section = section
        self._spool_writer = spool_writer
        self._stopping = asyncio.Event()
        self._missing = ""
        self._restart_min_s, self._output_grace_s = restart_min_s, output_grace_s

    @override
    async def start(self) -> None:
        """Do nothing: `run` looks again for a program that is not there."""

    @override
    async def run(self) -> None:
        backoff = Backoff(self._restart_min_s, RESTART_MAX_S)
        while not self._stopping.is_set():
            self._look()
            began_ns = self._spool_writer.clock.monotonic_ns()
            status = await self._run_once()
            lasted_s = (self._spool_writer.clock.monotonic_ns() - began_ns) / 1e9
            if status != 0 and not self._stopping.is_set():
                self._spool_writer.note("exits_with_failure")
                self._spool_writer.log.warning("program_failed", status=status)
            interval_s = self._section.interval_s
            if interval_s is not None:
                await self._pause(max(0.0, interval_s - lasted_s))
                continue
            if lasted_s > RESTART_CALM_S:
                backoff.reset()
            await self._pause(backoff.next_wait())

    @override
    async def stop(self) -> None:
        self._stopping.set()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    @property
    @override
    def trouble(self) -> str:
        return self._missing

    def _look(self) -> None:
        """See whether the program is there; said once when it is not, and once when it is again."""
        program = self._section.command[0]
        missing = "" if shutil.which(program) else f"command: {program} cannot be run"
        if missing and not self._missing:
            self._spool_writer.log.error(
                "program_not_executable",
                program=program,
                fix="name an executable file, or a program on PATH",
            )
        elif self._missing and not missing:
            self._spool_writer.log.info("program_executable", program=program)
        self._missing = missing

    async def _run_once(self) -> int:
        """Run the program to its end; returns its status, negative for a signal."""
        section = self._section
        timeout_s = section.timeout_s if section.interval_s is not None else None
        program = Program(
            section.command,
            self._stopping,
            timeout_s=timeout_s,
            output_grace_s=self._output_grace_s,
        )
        status = await program.run(
            lambda stream: self._read(stream, "stdout"), lambda stream: self._read(stream, "stderr")
        )
        if program.problem:
            self._spool_writer.log.warning("program_start_failed", error=program.problem)
        self._spool_writer.note("timeouts", int(program.timed_out))
        self._spool_writer.note("outputs_held_open", int(program.output_held))
        return status

    async def _read(self, stream: asyncio.StreamReader, name: str) -> None:
        cutter = LineCutter(self._section.max_line_bytes)
        try:
            while data := await stream.read(READ_BYTES):
                await self._take(cutter, data, name)
            await self._take(cutter, b"\n" if cutter.waits else b"", name)
        except asyncio.CancelledError:
            if cutter.waits:  # a line that has begun goes, too
                self._spool_writer.dropped("stopped", 1)
            raise

    async def _take(self, cutter: LineCutter, data: bytes, name: str) -> None:
        lines = cutter.feed(data)
        if lines:
            payload = payload_of_lines(
                lines,
                service=self._section.service,
                attributes={"log.iostream": name},
                rules=self._section.line_options(),
            )
            self._spool_writer.note("lines_truncated", len(payload.meta["truncated"]))
            await self._spool_writer.persist_with_retry(payload)
