"""Start, signals and exit codes: the same for every daemon and command."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import structlog

from penstock.service.errors import ExitCode, ServiceError

Main = Callable[[asyncio.Event], Awaitable[None]]


def run_until_stopped(main: Main) -> None:
    """Run `main(stop)`; SIGTERM or SIGINT sets `stop`, a second one ends the process at once.

    `main` drains and returns when `stop` is set. The second signal exits with 75: something
    accepted may still wait in a spool. A `ServiceError` of `main` that is `at_once` ends the
    process here, whatever its threads do.
    """
    asyncio.run(_run(main))


async def _run(main: Main) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

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
        cause = _only_service_error(error)
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


def _only_service_error(error: ServiceError | ExceptionGroup[Exception]) -> ServiceError | None:
    """The first `ServiceError` of a group that holds nothing else (task groups wrap errors)."""
    if isinstance(error, ServiceError):
        return error
    mine, rest = error.split(ServiceError)
    if mine is None or rest is not None:
        return None
    first: BaseException = mine
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first if isinstance(first, ServiceError) else None
