"""Destinations of records, each with its own progress."""

from penstock.router.sinks.sink import Sink, SinkContext
from penstock.router.sinks.table import open_sink

__all__ = ["Sink", "SinkContext", "open_sink"]
