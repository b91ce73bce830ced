"""A program whose output is read: started, ended with all that it started, never left behind."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from penstock.collector.limits import READ_BYTES

Reader = Callable[[asyncio.StreamReader], Awaitable[None]]
NOT_STARTED: Final = 127
"""The status of a program that could not be started, as shells have it."""
_TERM_GRACE_S: Final = 3.0
"""Between asking a program to end and ending it."""


class Program:
    """One run of a program.

    Args:
        command: The program and its arguments; no shell reads them.
        stopping: When set, the program is ended.
        timeout_s: After so long it is ended, too; None: never.

    Attributes:
        timed_out: It was ended because its time was over.
        problem: Why it could not be started.
    """

    def __init__(
        self, command: Sequence[str], stopping: asyncio.Event, *, timeout_s: float | None = None
    ) -> None:
        self._command = command
        self._stopping = stopping
        self._timeout_s = timeout_s
        self.timed_out = False
        self.problem = ""

    async def run(self, read_output: Reader, read_errors: Reader) -> int:
        """Run it to its end; returns its status, negative for a signal."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=READ_BYTES,
                start_new_session=True,
            )
        except OSError as error:
            self.problem = error.strerror or str(error)
            return NOT_STARTED
        assert process.stdout is not None
        assert process.stderr is not None
        guard = asyncio.create_task(self._end_in_time(process))
        try:
            await asyncio.gather(read_output(process.stdout), read_errors(process.stderr))
            return await process.wait()
        finally:
            guard.cancel()
            _signal(process, signal.SIGKILL)

    async def _end_in_time(self, process: asyncio.subprocess.Process) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._stopping.wait()
        except TimeoutError:
            self.timed_out = True
        _signal(process, signal.SIGTERM)
        await asyncio.sleep(_TERM_GRACE_S)
        _signal(process, signal.SIGKILL)


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    """Send a signal to the program and all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
