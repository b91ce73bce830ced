"""Start, signals and exit codes: the same for every daemon and command."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import structlog

from penstock.service.errors import ExitCode, ServiceError

Main = Callable[[asyncio.Event], Awaitable[None]]


def run_until_stopped(main: Main) -> None:
    """Run `main(stop)`; SIGTERM or SIGINT sets `stop`, a second one ends the process at once.

    `main` drains and returns when `stop` is set. The second signal exits with 75: something
    accepted may still wait in a spool.
    """
    asyncio.run(_run(main))


async def _run(main: Main) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(name: str) -> None:
        if stop.is_set():
            structlog.get_logger().warning("stopped at once", signal=name)
            sys.stderr.flush()
            _exit_now()
        structlog.get_logger().info("stopping", signal=name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    try:
        await main(stop)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _exit_now() -> None:
    import os

    os._exit(ExitCode.TEMPORARY)


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn a `ServiceError` into its message on standard error and its exit code."""
    try:
        yield
    except ServiceError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - this is the process's last word
        sys.exit(error.exit_code)
    except ExceptionGroup as group:
        cause = _only_service_error(group)
        if cause is None:
            raise
        print(f"error: {cause}", file=sys.stderr)  # noqa: T201 - this is the process's last word
        sys.exit(cause.exit_code)


def _only_service_error(group: ExceptionGroup[Exception]) -> ServiceError | None:
    """The first `ServiceError` of a group that holds nothing else (task groups wrap errors)."""
    mine, rest = group.split(ServiceError)
    if mine is None or rest is not None:
        return None
    error: BaseException = mine
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, ServiceError) else None
