"""Which class serves which `type` of sink."""

from typing import assert_never

from penstock.router.config import ConsoleSink, HttpSink, ParquetSink
from penstock.router.config import Sink as SinkConfig
from penstock.router.sinks.console import Console
from penstock.router.sinks.http import HttpPost
from penstock.router.sinks.parquet import ParquetLake
from penstock.router.sinks.sink import Sink, SinkContext


def open_sink(config: SinkConfig, context: SinkContext) -> Sink:
    """Make a sink and open it.

    Raises:
        ConfigError: The destination cannot be used.
    """
    sink: Sink
    match config:
        case ParquetSink():
            sink = ParquetLake(config, context)
        case ConsoleSink():
            sink = Console(config, context)
        case HttpSink():
            sink = HttpPost(config, context)
        case _:
            assert_never(config)
    sink.open()
    return sink
