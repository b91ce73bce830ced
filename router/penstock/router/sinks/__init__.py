"""Destinations of records, each with its own progress."""

import os

# Spark's JVM is started by a fork while sinks have connections. gRPC's handlers of a fork, which it
# reads this for when it is imported, crash some of the children before they become the JVM.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

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
