"""Errors that end a process, with their exit codes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every Penstock command; values from BSD sysexits(3)."""

    OK = 0
    FAILURE = 1
    USAGE = 64
    DATA = 65
    UNAVAILABLE = 69
    SOFTWARE = 70
    MEMORY = 71
    IO = 74
    TEMPORARY = 75
    CONFIG = 78


class ServiceError(Exception):
    """A failure with a cause a person can act on.

    Attributes:
        reason: Description of what was wrong, and where.
        fix: The fix, as an instruction.
        exit_code: The code that a command ends with when nobody handles this error.
        at_once: Whether a daemon ends without waiting for its threads, because one may hang.
    """

    exit_code = ExitCode.FAILURE
    at_once = False

    def __init__(self, reason: str, *, fix: str) -> None:
        self.reason = reason
        self.fix = fix
        super().__init__(f"{reason}\n  fix: {fix}")


class ConfigError(ServiceError):
    """The configuration cannot be used; the operator must change it (exit code 78)."""

    exit_code = ExitCode.CONFIG


class UnavailableError(ServiceError):
    """Something this process needs cannot be reached now (exit code 69)."""

    exit_code = ExitCode.UNAVAILABLE


class DamagedDataError(ServiceError):
    """The data read differ from the data written; an operator must look (exit code 65)."""

    exit_code = ExitCode.DATA


class DrainCutShortError(ServiceError):
    """A process stopped before all that it had in work was done (exit code 75).

    Args:
        reason: Description of what was given up.
        fix: The fix; nothing that was acknowledged is lost.
        at_once: See `ServiceError.at_once`.
    """

    exit_code = ExitCode.TEMPORARY

    def __init__(self, reason: str, *, fix: str, at_once: bool = False) -> None:
        self.at_once = at_once
        super().__init__(reason, fix=fix)


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn a `ServiceError` into its message on standard error and its exit code."""
    try:
        yield
    except ServiceError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - this is the process's last word
        sys.exit(error.exit_code)
    except ExceptionGroup as group:
        cause = only_service_error(group)
        if cause is None:
            raise
        print(f"error: {cause}", file=sys.stderr)  # noqa: T201 - this is the process's last word
        sys.exit(cause.exit_code)


def only_service_error(error: ServiceError | ExceptionGroup[Exception]) -> ServiceError | None:
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
