"""Errors of calls: gRPC's status codes, chosen as Liftbridge's clients read them.

A client takes RESOURCE_EXHAUSTED in a subscription for the end of what there is to read, and
FAILED_PRECONDITION at its beginning for another node's leadership. So a limit of this server is
UNAVAILABLE, which clients try again.
"""

import re
from collections.abc import Mapping
from typing import Final

import grpc
import structlog

from penstock.logd.errors import CorruptError, LogdError, RefusedError
from penstock.logd.nats.protocol import NatsRefusedError

_CODES: Final[Mapping[str, grpc.StatusCode]] = {
    "UNKNOWN_STREAM": grpc.StatusCode.NOT_FOUND,
    "UNKNOWN_PARTITION": grpc.StatusCode.NOT_FOUND,
    "UNKNOWN_GROUP": grpc.StatusCode.NOT_FOUND,
    "STREAM_RECREATED": grpc.StatusCode.NOT_FOUND,
    "STREAM_DIFFERS": grpc.StatusCode.ALREADY_EXISTS,
    "NOT_HERE": grpc.StatusCode.FAILED_PRECONDITION,
    "ENCRYPTION_UNAVAILABLE": grpc.StatusCode.FAILED_PRECONDITION,
    "KEY_UNAVAILABLE": grpc.StatusCode.FAILED_PRECONDITION,
    "GROUP_ACTIVE": grpc.StatusCode.FAILED_PRECONDITION,
    "FENCED": grpc.StatusCode.FAILED_PRECONDITION,
    "NATS_REFUSED": grpc.StatusCode.PERMISSION_DENIED,
    "PERMISSION_DENIED": grpc.StatusCode.PERMISSION_DENIED,
    "UNAUTHENTICATED": grpc.StatusCode.UNAUTHENTICATED,
    "QUOTA_EXCEEDED": grpc.StatusCode.UNAVAILABLE,
    "OUT_OF_RANGE": grpc.StatusCode.OUT_OF_RANGE,
    "TOO_MANY_STREAMS": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "TOO_MANY_CURSORS": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "NOT_ENOUGH_NODES": grpc.StatusCode.FAILED_PRECONDITION,
    # What passes by itself, or soon.
    "BUSY": grpc.StatusCode.UNAVAILABLE,
    "NOT_CONTROLLER": grpc.StatusCode.UNAVAILABLE,
    "NOT_LEADER": grpc.StatusCode.UNAVAILABLE,
    "NOT_YET": grpc.StatusCode.UNAVAILABLE,
    "STALE_EPOCH": grpc.StatusCode.UNAVAILABLE,
    "STALE_VERSION": grpc.StatusCode.UNAVAILABLE,
    "STREAM_DELETING": grpc.StatusCode.UNAVAILABLE,
    "TOO_MANY_REQUESTS": grpc.StatusCode.UNAVAILABLE,
    "UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
}
_UNPRINTABLE: Final = re.compile(r"[^ -~]")
_LENGTH_MAX: Final = 512
"""Characters of a fact and of a message: what HTTP/2 takes of headers is some KiB."""

_log = structlog.get_logger()


class CallError(Exception):
    """A call ends with this status.

    Attributes:
        code: Status code of gRPC.
        facts: Facts for the trailing metadata, each as `penstock-<name>`.
    """

    def __init__(self, code: grpc.StatusCode, message: str, /, **facts: int | str) -> None:
        self.code = code
        self.facts: Mapping[str, int | str] = facts
        super().__init__(message[:_LENGTH_MAX])

    def trailers(self) -> tuple[tuple[str, str], ...]:
        """The facts as metadata, which takes printable ASCII only."""
        return tuple(
            (f"penstock-{name.replace('_', '-')}", _UNPRINTABLE.sub("?", str(value)[:_LENGTH_MAX]))
            for name, value in self.facts.items()
        )


def call_error(error: Exception, method: str) -> CallError:
    """Convert an error to the caller's gRPC error."""
    while isinstance(error, ExceptionGroup):  # of a stream's requests
        error = error.exceptions[0]
    match error:
        case CallError():
            return error
        case RefusedError():
            code = _CODES.get(error.code, grpc.StatusCode.INVALID_ARGUMENT)
            return CallError(code, str(error), **{"refusal": error.code, **error.detail})
        case NatsRefusedError():
            message = f"the NATS server refuses it: {error}"
            return CallError(grpc.StatusCode.PERMISSION_DENIED, message)
        case CorruptError():
            _log.error("corrupt_data_read", error=str(error))
            return CallError(grpc.StatusCode.DATA_LOSS, str(error))
        case LogdError() | OSError():
            _log.warning("request_failed", endpoint="grpc", method=method, error=str(error))
            return CallError(grpc.StatusCode.UNAVAILABLE, str(error))
        case _:
            _log.exception("request_failed", endpoint="grpc", method=method, exc_info=error)
            return CallError(grpc.StatusCode.INTERNAL, "internal error; logd's log has it")
