"""What a process says when it cannot go on, and the exit code it says it with."""

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
        reason: What was wrong, and where.
        fix: What to do about it, as an instruction.
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
    """What was read is not what was written; an operator must look (exit code 65)."""

    exit_code = ExitCode.DATA


class DrainCutShortError(ServiceError):
    """A process stopped before all that it had in work was done (exit code 75).

    Args:
        reason: What was given up.
        fix: What to do; nothing that was acknowledged is lost.
        at_once: As `ServiceError.at_once`.
    """

    exit_code = ExitCode.TEMPORARY

    def __init__(self, reason: str, *, fix: str, at_once: bool = False) -> None:
        self.at_once = at_once
        super().__init__(reason, fix=fix)
