"""Start, signals and exit codes: the same for every daemon and command."""

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn

import structlog

from penstock.base.errors import ExitCode, ServiceError, only_service_error

Main = Callable[[asyncio.Event], Awaitable[None]]

_SAY_AGAIN_S: Final = 60.0
_KINDS_OF_FAILURE_MAX: Final = 1000


def run_until_stopped(main: Main) -> None:
    """Run `main(stop)`; SIGTERM or SIGINT sets `stop`, a second one ends the process at once.

    The soft limit of open files is raised to the hard one first. What asyncio has to report goes
    into the log, bounded.

    `main` drains and returns when `stop` is set. The second signal exits with 75: something
    accepted may still wait in a spool. A `ServiceError` of `main` that is `at_once` ends the
    process here, whatever its threads do.
    """
    raise_open_files()
    asyncio.run(_run(main))


def raise_open_files() -> int:
    """Raise this process's soft limit of open files to the hard one; returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # a sandbox may forbid it: the soft limit holds
            structlog.get_logger().warning(
                "the limit of open files cannot be raised", limit=soft, error=str(error)
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


async def _run(main: Main) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(LoopFailures())

    def on_signal(name: str) -> None:
        if stop.is_set():
            structlog.get_logger().warning("stopped at once", signal=name)
            _exit_now(ExitCode.TEMPORARY)
        structlog.get_logger().info("stopping", signal=name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    try:
        await main(stop)
    except (ServiceError, ExceptionGroup) as error:
        cause = only_service_error(error)
        if cause is None or not cause.at_once:
            raise
        print(f"error: {cause}", file=sys.stderr)  # noqa: T201 - this is the process's last word
        _exit_now(cause.exit_code)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _exit_now(code: ExitCode) -> NoReturn:
    """End the process without waiting for its threads: one of them may hang in a system call."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
