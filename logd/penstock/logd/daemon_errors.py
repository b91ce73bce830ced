"""What ends a logd, by who must act."""

from penstock.service import ExitCode, ServiceError


class DamagedDataError(ServiceError):
    """The data directory is not what was written; an operator must look (exit code 65)."""

    exit_code = ExitCode.DATA


class DrainCutShortError(ServiceError):
    """Stopping took longer than `drain_timeout_s` (exit code 75)."""

    exit_code = ExitCode.TEMPORARY
    at_once = True  # a thread may hang in a write or sync that the disk never answers


class LastSyncFailedError(ServiceError):
    """What was acked before it was synced may be lost (exit code 74)."""

    exit_code = ExitCode.IO
