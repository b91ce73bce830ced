"""Entries of the systemd journal, read with `journalctl`, which follows it.

What was read is durable in the spool before its cursor, the journal's own name of a position, is
saved; reading goes on after that one. So nothing is left out, and after a crash the entries between
the last sync and the last cursor come again.
"""

import asyncio
import contextlib
import shutil
from collections.abc import Sequence
from typing import Any, Final, Literal, Self

from pydantic import Field
from typing_extensions import override

from penstock.base.uncancelled import uncancelled
from penstock.collector.decode.journald import cursor_of
from penstock.collector.limits import JOURNAL_ENTRY_BYTES_MAX, READ_BYTES
from penstock.collector.sources.line_framing import Line, LineCutter
from penstock.collector.sources.program import Program
from penstock.collector.sources.settings import SourceSettings
from penstock.collector.sources.source import Source, SourceContext
from penstock.collector.spool.writer import Payload, SpoolWriter
from penstock.logd.errors import LogdError
from penstock.logd.storage import Checkpoint
from penstock.service import ConfigError, NoNul

_RESTART_S: Final = 1.0


class JournaldSettings(SourceSettings):
    """Entries of the systemd journal, by `journalctl`."""

    type: Literal["journald"]
    units: list[NoNul] = Field(default=[], description="only of these; none: of all")
    start_at: Literal["beginning", "end"] = "beginning"
    service: str = Field(default="from_unit", min_length=1)


class JournaldSource(Source):
    """Follows the journal of this host.

    Args:
        checkpoint: Keeps the cursor.
    """

    settings = JournaldSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: SourceContext) -> Self:
        checkpoint = Checkpoint(context.data_dir / f"journald-{context.name}")
        return cls(settings, checkpoint, spool_writer=context.spool_writer())

    def __init__(
        self, section: JournaldSettings, checkpoint: Checkpoint, *, spool_writer: SpoolWriter
    ) -> None:
        self.name = spool_writer.source
        self._section = section
        self._checkpoint = checkpoint
        self._spool_writer = spool_writer
        self._cursor: str | None = None
        self._stopping = asyncio.Event()

    @override
    async def start(self) -> None:
        if shutil.which("journalctl") is None:
            raise ConfigError(
                f"source {self.name}: there is no program `journalctl` on PATH",
                fix="remove the source on hosts without systemd",
            )
        try:
            saved = self._checkpoint.load() or {}
            self._cursor = saved.get("cursor")
        except (LogdError, ValueError) as error:
            raise ConfigError(
                f"source {self.name}: {self._checkpoint.path}: cannot be read: {error}",
                fix="remove the file: the journal is then read as at the first start",
            ) from None

    @override
    async def run(self) -> None:
        while not self._stopping.is_set():
            program = Program(self._command(), self._stopping)
            status = await program.run(self._read, self._complain)
            if self._stopping.is_set():
                return
            self._spool_writer.note("journalctl_ended")
            self._spool_writer.log.warning(
                "journalctl_exited", status=status, problem=program.problem
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RESTART_S):
                    await self._stopping.wait()

    @override
    async def stop(self) -> None:
        self._stopping.set()

    def _command(self) -> list[str]:
        command = ["journalctl", "--output=json", "--all", "--quiet", "--follow"]
        command += [f"--unit={unit}" for unit in self._section.units]
        if self._cursor is not None:
            return [*command, "--no-tail", f"--after-cursor={self._cursor}"]
        return [*command, "--no-tail" if self._section.start_at == "beginning" else "--lines=0"]

    async def _read(self, stream: asyncio.StreamReader) -> None:
        cutter = LineCutter(JOURNAL_ENTRY_BYTES_MAX)
        while data := await stream.read(READ_BYTES):
            lines = cutter.feed(data)
            if lines:
                await self._take(lines)

    async def _take(self, lines: Sequence[Line]) -> None:
        data = b"\n".join(line.text for line in lines)
        meta = {"service": self._section.service}
        payload = Payload("journal", data, len(lines), meta)
        await self._spool_writer.persist_with_retry(payload, leave=_read_again)
        for line in reversed(lines):
            cursor = cursor_of(line.text)
            if cursor is not None:
                await self._save(cursor)
                return

    async def _save(self, cursor: str) -> None:
        try:
            await uncancelled(asyncio.to_thread(self._checkpoint.save, {"cursor": cursor}))
        except OSError as error:
            self._spool_writer.log.warning("cursor_write_failed", error=error.strerror)
        self._cursor = cursor

    async def _complain(self, stream: asyncio.StreamReader) -> None:
        """Log what journalctl says of itself."""
        cutter = LineCutter(READ_BYTES)
        while data := await stream.read(READ_BYTES):
            for line in cutter.feed(data):
                self._spool_writer.log.warning(
                    "journalctl_output", text=line.text.decode("utf-8", "replace")
                )


def _read_again(_: Payload) -> None:
    """The cursor does not move past entries that are not durable: nothing of them is lost."""
