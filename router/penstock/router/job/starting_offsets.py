"""Offsets at which a job begins each stream: an end of the log, given offsets, or a time."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

from penstock.base.clock import BlockingClock
from penstock.router.checkpoint.local import StartingOffsets
from penstock.router.errors import DataLossError, LogUnavailableError, UnknownPartitionError
from penstock.router.job.config import JobConfig
from penstock.router.job.config_errors import WrongKeyError
from penstock.router.job.permissions import logd_is_away
from penstock.router.read.logd_reader import LogdReader, LogState
from penstock.router.read.offset_spec import Times
from penstock.router.read.offsets import (
    EARLIEST,
    LATEST,
    Offsets,
    Readable,
    StreamPartition,
    offsets_from_json,
    resolve,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def first_state(config: JobConfig, log: LogdReader) -> LogState:
    """Return the readable offsets of a job's streams.

    Raises:
        ConfigError: A stream does not exist, or a file of `source` cannot be read.
        UnavailableError: logd could not be reached in time.
    """
    try:
        with _reached(config):
            return log.state(config.subscription)
    except DataLossError as error:
        key = "source.assign" if isinstance(error, UnknownPartitionError) else "streams"
        raise WrongKeyError(
            f"{key}: {error}",
            fix=f"correct the key `{key}`; `penstock logd streams ls` lists what there is",
        ) from None


def starting_offsets(
    config: JobConfig, state: LogState, log: LogdReader, clock: BlockingClock
) -> Offsets:
    """Return where the job began each known partition and begins each new one; store the latter.

    Raises:
        ConfigError: An offset does not exist, or the time lies in the future.
        UnavailableError: logd could not be reached in time.
    """
    wanted = config.starting_offsets
    decided = StartingOffsets(config.checkpoint_dir)
    known = decided.load().next
    new = {at: span for at, span in state.readable.items() if at not in known}
    if isinstance(wanted, datetime):
        choice: Offsets | int = _at(config, wanted, new, log, clock)
    elif isinstance(wanted, str):
        choice = {"earliest": EARLIEST, "latest": LATEST}[wanted]
    else:
        choice = offsets_from_json(wanted)
        _check_there(choice, new, state)
    resolved = resolve(choice, new, missing=EARLIEST)
    return decided.extend(Offsets(resolved, state.stream_ids))


def _check_there(wanted: Offsets, new: Mapping[StreamPartition, Readable], state: LogState) -> None:
    """Check offsets before they are stored: later it would look as if records were lost."""
    streams = {at.stream for at in new}
    for at, offset in sorted(wanted.next.items()):
        if at.stream in streams and at not in state.readable:
            raise WrongKeyError(
                f"starting_offsets: {at.stream} has no partition {at.partition}",
                fix="`penstock logd streams ls` lists what there is",
            )
        if at in new and offset > (end := state.written.get(at, new[at].end)):
            raise WrongKeyError(
                f"starting_offsets: {at.stream}/{at.partition}: {offset} lies behind the end of"
                f" the log, {end}",
                fix=f"name an offset up to {end}, or -1 for the end",
            )


def _at(
    config: JobConfig,
    moment: datetime,
    readable: Mapping[StreamPartition, Readable],
    log: LogdReader,
    clock: BlockingClock,
) -> Offsets:
    """The first records at or after a time; the end of what has none yet."""
    time_ms = -((_EPOCH - moment) // timedelta(milliseconds=1))  # no record of before it
    if readable and time_ms > clock.unix_ns() // 10**6:
        raise WrongKeyError(
            f"starting_offsets: {moment.isoformat()} is yet to come",
            fix="name a time of before, or `latest`",
        )
    with _reached(config):
        return Offsets(log.at_times(Times(every=max(time_ms, 0), strategy="latest"), readable))


@contextmanager
def _reached(config: JobConfig) -> Iterator[None]:
    """Within it, a logd that stays away is the operator's matter."""
    try:
        yield
    except LogUnavailableError as error:
        raise logd_is_away(config, error) from None
