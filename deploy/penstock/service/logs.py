"""A process's own logs: structlog, one JSON object a line on standard error."""

import logging
import sys
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog

LEVELS = ("debug", "info", "warning", "error")


class _UnfailingStream:
    """See `unfailing`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def close(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def unfailing(stream: TextIO) -> TextIO:
    """A stream that loses what it cannot write, and raises nothing.

    For what a process says of its work: a full disk, a terminal that is gone, or a pipe that nobody
    reads must not end the work.
    """
    return cast("TextIO", _UnfailingStream(stream))


def configure_logs(component: str, *, level: str = "info", stream: TextIO | None = None) -> None:
    """Send this process's structlog events as JSON lines to `stream`.

    A line that cannot be written is lost, and raises nothing.

    Args:
        component: Goes on every line as ``component``.
        level: The lowest level that is written, one of `LEVELS`.
        stream: Standard error by default.
    """
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(component=component)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(
                structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
            ),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.WriteLoggerFactory(file=unfailing(stream or sys.stderr)),
        cache_logger_on_first_use=False,
    )
