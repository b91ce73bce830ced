"""Start, signals and exit codes: the same for every daemon and command."""

import asyncio
import os
import resource
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NoReturn

import structlog

from penstock.base.errors import ExitCode, ServiceError, only_service_error

Main = Callable[[asyncio.Event], Awaitable[None]]

_STOPPING: Final = (signal.SIGTERM, signal.SIGINT)
_SAY_AGAIN_S: Final = 60.0
_KINDS_OF_FAILURE_MAX: Final = 1000


def run_until_stopped(main: Main, *, stuck_s: float | None = None) -> None:
    """Run `main(stop)`; SIGTERM or SIGINT sets `stop`, a second one ends the process at once.

    The soft limit of open files is raised to the hard one first. What asyncio has to report goes
    into the log, bounded.

    `main` drains and returns when `stop` is set. The second signal exits with 75: something
    accepted may still wait in a spool. A `ServiceError` of `main` that is `at_once` ends the
    process here, whatever its threads do.

    Args:
        main: Coroutine to run.
        stuck_s: Seconds for a process whose event loop may wait for a disk: a thread receives the
            signals, and ends the process with 75 when the event loop does not react to one in that
            time. Child processes would inherit that the signals are blocked; it must start none.
    """
    raise_open_files()
    asyncio.run(_run(main, stuck_s))


def raise_open_files() -> int:
    """Raise this process's soft limit of open files to the hard one; returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # a sandbox may forbid it: the soft limit holds
            structlog.get_logger().warning(
                "open_files_limit_not_raised", limit=soft, error=str(error)
            )
            return soft
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


class LoopFailures:
    """asyncio's exception handler: what it reports becomes events of the log.

    The same report is logged once in 60 s, with how many there were since.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message = str(context.get("message") or "unhandled exception in event loop")
        error = context.get("exception")
        kind = f"{message} {error!r}"
        now_s = loop.time()
        silent_until_s, repeated = self._seen.get(kind, (0.0, 0))
        if now_s < silent_until_s:
            self._seen[kind] = silent_until_s, repeated + 1
            return
        if len(self._seen) >= _KINDS_OF_FAILURE_MAX:
            self._seen.clear()
        self._seen[kind] = now_s + _SAY_AGAIN_S, 0
        log = structlog.get_logger().bind(
            reported=message, repeated=repeated, transport=repr(context.get("transport", ""))
        )
        if isinstance(error, OSError):  # of a peer or of the machine: no stack says more
            log.warning("event_loop_error", error=str(error))
        else:
            log.error("event_loop_error", exc_info=error)


async def _run(main: Main, stuck_s: float | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(LoopFailures())

    def on_signal(name: str) -> None:
        if stop.is_set():
            structlog.get_logger().warning("stop_forced", signal=name)
            _exit_now(ExitCode.TEMPORARY)
        structlog.get_logger().info("stopping", signal=name)
        stop.set()

    for number in _STOPPING:
        loop.add_signal_handler(number, on_signal, number.name)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, () if stuck_s is None else _STOPPING)
    if stuck_s is not None:
        watch = partial(_watch_signals, loop, on_signal, stuck_s)
        threading.Thread(target=watch, name="signals", daemon=True).start()
    try:
        await main(stop)
    except (ServiceError, ExceptionGroup) as error:
        cause = only_service_error(error)
        if cause is None or not cause.at_once:
            raise
        _exit_now(cause.exit_code, f"error: {cause}")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number in _STOPPING:
            loop.remove_signal_handler(number)


def _watch_signals(
    loop: asyncio.AbstractEventLoop, on_signal: Callable[[str], None], stuck_s: float
) -> None:
    """Tell the event loop of each signal; end the process when it does not hear of one."""
    number: int = signal.sigwait(_STOPPING)
    while True:
        handled = threading.Event()
        with suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(_handle, handled, on_signal, number)
        again = signal.sigtimedwait(_STOPPING, stuck_s)
        if not handled.is_set() and not loop.is_closed():
            after = "at a second signal" if again else f"after {stuck_s:g} s"
            _exit_now(
                ExitCode.TEMPORARY,
                f"error: stopped {after}: the event loop waits for a disk; nothing acked is lost,"
                " see to the disk",
            )
        number = again.si_signo if again else signal.sigwait(_STOPPING)


def _handle(handled: threading.Event, on_signal: Callable[[str], None], number: int) -> None:
    handled.set()
    on_signal(signal.Signals(number).name)


def _exit_now(code: ExitCode, last_word: str = "") -> NoReturn:
    """End the process without waiting for its threads: one of them may hang in a system call.

    It ends, too, where its last word cannot be written.
    """
    for stream, text in ((sys.stdout, ""), (sys.stderr, f"{last_word}\n" if last_word else "")):
        with suppress(OSError, ValueError):
            stream.write(text)
            stream.flush()
    os._exit(code)
