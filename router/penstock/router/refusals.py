"""What logd's refusals say: of the records that are asked for, or of who asks."""

from typing import Final

from penstock.logd.errors import RefusedError, UnavailableError
from penstock.router.core.offsets import Span
from penstock.router.errors import DamagedError, DataLossError, LogRefusedError

NOT_LET_IN: Final = frozenset(
    {
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
        "QUOTA_EXCEEDED",
        "PLAIN_TOKEN",
        "BAD_TOKEN_FILE",
        "BAD_TLS_FILE",
    }
)
"""Refusals of this reader, which say nothing of the records."""


class NotPermittedError(UnavailableError):
    """This reader may not read that, or not until it is permitted to."""


def not_now(error: RefusedError) -> UnavailableError:
    """A refusal that may not be one later."""
    if error.code == "PERMISSION_DENIED":
        return NotPermittedError(str(error))
    return UnavailableError(str(error))


def loss_or_refusal(
    span: Span, offset: int, error: RefusedError
) -> DataLossError | LogRefusedError:
    """What a refusal says of the records: that some are gone, and where it goes on; or nothing."""
    detail = error.detail
    message = (
        f"{span.stream}/{span.partition}: offset {offset} cannot be read: {error}"
        f" ({error.code} {detail})"
    )
    match error.code:
        case "OUT_OF_RANGE":
            earliest = int(detail.get("earliest", offset))
            return DataLossError(message, next_offset=earliest if earliest > offset else None)
        case "CORRUPT" if (behind := int(detail.get("next_offset", offset))) > offset:
            return DamagedError(
                f"{span.stream}/{span.partition}: offsets {offset} to {behind - 1} are damaged in"
                f" the log: {error}; restore them from a backup, or go on without them:"
                " failOnDataLoss=false, in a job `source: {fail_on_data_loss: false}`",
                next_offset=behind,
            )
        case "RECORDS_LOST":
            return DataLossError(message)  # the next batch goes on where the log was truncated
        case "STREAM_RECREATED" | "UNKNOWN_STREAM" | "UNKNOWN_PARTITION":
            return DataLossError(message)
        case _:
            return LogRefusedError(message)
