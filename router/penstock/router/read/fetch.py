"""A fetch of a span: what a refusal of it means, and a second look at what came damaged."""

import sys
from typing import Final

from penstock.logd.api.operations import Fetch
from penstock.logd.client import AsyncLogClient, Fetched, LogClient, calls, passes
from penstock.logd.client.calls import Call
from penstock.logd.errors import CorruptError, RefusedError, UnavailableError
from penstock.router.errors import ACCEPTING, DamagedError, DataLossError, LogRefusedError
from penstock.router.read.offsets import Span

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
    """Return the error of a refused fetch: data loss with the offset that follows, or a refusal."""
    detail = error.detail
    message = (
        f"{span.stream}/{span.partition}: offset {offset} cannot be read: {error}"
        f" ({error.code} {detail})"
    )
    match error.code:
        case "OUT_OF_RANGE":
            earliest = int(detail.get("earliest", offset))
            behind_loss = earliest if earliest > offset else None
            return DataLossError(f"{message}; {ACCEPTING} behind it", next_offset=behind_loss)
        case "CORRUPT" if (behind := int(detail.get("next_offset", offset))) > offset:
            return DamagedError(
                f"{span.stream}/{span.partition}: offsets {offset} to {behind - 1} are damaged in"
                f" the log: {error}; restore them from a backup; or {ACCEPTING} without them",
                next_offset=behind,
            )
        case "RECORDS_LOST":
            # The next batch goes on where the log was truncated.
            return DataLossError(f"{message}; {ACCEPTING} there")
        case "STREAM_RECREATED" | "UNKNOWN_STREAM" | "UNKNOWN_PARTITION":
            return DataLossError(f"{message}; {ACCEPTING} without it")
        case _:
            return LogRefusedError(message)


FETCH_BYTES: Final = 4 * 1024 * 1024
"""Bytes asked for in one fetch."""

_ANY_SUBJECT: Final = ">"


def fetch(
    client: LogClient,
    span: Span,
    offset: int,
    *,
    epoch: int | None = None,
    subject: str | None = None,
    max_bytes: int = FETCH_BYTES,
) -> Fetched:
    """Read whole frames of a span, from an offset on.

    Without a subject logd sends what is on its disk as it is, and does not look at it. So where a
    frame comes damaged it is asked for as one of any subject: for that logd looks at it, and says
    what of it is damaged and what lies behind, or reads it from a disk that gives it now.

    Args:
        client: Client of logd.
        span: Span to be read.
        offset: In it.
        epoch: Under which the record before was read; None: not known.
        subject: A filter; None: all.
        max_bytes: About; one frame is given whatever its size.

    Raises:
        DataLossError: Records are gone.
        LogRefusedError: logd refuses, and does not say that.
        UnavailableError: logd is away, or has no time for this reader.
    """
    call = _call(client.server, span, offset, epoch=epoch, subject=subject, max_bytes=max_bytes)
    try:
        fetched = client.ask(call)
    except CorruptError as error:
        if subject is not None:  # logd has looked at it: it was damaged on the way
            raise UnavailableError(str(error)) from None
        # One frame: of several, those that compaction has emptied would be left out like a gap.
        return fetch(client, span, offset, epoch=epoch, subject=_ANY_SUBJECT, max_bytes=1)
    except RefusedError as error:
        raise _failure(span, offset, error) from None
    return _checked(span, offset, fetched)


async def look_at(
    client: AsyncLogClient, span: Span, offset: int, *, subject: str | None, max_bytes: int
) -> Fetched:
    """`fetch` among others at a time, for readers that need no damaged frame.

    Raises:
        CorruptError: The first frame came damaged.
        DataLossError: As of `fetch`; so the others.
    """
    call = _call(client.server, span, offset, epoch=None, subject=subject, max_bytes=max_bytes)
    try:
        fetched = await client.ask(call)
    except RefusedError as error:
        raise _failure(span, offset, error) from None
    return _checked(span, offset, fetched)


def kept_until(client: LogClient, span: Span) -> int:
    """The end of what the log still has of the records before a span's end.

    Args:
        client: Client of logd.
        span: Its `planned_epoch` is that of the leader when these records were there.

    Raises:
        UnavailableError: logd is away, or has no time for this reader.
    """
    epoch, upto = span.planned_epoch, span.end
    fetch = calls.fetch(
        Fetch(
            stream=span.stream,
            offset=upto,
            partition=span.partition,
            bytes_max=1,
            wait_ms_max=0,
            log_epoch=epoch,
        ),
        where=client.server,
    )
    try:
        client.ask(fetch)
    except CorruptError:
        return upto  # a frame behind it: its reader finds out
    except RefusedError as error:
        if error.code == "RECORDS_LOST":
            return int(error.detail["offset"])
        if passes(error) or error.code in NOT_LET_IN:
            raise not_now(error) from None
        return upto  # as OUT_OF_RANGE, which reading finds out
    return upto


def _call(
    server: str, span: Span, offset: int, *, epoch: int | None, subject: str | None, max_bytes: int
) -> Call[Fetched]:
    # With a filter a server waits for what matches, though all that is wanted be there.
    return calls.fetch(
        Fetch(
            stream=span.stream,
            offset=offset,
            partition=span.partition,
            bytes_max=max_bytes,
            wait_ms_max=1000 if subject is None else 0,
            subject=subject,
            log_epoch=epoch,
        ),
        where=server,
    )


def _failure(span: Span, offset: int, error: RefusedError) -> Exception:
    if passes(error) or error.code in NOT_LET_IN:
        return not_now(error)
    return loss_or_refusal(span, offset, error)


def _checked(span: Span, offset: int, fetched: Fetched) -> Fetched:
    if span.stream_id and fetched.incarnation != span.stream_id:
        raise DataLossError(
            f"stream {span.stream!r} was deleted and made again; {ACCEPTING} without its records"
        )
    if not fetched.frames and fetched.next_offset <= offset:
        raise UnavailableError(
            f"{span.stream}/{span.partition}: nothing to read at offset {offset} below {span.end}"
        )
    return fetched


def warn(text: str) -> None:
    """Into the standard error of Spark's worker, which the executor's log has."""
    print(f"logd source: {text}", file=sys.stderr)  # noqa: T201
