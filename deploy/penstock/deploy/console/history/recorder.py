"""Measures the pipeline every 15 seconds, and keeps what it measured."""

import asyncio
import shutil
from typing import Any, Final

import structlog

from penstock.base.clock import Clock
from penstock.base.errors import UnavailableError
from penstock.deploy.console.config import HistorySection
from penstock.deploy.console.history.file import HistoryFile, HistoryInUseError
from penstock.deploy.console.history.rings import RINGS, Changes, History
from penstock.deploy.console.history.samples import Sampler
from penstock.deploy.console.poller import Poller
from penstock.deploy.console.streams import Streams

_STREAMS_AGE_NS: Final = 60 * 10**9
"""Older figures of logd are not recorded again."""


class Recorder:
    """The history of one console.

    Args:
        config: Location and size of the history.
        polling: Knows the parts.
        streams: Knows the streams.
        clock: Says when.

    Attributes:
        history: The history.
        failures: Samples that could not be written.
        problem: Why the last one was not; empty: it was.
    """

    def __init__(
        self, config: HistorySection, polling: Poller, streams: Streams, clock: Clock
    ) -> None:
        self._config, self._polling, self._streams, self._clock = config, polling, streams, clock
        self._sampler = Sampler()
        self._file: HistoryFile | None = None
        self._writing: asyncio.Future[None] | None = None
        self.history = History(config.max_series)
        self.failures = 0
        self.problem = ""

    def open(self) -> None:
        """Take what was kept.

        Raises:
            UnavailableError: Its directory cannot be used, or another console has it.
        """
        directory = self._config.directory
        if directory is None:
            return
        say = structlog.get_logger()
        try:
            self._file = HistoryFile(directory, self._config.max_series)
            if not self._file.load(self.history):
                say.warning("history_reset", directory=str(directory))
        except HistoryInUseError as error:
            raise UnavailableError(
                str(error), fix="give this one another `history.directory`, or none"
            ) from None
        except OSError as error:
            raise UnavailableError(
                f"history.directory: {directory}: {error.strerror}",
                fix="name a directory that the console may write, or none",
            ) from None

    async def run(self) -> None:
        """Measure for ever."""
        while True:
            step_ns = RINGS[0].step_s * 10**9
            await asyncio.sleep((step_ns - self._clock.unix_ns() % step_ns) / 1e9)
            await self._write(self.measure())

    def measure(self) -> Changes:
        """Take one sample."""
        now_ns = self._clock.monotonic_ns()
        answered = self._streams.answered_ns
        known = answered is not None and now_ns - answered < _STREAMS_AGE_NS
        sample = self._sampler.look(
            self._polling.seen(),
            self._streams.rows if known else (),
            free_bytes=self._free_bytes(),
            now_ns=now_ns,
        )
        return self.history.note(self._clock.unix_ns() // 10**9, sample)

    def read(self, kind: str, name: str, span: str) -> dict[str, Any] | None:
        """`History.read` until now, with the problem of the file, if any."""
        found = self.history.read(kind, name, span, self._clock.unix_ns() // 10**9)
        if found is None:
            return None
        return found | {
            "problem": self.problem,
            "left_out": self.history.left_out,
            "kept": self._config.directory is not None,
        }

    async def close(self) -> None:
        """Let another console have it, once what is being written is."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if self._file is not None:
            self._file.close()

    async def _write(self, changes: Changes) -> None:
        if self._file is None:
            return
        write = asyncio.to_thread(self._file.write, self.history, changes)
        self._writing = asyncio.ensure_future(write)
        try:
            await asyncio.shield(self._writing)
        except OSError as error:
            self.failures += 1
            if not self.problem:
                structlog.get_logger().warning("history_write_failed", reason=str(error))
            self.problem = str(error)
        else:
            self.problem = ""

    def _free_bytes(self) -> int | None:
        directory = self._config.directory
        try:
            return None if directory is None else shutil.disk_usage(directory).free
        except OSError:
            return None  # of a disk that is gone nobody knows; writing to it says so
