"""Runs the parts as processes as `penstock.deploy.up.supervision` decides."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, assert_never

import structlog

from penstock.base.clock import Clock
from penstock.deploy.private_file import OWNER_ONLY, open_private_file
from penstock.deploy.up import reaper
from penstock.deploy.up.overlay import LOG_MAX_BYTES
from penstock.deploy.up.supervision import (
    AllReady,
    CaughtUp,
    CutShort,
    Effect,
    Event,
    Exited,
    Finished,
    GaveUp,
    Kill,
    KillPart,
    PartPlan,
    Phase,
    Ready,
    Restarting,
    StartPart,
    Stop,
    Supervision,
    TerminatePart,
    Tick,
    WatchCatchUp,
)

Check: TypeAlias = Callable[[], Awaitable[bool]]
_ROTATE_S = 10.0
_PROBE_S = 0.1


@dataclass(frozen=True, slots=True)
class Part:
    """One process of the pipeline.

    Attributes:
        plan: Plan of its start and stop.
        command: Absolute path of the program, then its arguments.
        log_path: Path of its output, appended.
        output_path: Path of its standard output, appended, if that is separate.
        is_ready: Asked again and again after the start; None: ready at once.
        has_caught_up: Asked again and again when its turn to drain has come.
    """

    plan: PartPlan
    command: Sequence[str]
    log_path: Path
    output_path: Path | None = None
    is_ready: Check | None = None
    has_caught_up: Check | None = None


class Supervisor:
    """Starts, watches, restarts, drains and stops the parts of one launch.

    Args:
        parts: Parts to run.
        drain_order: Their names in the order they are drained.
        clock: Clock of deadlines.
        report: Called with every effect, to show it to a person.
        log_max_bytes: Bytes of a log above which it is emptied into one older file.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        drain_order: Sequence[str],
        *,
        clock: Clock,
        report: Callable[[Effect], None],
        log_max_bytes: int = LOG_MAX_BYTES,
    ) -> None:
        self._parts = {part.plan.name: part for part in parts}
        self._core = Supervision([part.plan for part in parts], drain_order)
        self._clock = clock
        self._report = report
        self._log_max_bytes = log_max_bytes
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._sessions: set[int] = set()  # those of which something may be left
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._log = structlog.get_logger()

    def stop(self) -> None:
        """Drain and stop everything."""
        self._events.put_nowait(Stop())

    def kill(self) -> None:
        """Stop everything now."""
        self._events.put_nowait(Kill())

    def strike(self, name: str) -> bool:
        """Kill a part as if by accident: it is started again. Whether it ran."""
        if self.pid(name) is None:
            return False
        reaper.signal_session(self._processes[name].pid, signal.SIGKILL)
        return True

    def phase(self, name: str) -> Phase:
        """Return the phase of a part."""
        return self._core.phase(name)

    def pid(self, name: str) -> int | None:
        """The process id of a part that runs."""
        process = self._processes.get(name)
        return process.pid if process is not None and process.returncode is None else None

    async def run(self) -> None:
        """Supervise until every part has ended."""
        watcher = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", reaper.__file__, "watch",
            stdin=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert watcher.stdin is not None
        self._events.put_nowait(Tick())  # the first turn starts what needs nothing
        rotating = asyncio.create_task(self._rotate_logs())
        try:
            async with asyncio.TaskGroup() as tasks:
                finished = False
                while not finished:
                    event = await self._next_event()
                    for effect in self._core.handle(event, self._clock.monotonic_ns()):
                        self._tell(effect)
                        await self._execute(effect, tasks, watcher.stdin)
                        finished = finished or isinstance(effect, Finished)
        finally:
            rotating.cancel()
            for session in self._sessions:  # the others' numbers may be somebody else's by now
                reaper.signal_session(session, signal.SIGKILL)
            watcher.stdin.close()
            await watcher.wait()

    async def _rotate_logs(self) -> None:
        """Keep the logs of parts that run for long within their bound."""
        logs = [part.log_path for part in self._parts.values()]
        outputs = [part.output_path for part in self._parts.values()]
        paths = {path for path in (*logs, *outputs) if path is not None}
        while True:
            for path in paths:
                try:
                    await asyncio.to_thread(truncate_log, path, self._log_max_bytes)
                except OSError as error:  # a full disk: the next turn tries again
                    self._log.warning("log_rotation_failed", path=str(path), reason=str(error))
            await asyncio.sleep(_ROTATE_S)

    async def _next_event(self) -> Event:
        deadline_ns = self._core.next_deadline_ns()
        wait_s = None
        if deadline_ns is not None:
            wait_s = max(0.0, (deadline_ns - self._clock.monotonic_ns()) / 1e9)
        try:
            async with asyncio.timeout(wait_s):
                return await self._events.get()
        except TimeoutError:
            return Tick()

    async def _execute(
        self, effect: Effect, tasks: asyncio.TaskGroup, watcher: asyncio.StreamWriter
    ) -> None:
        match effect:
            case StartPart(name):
                await self._start(self._parts[name], tasks, watcher)
            case WatchCatchUp(name):
                check = self._parts[name].has_caught_up
                assert check is not None, name
                self._watch(name, check, CaughtUp(name), tasks)
            case TerminatePart(name):
                self._signal(name, signal.SIGTERM)
            case KillPart(name):
                self._kill(name)
            case Restarting() | CutShort() | GaveUp() | AllReady() | Finished():
                pass
            case _:
                assert_never(effect)

    async def _start(
        self, part: Part, tasks: asyncio.TaskGroup, watcher: asyncio.StreamWriter
    ) -> None:
        name = part.plan.name
        pipe = watcher.get_extra_info("pipe").fileno()
        tied = (sys.executable, "-I", "-S", reaper.__file__, "exec", str(os.getpid()), str(pipe))
        output_path = part.output_path or part.log_path
        try:
            for path in {part.log_path, output_path}:
                rotate_log(path, self._log_max_bytes)
            with open_private_file(part.log_path) as log, open_private_file(output_path) as output:
                process = await asyncio.create_subprocess_exec(
                    *tied, *part.command, stdin=asyncio.subprocess.DEVNULL, stdout=output,
                    stderr=log, start_new_session=True, pass_fds=(pipe,),
                )  # fmt: skip
        except OSError as error:  # of a log as of the program: no descriptor may be left
            self._log.error("part_start_failed", part=name, reason=str(error))
            self._events.put_nowait(Exited(name, reaper.NOT_STARTED))
            return
        self._processes[name] = process
        self._sessions.add(process.pid)
        tasks.create_task(self._follow(name, process, watcher))
        if part.is_ready is None:
            self._events.put_nowait(Ready(name))
        else:
            self._watch(name, part.is_ready, Ready(name), tasks)

    async def _follow(
        self, name: str, process: asyncio.subprocess.Process, watcher: asyncio.StreamWriter
    ) -> None:
        """Wait for the end of a part, and end whatever it left behind."""
        code = await process.wait()
        while reaper.signal_session(process.pid, signal.SIGKILL):  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(_PROBE_S)  # until the kernel has taken them down
        self._sessions.discard(process.pid)
        watcher.write(f"-{process.pid}\n".encode())
        self._unwatch(name)
        self._events.put_nowait(Exited(name, code))

    def _watch(self, name: str, check: Check, event: Event, tasks: asyncio.TaskGroup) -> None:
        self._unwatch(name)

        async def ask() -> None:
            told = ""
            while True:
                try:
                    if await check():
                        break
                except Exception as error:  # noqa: BLE001 - one part's answer must not end all
                    if told != (told := repr(error)):
                        self._log.error("part_check_failed", part=name, reason=told)
                await asyncio.sleep(_PROBE_S)  # another process, which cannot set an Event
            self._events.put_nowait(event)

        self._watches[name] = tasks.create_task(ask())

    def _unwatch(self, name: str) -> None:
        task = self._watches.pop(name, None)
        if task is not None:
            task.cancel()

    def _signal(self, name: str, number: signal.Signals) -> None:
        self._unwatch(name)
        if self.pid(name) is not None:
            self._processes[name].send_signal(number)

    def _kill(self, name: str) -> None:
        self._unwatch(name)
        if self.pid(name) is not None:
            reaper.signal_session(self._processes[name].pid, signal.SIGKILL)

    def _tell(self, effect: Effect) -> None:
        match effect:
            case Restarting(name, code, delay_ns):
                self._log.warning(
                    "part_restarting", part=name, code=code, delay_ms=delay_ns // 10**6
                )
            case CutShort(name, reason):
                self._log.warning("drain_cut_short", part=name, reason=reason)
            case GaveUp(name, code):
                self._log.error("launch_failed", part=name, code=code)
            case StartPart(name):
                self._log.info("part_starting", part=name)
            case TerminatePart(name):
                self._log.info("part_stopping", part=name)
            case _:
                pass
        self._report(effect)


def rotate_log(path: Path, max_bytes: int) -> None:
    """Set a log aside that has grown too large; one older file is kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > max_bytes:
        path.replace(path.with_name(f"{path.name}.1"))


def truncate_log(path: Path, max_bytes: int) -> None:
    """Copy a log that has grown too large to one older file and empty it; its writer goes on.

    The writer has it open to append, so its next line is at the beginning. Lines that come between
    the last read and the truncation, microseconds, are lost.
    """
    if not path.exists() or path.stat().st_size <= max_bytes:
        return
    with path.open("r+b") as log, path.with_name(f"{path.name}.1").open("wb") as older:
        os.fchmod(older.fileno(), OWNER_ONLY)
        shutil.copyfileobj(log, older)
        log.truncate(0)
