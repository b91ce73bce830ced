"""What logd and its client raise. The class says who must act."""

import errno
from collections.abc import Sequence
from typing import Final


class LogdError(Exception):
    """Root of everything logd and its client raise."""


class RefusedError(LogdError):
    """The caller asked for something that will not be done; asking again changes nothing.

    Attributes:
        code: A stable, machine-readable word, as in `OUT_OF_RANGE`.
        detail: Facts about the refusal, as in the valid offset range.
    """

    def __init__(self, code: str, message: str, **detail: int | str) -> None:
        self.code = code
        self.detail = detail
        super().__init__(message)


class CorruptError(LogdError):
    """Bytes on disk or on the wire are not what was written; an operator must look.

    Attributes:
        where: File and position, or the peer, that the bytes came from.
    """

    def __init__(self, message: str, *, where: str = "") -> None:
        self.where = where
        super().__init__(f"{where}: {message}" if where else message)


class UnavailableError(LogdError):
    """Cannot be done now; retrying later can succeed."""


class NoAnswerError(UnavailableError):
    """A server could not be reached, or did not answer.

    Attributes:
        cause: `unreachable`; `closed`: it closed the connection before it answered; `no_tls`: it
            does not speak TLS; `certificate`: its certificate is not trusted; `client_certificate`:
            it wants one; `tls`: another fault of TLS; `silent`: it did not answer in time.
    """

    def __init__(self, message: str, *, cause: str) -> None:
        self.cause = cause
        super().__init__(message)


class UnsettledError(UnavailableError):
    """Nodes answer, and none of them can do it yet: a leader is being found."""


class NotOpenError(UnavailableError):
    """A stream's log cannot be opened, so that nothing of it can be read until an operator acts.

    Attributes:
        cause: Code of why: `CORRUPT`, a refusal's, as `WRONG_KEY`, or `UNAVAILABLE` for the disk's.
    """

    def __init__(self, message: str, *, cause: str) -> None:
        self.cause = cause
        super().__init__(message)


class NotReadyError(UnavailableError):
    """This node has just started and does not know yet what there is; nothing was done."""


NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
"""Errors of making a file that say nothing of the files there are: space, quota, descriptors."""

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a write that was refused before anything was promised."""


class LogFailedError(UnavailableError):
    """A write or sync of this log failed; it takes no more until it is opened again."""


class CorruptFrameError(CorruptError):
    """A frame of a log is damaged; what lies before and after it stays readable.

    Attributes:
        file: Path of the segment's log file.
        position: Byte in the file where the damage begins.
        offset: First offset that cannot be read.
        next_offset: First offset after the damage that can; the log's end if there is none.
    """

    def __init__(
        self, message: str, *, file: str, position: int, offset: int, next_offset: int
    ) -> None:
        self.file = file
        self.position = position
        self.offset = offset
        self.next_offset = next_offset
        super().__init__(
            f"{message} (offsets {offset} to {next_offset - 1})", where=f"{file} at {position}"
        )


def not_here(stream: str, number: int, leader: str | None, replicas: Sequence[str]) -> RefusedError:
    """The refusal of a partition that other nodes have, for a reader to go there."""
    message = f"partition {number} of stream {stream!r} is not here; " + (
        f"its leader is {leader}" if leader else "nobody leads it now"
    )
    return RefusedError("NOT_HERE", message, leader=leader or "", replicas=",".join(replicas))
