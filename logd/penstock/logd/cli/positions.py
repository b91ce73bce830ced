"""Where in a stream to begin and to end: what a position means there now."""

from datetime import datetime
from typing import Final

import click

from penstock.logd.client import LogClient
from penstock.logd.client.following import position_request
from penstock.logd.errors import RefusedError
from penstock.service.positions import POSITION, Position

_TAIL_RECORDS: Final = 10

PARTITIONS: Final = click.option(
    "--partition",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only this one; repeatable. Default: all of them.",
)


def check_position(position: Position | None, partitions: int, option: str) -> None:
    """Refuse an offset where several partitions are read, each of which has offsets of its own.

    Raises:
        UsageError: It is one.
    """
    if isinstance(position, int) and partitions > 1:
        message = f"{option} {position} is an offset, and {partitions} partitions are read"
        raise click.UsageError(f"{message}: name one with --partition, or give a time")


def resolve(log: LogClient, stream: str, partition: int, position: Position) -> int:
    """The offset that a position means now."""
    if isinstance(position, int):
        return position
    if isinstance(position, datetime):
        time_ns = position_request(position)
        assert isinstance(time_ns, int)
        return log.offset_for_timestamp(stream, time_ns, partition)
    start, end = log.offsets(stream, partition)
    return start if position == "earliest" else end


def first_offset(log: LogClient, stream: str, partition: int, position: Position | None) -> int:
    """Where reading begins; None: ten records before the end.

    Raises:
        RefusedError: `OUT_OF_RANGE`: that offset cannot be read.
    """
    start, end = log.offsets(stream, partition)
    if position is None:
        return max(start, end - _TAIL_RECORDS)
    offset = resolve(log, stream, partition, position)
    if not start <= offset <= end:
        message = f"offset {offset} of {stream} is not in {start} to {end}"
        raise RefusedError("OUT_OF_RANGE", message, earliest=start, latest=end)
    return offset


__all__ = [
    "PARTITIONS",
    "POSITION",
    "Position",
    "check_position",
    "first_offset",
    "resolve",
]
