"""Where in a stream to begin and to end, as commands take it: an offset, an end, or a time."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import click
from typing_extensions import override

from penstock.base.clock import SystemClock

Position = int | datetime | Literal["earliest", "latest"]

_AGO: Final = re.compile(r"(\d+)(s|m|h|d)")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
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
