"""structlog's end of the library: one processor that does everything, and a logger that emits."""

import logging
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from penstock.specs.emit import process_sink
from penstock.specs.emit.handler import ARGUMENTS, STACK, shown
from penstock.specs.emit.log_writer import SANITISED
from penstock.specs.errors import MissingExtraError
from penstock.specs.models.log import DEFAULT_SEVERITY

if TYPE_CHECKING:
    from types import FrameType

try:
    import structlog
    import structlog.contextvars
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


_SCOPE: Final = "penstock.scope"
"""The key of a logger's name, which is no attribute's."""
_ABSENT: Final = object()
_LIBRARIES: Final = ("penstock.specs.", "structlog.")
_bound_by_structlog: Final = getattr(structlog.contextvars, "_CONTEXT_VARS", None)
"""Variables ever bound by `structlog.contextvars`, usually none; a proper query costs more."""


class SpecProcessor:
    """The last processor of a chain: the process's emitter gets the record. Never raises."""

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
        sink = process_sink.sink()
        if sink is not None:
            _write(sink, SEVERITIES.get(method, DEFAULT_SEVERITY), body, fields)
        return (), {}


def _write(sink: process_sink.Sink, severity: int, body: Any, fields: dict[str, Any]) -> None:
    """Emit one record; `fields` is used up."""
    if _bound_by_structlog or _bound_by_structlog is None:
        fields = {**structlog.contextvars.get_contextvars(), **fields}
    scope = fields.pop(_SCOPE, None)
    error = None
    if (given := fields.pop("exc_info", None)) is not None:
        error = _error(given)
    if "stack_info" in fields:
        stack = fields.pop("stack_info")
        if stack:
            fields[STACK] = stack if isinstance(stack, str) else _stack()
    sink.logs.write(body, severity, fields, scope=scope, error=error)


def _stack() -> str:
    """Return the stack of the application's call, without the frames of both libraries."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as `logging` does
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_LIBRARIES):
        frame = frame.f_back
    return "Stack (most recent call last):\n" + "".join(traceback.format_stack(frame)).rstrip()


def _formatted(event: Any, args: tuple[Any, ...], fields: dict[str, Any]) -> Any:
    """The text, with its arguments; where they do not fit, these become an attribute."""
    try:
        only = args[0] if len(args) == 1 else None
        return event % (only if isinstance(only, Mapping) and only else args)
    except Exception:  # noqa: BLE001 - the application must not fail because of it
        fields[ARGUMENTS] = shown(args)
        return event


def make_bound_logger(level: int) -> type[Any]:
    """Structlog's filtering logger that, with no processor but ours, goes straight to the emitter.

    structlog's own way from a call to its only processor costs as much as making the record.
    Arguments that do not fit the message's format never raise.
    """
    filtering: Any = structlog.make_filtering_bound_logger(level)

    class SpecBoundLogger(filtering):  # type: ignore[misc]  # a class made at run time
        def _proxy_to_logger(
            self, method_name: str, event: str | None = None, *args: Any, **kwargs: Any
        ) -> Any:
            processors = self._processors
            if args or len(processors) != 1 or processors[0].__class__ is not SpecProcessor:
                return super()._proxy_to_logger(method_name, event, *args, **kwargs)
            sink = process_sink.sink()
            if sink is not None:
                severity = SEVERITIES.get(method_name, DEFAULT_SEVERITY)
                _write(sink, severity, event, {**self._context, **kwargs})
            return None

        def log(self, level: int, event: Any = "", /, *args: Any, **fields: Any) -> Any:
            if args:
                event = _formatted(event, args, fields)
            return super().log(level, event, **fields)

        async def alog(self, level: int, event: Any = "", /, *args: Any, **fields: Any) -> Any:
            if args:
                event = _formatted(event, args, fields)
            return await super().alog(level, event, **fields)

    _replace_methods(SpecBoundLogger, filtering, level)
    return SpecBoundLogger


def _replace_methods(ours: Any, filtering: Any, level: int) -> None:
    for number, name in _DIRECT.items():
        if number >= level:
            setattr(ours, name, _direct(name, getattr(filtering, name)))
            setattr(ours, f"a{name}", _async(getattr(filtering, f"a{name}")))
    if level <= logging.ERROR:
        ours.exception = _exception(ours.error)
        ours.aexception = _async(filtering.aexception)
    ours.warn, ours.awarn = ours.warning, ours.awarning
    ours.fatal, ours.afatal = ours.critical, ours.acritical


def _direct(name: str, usual: Any) -> Any:
    """A logger's method that calls nothing between the application and the emitter's writer."""
    severity = SEVERITIES[name]
    current_sink = process_sink.sink

    def method(self: Any, event: Any = _ABSENT, /, *args: Any, **fields: Any) -> Any:
        if event is _ABSENT:
            event = fields.pop("event", "")
        if args:
            event = _formatted(event, args, fields)
        processors = self._processors
        if len(processors) != 1 or processors[0].__class__ is not SpecProcessor:
            if "event" in fields:
                fields["event_"] = fields.pop("event")  # structlog has no place for another
            return usual(self, event, **fields)
        sink = current_sink()
        if sink is None:
            return None
        if context := self._context:
            fields = {**context, **fields}
        if _bound_by_structlog or "stack_info" in fields or _bound_by_structlog is None:
            _write(sink, severity, event, fields)
            return None
        scope = fields.pop(_SCOPE, None)
        given = fields.pop("exc_info", None)
        error = None if given is None else _error(given)
        sink.logs.write(event, severity, fields, scope=scope, error=error)
        return None

    method.__name__ = name
    return method


def _exception(error: Any) -> Any:
    """The method for the exception that is being handled."""

    def exception(self: Any, event: Any = _ABSENT, /, *args: Any, **fields: Any) -> Any:
        fields.setdefault("exc_info", True)
        return error(self, event, *args, **fields)

    return exception


def _async(usual: Any) -> Any:
    """A logger's awaitable method, whose arguments need not fit."""

    async def method(self: Any, event: Any = "", /, *args: Any, **fields: Any) -> Any:
        if args:
            event = _formatted(event, args, fields)
        return await usual(self, event, **fields)

    return method


_DIRECT: Final = {10: "debug", 20: "info", 30: "warning", 40: "error", 50: "critical"}
"""The methods of a logger that say no more than a severity, by the levels of `logging`."""


class EmitterLogger:
    """The logger at the end, for which `SpecProcessor` leaves nothing to do.

    An application that calls `structlog.configure` after `setup` may have put other processors in
    its place: what they rendered becomes a record's body.
    """

    def _rendered(self, method: str, args: tuple[Any, ...], fields: dict[str, Any]) -> None:
        if not args and not fields:
            return
        sink = process_sink.sink()
        if sink is None:
            return
        body = args[0] if args else fields.pop("event", fields.pop("msg", ""))
        if isinstance(body, Mapping):
            fields, body = {**body, **fields}, body.get("event", "")
            fields.pop("event", None)
        _write(sink, SEVERITIES.get(method, DEFAULT_SEVERITY), body, fields)

    def __getattr__(self, name: str) -> Any:
        """The method of that name: ``info`` and its like."""
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **fields: self._rendered(name, args, fields)


def configure_structlog(level: int = logging.INFO, processors: Sequence[Any] = ()) -> None:
    """Make structlog emit through the process's emitter, from `level` on.

    `processors` go before ours. Loggers are kept once they were used, so that later calls cost
    less; one that was used before keeps the `level` and `processors` of then.
    """
    logger = EmitterLogger()
    structlog.configure(
        processors=[*processors, SpecProcessor()],
        wrapper_class=make_bound_logger(level),
        logger_factory=lambda *_: logger,
        cache_logger_on_first_use=True,
    )


class SpecLogger(BoundLoggerLazyProxy):
    """structlog's logger before its first use, which keeps the methods of the one it becomes.

    Without, every call looks its method up again, which costs a tenth of all that a call does. Once
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
    return SpecLogger(None, initial_values={_SCOPE: name} if name else None)


def _error(given: Any) -> BaseException | None:
    """Return the exception of `exc_info`: True, an exception, or the interpreter's triple."""
    if given is None or given is False:
        return None
    try:
        if isinstance(given, BaseException):
            return given
        found = given[1] if isinstance(given, tuple) else sys.exception()
        return found if isinstance(found, BaseException) else None
    except Exception:  # noqa: BLE001 - an empty tuple, or a proxy without its object
        return None
