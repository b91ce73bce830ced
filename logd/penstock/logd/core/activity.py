"""The stream in which logd takes down what happened: its name and what it is like."""

from typing import Final

from penstock.logd.core.metadata import StreamConfig
from penstock.logd.core.retention import Retention

ACTIVITY: Final = "__activity"


def activity_stream(*, bytes_max: int, age_s: int) -> StreamConfig:
    """What events are kept in.

    An event is remembered by its id for an hour: a node that could not write it for so long may
    write it a second time.
    """
    return StreamConfig(
        name=ACTIVITY,
        subject="",
        ack_on_reply=False,
        segment_bytes_max=16 * 1024 * 1024,
        dedup_window_s=3600,
        dedup_entries_max=100_000,
        retention=Retention(age_s=age_s, bytes=bytes_max),
    )
