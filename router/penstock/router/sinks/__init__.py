"""Destinations of records, each with its own progress."""

from penstock.router.sinks.guarantee import Guarantee, Replay
from penstock.router.sinks.settings import SinkConfig
from penstock.router.sinks.sink import Preview, Sink, SinkContext
from penstock.router.sinks.table import make_sink, open_sink

__all__ = [
    "Guarantee",
    "Preview",
    "Replay",
    "Sink",
    "SinkConfig",
    "SinkContext",
    "make_sink",
    "open_sink",
]
