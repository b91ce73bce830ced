"""Errors of logd and its client. The class says who must act."""

import errno
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Literal, Self, TypeAlias

from typing_extensions import override


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


class HaltCause(StrEnum):
    """Why a node takes no part in its cluster until an operator has acted."""

    DATA_LOST = "DATA_LOST"
    """The node's disk lacks what it has acknowledged."""
    STORAGE_FAILED = "STORAGE_FAILED"
    """The node's log of the metadata cannot be written."""
    NOT_UNDERSTOOD = "NOT_UNDERSTOOD"
    """It cannot apply a change of the metadata that the others have made."""
    UNKNOWN = "UNKNOWN"
    """A node of another version named no cause, or one that is not known here."""

    @classmethod
    def of(cls, word: object, reason: str) -> Self:
        """The cause that another node names.

        Args:
            word: Its name; None: a node of an earlier release, which names none.
            reason: In words; an earlier release begins it with `data lost` if that is the cause.
        """
        if word is None:
            return cls.DATA_LOST if reason.startswith(DATA_LOST) else cls.UNKNOWN
        return cls(str(word))

    @classmethod
    @override
    def _missing_(cls, value: object) -> Self:
        return cls.UNKNOWN


GroupError: TypeAlias = Literal["", "FENCED", "REFUSED"]
"""Why a group answers a member so. `FENCED`: it is no member, or not any more; it may join under a
new id. `REFUSED`: it cannot join; the message says why."""

DATA_LOST: Final = "data lost"
"""The first words of a reason with the cause `DATA_LOST`: earlier releases know it by them."""

REJOIN: Final = (
    "Start it as a new node, with another name and an empty data_dir. When that one has joined,"
    " drain and remove the old name: penstock logd cluster drain NODE, then cluster remove NODE."
)
"""Fix for a node with the cause `DATA_LOST`."""

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
