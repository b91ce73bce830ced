"""How a log is cut into segments."""

from dataclasses import dataclass
from typing import Final

from penstock.logd.frame import HEADER_SIZE

SEGMENT_BYTES_MAX: Final = 1 << 40
INDEX_INTERVAL_BYTES_MAX: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """How a log cuts its segments.

    Attributes:
        segment_bytes_max: A segment that would grow beyond is sealed first; one append is never
            split, so a larger one makes a larger segment.
        segment_age_s_max: A segment older than this is sealed before the next append; None: never.
        index_interval_bytes: Log bytes per index entry; also the most a lookup walks.
        index_save_bytes: Log bytes after which the active segment's index is written, once they are
            synced; also the most that is read of it when the log is opened after a kill.

    Raises:
        ValueError: One is out of range.
    """

    segment_bytes_max: int = 256 * 1024 * 1024
    segment_age_s_max: float | None = None
    index_interval_bytes: int = 16 * 1024
    index_save_bytes: int = 16 * 1024 * 1024

    def __post_init__(self) -> None:
        """Check the ranges."""
        _check("segment_bytes_max", self.segment_bytes_max, HEADER_SIZE, SEGMENT_BYTES_MAX)
        _check("index_interval_bytes", self.index_interval_bytes, 1, INDEX_INTERVAL_BYTES_MAX)
        _check("index_save_bytes", self.index_save_bytes, 1, SEGMENT_BYTES_MAX)
        if self.segment_age_s_max is not None and not self.segment_age_s_max > 0:
            msg = f"segment_age_s_max is {self.segment_age_s_max}; it must be more than 0, or None"
            raise ValueError(msg)


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        msg = f"{name} is {value}; it must be from {low} to {high}"
        raise ValueError(msg)
