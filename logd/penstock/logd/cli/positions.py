"""Where in a stream to begin and to end, as commands take it: an offset, an end, or a time."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import click
from typing_extensions import override

from penstock.logd.client import LogClient
from penstock.logd.client.following import position_request
from penstock.logd.errors import RefusedError
from penstock.service.clock import SystemClock

Position = int | datetime | Literal["earliest", "latest"]

_AGO: Final = re.compile(r"(\d+)(s|m|h|d)")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_TAIL_RECORDS: Final = 10
_MEANT: Final = "an offset, earliest, latest, a time (2026-01-31T03:00:00Z) or 15m ago (s, m, h, d)"


class PositionType(click.ParamType[Any]):
    """An offset, `earliest`, `latest`, a time or how long ago.

    A time without a zone is UTC, as the times are that commands show.
    """

    name = "position"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or value in ("earliest", "latest"):
            return value
        if re.fullmatch(r"[0-9]{1,19}", value):
            return int(value)
        try:
            ago = _AGO.fullmatch(value)
            if ago:
                now = datetime.fromtimestamp(SystemClock().unix_ns() / 1e9, UTC)
                return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
            if value.isascii() and "-" in value:  # fromisoformat takes 20260131 for a day
                moment = datetime.fromisoformat(value)
                return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        except (ValueError, OverflowError):
            pass
        return self.fail(f"{value!r} is none: give {_MEANT}", param, ctx)


POSITION: Final = PositionType()
"""The type of `--from` and `--to`."""

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
