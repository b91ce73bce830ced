"""How a log is cut into segments."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """How a log cuts its segments.

    Attributes:
        segment_bytes_max: A segment that would grow beyond is sealed first; one append is never
            split, so a larger one makes a larger segment.
        segment_age_s_max: A segment older than this is sealed before the next append; None: never.
        index_interval_bytes: Log bytes per index entry; also the most a lookup walks.
    """

    segment_bytes_max: int = 256 * 1024 * 1024
    segment_age_s_max: float | None = None
    index_interval_bytes: int = 16 * 1024
