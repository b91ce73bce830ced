"""structlog's end of the library: one processor that does everything, and a logger that emits."""

import logging
import sys
from collections.abc import Sequence
from typing import Any, Final

from typing_extensions import override

from penstock.specs import current
from penstock.specs.emit import Emitter
from penstock.specs.errors import MissingExtraError
from penstock.specs.log_line import SANITISED
from penstock.specs.log_record import DEFAULT_SEVERITY

try:
    import structlog
    from structlog._config import BoundLoggerLazyProxy
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
    """The last processor of a chain: emits the record. Never raises.

    Args:
        emitter: Gets the records; None for the process's, whichever that is at the time.
    """

    def __init__(self, emitter: Emitter | None = None) -> None:
        self.emitter: Final = emitter

    def __call__(
        self, _logger: WrappedLogger, method: str, event_dict: EventDict
    ) -> tuple[tuple[()], dict[str, Any]]:
        """Emit an event dict; what is left for the logger at the end is nothing."""
        body: Any = ""
        try:
            body = event_dict.get("event", "")
            fields = dict(event_dict)
        except Exception as error:  # noqa: BLE001 - the application must not fail because of it
            fields = {SANITISED: type(error).__name__}
        fields.pop("event", None)
        sink: current.Sink | None = self.emitter or current.sink()
        if sink is not None:
            _write(sink, method, body, fields)
        return (), {}


def _write(sink: current.Sink, method: str, body: Any, fields: dict[str, Any]) -> None:
    """Emit one record; `fields` is used up."""
    scope = fields.pop("scope", None)
    given = fields.pop("exc_info", None)
    error = None if given is None else _error(given)
    severity = SEVERITIES.get(method, DEFAULT_SEVERITY)
    sink.logs.write(body, severity, fields, scope=scope, error=error)


def make_bound_logger(level: int) -> type[Any]:
    """Structlog's filtering logger that, with no processor but ours, goes straight to the emitter.

    structlog's own way from a call to its only processor costs as much as making the record.
    """
    filtering: Any = structlog.make_filtering_bound_logger(level)

    class SpecBoundLogger(filtering):  # type: ignore[misc]  # a class made at run time
        def _proxy_to_logger(
            self, method_name: str, event: str | None = None, *args: Any, **kwargs: Any
        ) -> Any:
            processors = self._processors
            if args or len(processors) != 1 or processors[0].__class__ is not SpecProcessor:
                return super()._proxy_to_logger(method_name, event, *args, **kwargs)
            sink: current.Sink | None = processors[0].emitter or current.sink()
            if sink is not None:
                _write(sink, method_name, event, {**self._context, **kwargs})
            return None

    for number, name in _DIRECT.items():
        if number >= level:
            setattr(SpecBoundLogger, name, _direct(name, getattr(filtering, name)))
    SpecBoundLogger.warn = SpecBoundLogger.warning
    SpecBoundLogger.fatal = SpecBoundLogger.critical
    return SpecBoundLogger


def _direct(name: str, usual: Any) -> Any:
    """A logger's method that calls nothing between the application and the emitter's writer."""
    severity = SEVERITIES[name]
    current_sink = current.sink

    def method(self: Any, event: Any = "", *args: Any, **fields: Any) -> Any:
        processors = self._processors
        if args or len(processors) != 1 or processors[0].__class__ is not SpecProcessor:
            return usual(self, event, *args, **fields)
        sink: current.Sink | None = processors[0].emitter or current_sink()
        if sink is None:
            return None
        if context := self._context:
            fields = {**context, **fields}
        scope = fields.pop("scope", None)
        given = fields.pop("exc_info", None)
        error = None if given is None else _error(given)
        sink.logs.write(event, severity, fields, scope=scope, error=error)
        return None

    method.__name__ = name
    return method


_DIRECT: Final = {10: "debug", 20: "info", 30: "warning", 40: "error", 50: "critical"}
"""The methods of a logger that say no more than a severity, by the levels of `logging`."""


class EmitterLogger:
    """The logger at the end, for which `SpecProcessor` leaves nothing to do."""

    def msg(self) -> None:
        """Nothing."""

    debug = info = warn = warning = error = exception = fatal = critical = log = msg


def configure_structlog(
    emitter: Emitter | None = None, level: int = logging.INFO, processors: Sequence[Any] = ()
) -> None:
    """Make structlog emit through `emitter`, or the process's, from `level` on.

    `processors` go before ours. Loggers are kept once they were used, so that later calls cost
    less; one that was used before keeps the `level` and `processors` of then.
    """
    logger = EmitterLogger()
    structlog.configure(
        processors=[*processors, SpecProcessor(emitter)],
        wrapper_class=make_bound_logger(level),
        logger_factory=lambda *_: logger,
        cache_logger_on_first_use=emitter is None,
    )


class SpecLogger(BoundLoggerLazyProxy):
    """structlog's logger before its first use, which keeps the methods of the one it becomes.

    Without, every call asks for its method anew, which costs a tenth of all that a call does. Once
    structlog keeps the logger itself, there is nothing else that a method could be.
    """

    @override
    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name in SEVERITIES and "bind" in self.__dict__:
            setattr(self, name, found)
        return found


def get_logger(name: str | None) -> Any:
    """A structlog logger whose records have `name` as their scope."""
    return SpecLogger(None, initial_values={"scope": name} if name else None)


def _error(given: Any) -> BaseException | None:
    """What structlog accepts as `exc_info`: True, an exception, or the interpreter's triple."""
    if given is None or given is False:
        return None
    if isinstance(given, BaseException):
        return given
    found = given[1] if isinstance(given, tuple) else sys.exception()
    return found if isinstance(found, BaseException) else None
