"""Free room of a launch's disk, and when it ends at the rate of the last day.

The launcher notes the free bytes from time to time in DIR/room.json; `penstock status` compares.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from penstock.base.files import atomic_write

SAMPLE_S: Final = 900
"""Between two samples, in seconds."""
_DAY_S: Final = 86_400
SAMPLES_MAX: Final = _DAY_S // SAMPLE_S + 1
"""Maximum samples: those of one day, and one from before it began."""
_SPAN_S_MIN: Final = 300
"""A rate of fewer seconds says nothing about a day."""
_DAYS_SHOWN_MAX: Final = 1000
_GIB: Final = 1024**3
_MIB: Final = 1024**2


@dataclass(frozen=True, slots=True)
class Sample:
    """The free room of a disk at one time.

    Attributes:
        unix_s: The time, in seconds.
        free_bytes: Bytes that an unprivileged user may still write.
    """

    unix_s: int
    free_bytes: int


def read_samples(path: Path) -> list[Sample]:
    """The samples of a file, oldest first; none when there is no such file or it is damaged."""
    try:
        return [Sample(int(one["unix_s"]), int(one["free_bytes"])) for one in _loaded(path)]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # a statistic: the next sample begins the file again


def _loaded(path: Path) -> list[dict[str, int]]:
    document: list[dict[str, int]] = json.loads(path.read_text())
    return document


def note_sample(path: Path, sample: Sample) -> None:
    """Add a sample to a file, which keeps those of the last day."""
    kept = [*read_samples(path), sample][-SAMPLES_MAX:]
    atomic_write(path, json.dumps([asdict(one) for one in kept]) + "\n", durable=False)


def bytes_per_day(samples: Sequence[Sample], now: Sample) -> float | None:
    """Return how fast the free room shrinks, negative where it grows; None: not known yet.

    Args:
        samples: Earlier ones, oldest first.
        now: The newest.
    """
    last_day = [one for one in samples if now.unix_s - one.unix_s <= _DAY_S]
    if not last_day or now.unix_s - last_day[0].unix_s < _SPAN_S_MIN:
        return None
    oldest = last_day[0]
    return (oldest.free_bytes - now.free_bytes) * _DAY_S / (now.unix_s - oldest.unix_s)


def room_line(samples: Sequence[Sample], now: Sample) -> str:
    """The sentence about the room that is left."""
    free = f"{shown_bytes(now.free_bytes)} free on the disk"
    rate = bytes_per_day(samples, now)
    if rate is None:
        return f"{free}; its rate is not known yet"
    if rate <= 0:
        return f"{free}, and not shrinking"
    days = now.free_bytes / rate
    shrinks = f"shrinking by {shown_bytes(rate)} a day"
    if days > _DAYS_SHOWN_MAX:
        return f"{free}, {shrinks}: enough for more than {_DAYS_SHOWN_MAX} days"
    return f"{free}, {shrinks}: full in {days:.1f} days"


def shown_bytes(number: float) -> str:
    """Bytes in a unit that people read."""
    return f"{number / _GIB:.1f} GiB" if number >= _GIB else f"{number / _MIB:.0f} MiB"
