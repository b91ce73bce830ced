"""Times as text, as nanoseconds since 1970."""

import re
from datetime import UTC, datetime
from typing import Final

from penstock.specs.limits import INT64_MAX

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NANOSECONDS: Final = re.compile(r"\.\d{6}(\d{1,3})")


def iso_time_ns(text: str) -> int | None:
    """ISO 8601 text, in UTC when it names no zone; None when no record can hold it.

    Nine digits of a second are kept; `datetime` itself knows six.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - _EPOCH
    time_ns = ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000
    point = text.find(".") + 1
    if text[point + 6 : point + 7].isdecimal() and (more := _NANOSECONDS.search(text)):
        time_ns += int(more[1].ljust(3, "0"))
    return time_ns if 0 <= time_ns <= INT64_MAX else None
