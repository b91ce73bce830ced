"""structlog's end of the library: one processor that does everything, and a logger that emits."""

import logging
import sys
from typing import Any, Final

from penstock.specs.emit import Emitter
from penstock.specs.errors import MissingExtraError
from penstock.specs.log_line import log_line

try:
    import structlog
    from structlog.typing import EventDict, WrappedLogger
except ImportError as error:
    raise MissingExtraError(error.name) from None

SEVERITIES: Final = {
    "debug": 5,
    "info": 9,
    "warn": 13,
    "warning": 13,
    "error": 17,
    "exception": 17,
    "fatal": 21,
    "critical": 21,
}
"""structlog's method names to OpenTelemetry's severity numbers."""


class SpecProcessor:
    """The last processor of a chain: makes the record's line. Never raises."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter

    def __call__(
        self, _logger: WrappedLogger, method: str, event_dict: EventDict
    ) -> tuple[tuple[bytes, int], dict[str, Any]]:
        """Turn an event dict into the arguments of `EmitterLogger`'s methods."""
        severity_number = SEVERITIES.get(method, 9)
        try:
            body = event_dict.pop("event", "")
            scope = event_dict.pop("scope", None)
            error = _error(event_dict.pop("exc_info", None))
            line = log_line(
                body,
                severity_number,
                event_dict,
                scope=scope,
                error=error,
                scrubber=self._emitter.scrubber,
            )
        except Exception:  # noqa: BLE001 - the application must not fail because of its telemetry
            self._emitter.lose("log", "not_encodable")
            line = b""
        return (line, severity_number), {}


class EmitterLogger:
    """The logger at the end: every method offers the line to the emitter."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter

    def msg(self, line: bytes, severity_number: int) -> None:
        """Offer a line that `SpecProcessor` made; an empty one has been counted already."""
        if line:
            self._emitter.emit("log", line, severity_number)

    debug = info = warn = warning = error = exception = fatal = critical = log = msg


def configure_structlog(emitter: Emitter, level: int = logging.INFO) -> None:
    """Make structlog emit through `emitter`, from `level` on."""
    logger = EmitterLogger(emitter)
    structlog.configure(
        processors=[SpecProcessor(emitter)],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: logger,
        cache_logger_on_first_use=False,
    )


def get_logger(name: str | None) -> Any:
    """A structlog logger whose records have `name` as their scope."""
    return structlog.get_logger(scope=name) if name else structlog.get_logger()


def _error(given: Any) -> BaseException | None:
    """What structlog accepts as `exc_info`: True, an exception, or the interpreter's triple."""
    if given is None or given is False:
        return None
    if isinstance(given, BaseException):
        return given
    found = given[1] if isinstance(given, tuple) else sys.exception()
    return found if isinstance(found, BaseException) else None
