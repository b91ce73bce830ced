"""A program whose output is read: started, ended with all that it started, never left behind."""

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
import termios
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from typing_extensions import override

from penstock.collector.limits import READ_BYTES

Reader = Callable[[asyncio.StreamReader], Awaitable[None]]
NOT_STARTED: Final = 127
"""The status of a program that could not be started, as shells have it."""
_TERM_GRACE_S: Final = 3.0
"""Between asking a program to end and ending it."""
OUTPUT_GRACE_S: Final = 1.0
"""After a program's end its outputs may be silent for so long before they count as ended."""
_COUNT: Final = struct.Struct("i")
_OUTPUTS: Final = (1, 2)


class _Outputs(SubprocessStreamProtocol):
    """The program's outputs as streams; knows of its end before others let go of them."""

    def __init__(self) -> None:
        super().__init__(limit=READ_BYTES, loop=asyncio.get_running_loop())
        self.exited = asyncio.Event()
        self.pieces = 0

    @override
    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        self.pieces += 1
        super().pipe_data_received(fd, data)

    @override
    def process_exited(self) -> None:
        self.exited.set()
        super().process_exited()


class Program:
    """One run of a program.

    Args:
        command: The program and its arguments; no shell reads them.
        stopping: Event that ends the program.
        timeout_s: After so long it is ended, too; None: never.
        output_grace_s: Seconds of silent outputs after the program's end before they are taken for
            ended, too.

    Attributes:
        timed_out: It was ended because its time was over.
        output_held: Something that it had started held its output open after its end.
        problem: Why it could not be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        stopping: asyncio.Event,
        *,
        timeout_s: float | None = None,
        output_grace_s: float = OUTPUT_GRACE_S,
    ) -> None:
        self._command = command
        self._stopping = stopping
        self._timeout_s = timeout_s
        self._output_grace_s = output_grace_s
        self.timed_out = False
        self.output_held = False
        self.problem = ""

    async def run(self, read_output: Reader, read_errors: Reader) -> int:
        """Run it to its end; returns its status, negative for a signal."""
        try:
            transport, outputs = await asyncio.get_running_loop().subprocess_exec(
                _Outputs,
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self.problem = error.strerror or str(error)
            return NOT_STARTED
        assert outputs.stdout is not None
        assert outputs.stderr is not None
        guard = asyncio.create_task(self._end_in_time(transport))
        end = asyncio.create_task(self._end_outputs(transport, outputs))
        try:
            await asyncio.gather(read_output(outputs.stdout), read_errors(outputs.stderr))
            await outputs.exited.wait()
            return transport.get_returncode() or 0
        finally:
            guard.cancel()
            end.cancel()
            _signal(transport, signal.SIGKILL)
            transport.close()

    async def _end_outputs(self, transport: asyncio.SubprocessTransport, outputs: _Outputs) -> None:
        """Once the program has ended and its outputs are silent, end them.

        Something that it started may hold them open, and need not hear our signals.
        """
        await outputs.exited.wait()
        pieces = -1
        while pieces < outputs.pieces or any(map(_has_unread, _open_pipes(transport))):
            pieces = outputs.pieces
            await asyncio.sleep(self._output_grace_s)
        self._close_outputs(transport)

    def _close_outputs(self, transport: asyncio.SubprocessTransport) -> None:
        for pipe in _open_pipes(transport):
            self.output_held = True
            pipe.close()

    async def _end_in_time(self, transport: asyncio.SubprocessTransport) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._stopping.wait()
        except TimeoutError:
            self.timed_out = True
        _signal(transport, signal.SIGTERM)
        await asyncio.sleep(_TERM_GRACE_S)
        _signal(transport, signal.SIGKILL)
        await asyncio.sleep(self._output_grace_s)
        self._close_outputs(transport)


def _open_pipes(transport: asyncio.SubprocessTransport) -> list[asyncio.BaseTransport]:
    pipes = (transport.get_pipe_transport(number) for number in _OUTPUTS)
    return [pipe for pipe in pipes if pipe is not None and not pipe.is_closing()]


def _has_unread(pipe: asyncio.BaseTransport) -> bool:
    """Return whether the pipe has unread bytes because this source is throttled."""
    number = pipe.get_extra_info("pipe").fileno()
    (unread,) = _COUNT.unpack(fcntl.ioctl(number, termios.FIONREAD, bytes(_COUNT.size)))
    return bool(unread)


def _signal(transport: asyncio.SubprocessTransport, number: int) -> None:
    """Send a signal to the program and all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(transport.get_pid(), number)
