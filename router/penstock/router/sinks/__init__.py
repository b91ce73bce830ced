"""Destinations of records, each with its own progress."""

from penstock.router.job.settings import SinkConfig
from penstock.router.sinks.registry import make_sink, open_sink
from penstock.router.sinks.sink import (
    Guarantee,
    Preview,
    Replay,
    Sink,
    SinkContext,
    TaskSink,
    Writer,
    WriteResult,
)

__all__ = [
    "Guarantee",
    "Preview",
    "Replay",
    "Sink",
    "SinkConfig",
    "SinkContext",
    "TaskSink",
    "WriteResult",
    "Writer",
    "make_sink",
    "open_sink",
]
