"""The standard library's logging, as log records."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from typing_extensions import override

from penstock.specs.emit import process_sink
from penstock.specs.emit.emitter import Emitter
from penstock.specs.emit.log_writer import SANITISED
from penstock.specs.models.attributes import clean_body, clean_text
from penstock.specs.models.log import DEFAULT_SEVERITY

ARGUMENTS: Final = "log.arguments"
"""The attribute with the arguments that do not fit their message's format."""
STACK: Final = "code.stacktrace"
"""The attribute with the stack that ``stack_info`` asked for; OpenTelemetry's name."""
_EMITTED: Final = "_penstock_emitted"
"""The attribute of a `logging.LogRecord` that the process's emitter has already."""
_STANDARD: Final = frozenset(
    vars(logging.LogRecord("", 0, "", 0, "", None, None)).keys()
    | {"message", "asctime", "taskName", _EMITTED}
)
_STRUCTLOGS: Final = frozenset({"_logger", "_name", "_record", "_from_structlog", "event"})
"""Attributes that structlog adds for a `ProcessorFormatter`."""


class SpecHandler(logging.Handler):
    """Emits each record of the logger it is added to; its `extra` becomes attributes.

    A record that reaches the process's emitter by two loggers, or once more through a
    `logging.handlers.QueueHandler`, is emitted once.

    Args:
        emitter: Gets the records; None for the process's, whichever that is at the time.
        level: The least severe level, as in `logging`.
    """

    def __init__(self, emitter: Emitter | None = None, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self._emitter = emitter

    @override
    def createLock(self) -> None:
        """None: the emitter has its own, which a forked child renews."""
        self.lock = None

    @override
    def handle(self, record: logging.LogRecord) -> bool:
        """Filter and emit without the lock that the standard library takes from Python 3.13 on."""
        passed: bool | logging.LogRecord = self.filter(record)
        if passed:
            self.emit(passed if isinstance(passed, logging.LogRecord) else record)
        return bool(passed)

    @override
    def emit(self, record: logging.LogRecord) -> None:
        sink: process_sink.Sink | None = self._emitter or process_sink.sink()
        if sink is None:
            return
        if self._emitter is None:
            if _EMITTED in record.__dict__:
                return
            record.__dict__[_EMITTED] = True
        severity, error, time_ns = DEFAULT_SEVERITY, None, None
        try:
            severity = severity_of(record.levelno)
            body, more = _message(record)
            error = more.pop("exc_info", None) or (record.exc_info[1] if record.exc_info else None)
            error = error if isinstance(error, BaseException) else None
            fields = {**_attributes(record), **more}
            time_ns = int(record.created * 1e9)
        except Exception as failure:  # noqa: BLE001 - any object may be in a record, and any time
            body, fields = clean_text(record.msg), {SANITISED: type(failure).__name__}
        sink.logs.write(
            body, severity, fields, scope=record.name, error=error, time_unix_nano=time_ns
        )

    @property
    def has_own_emitter(self) -> bool:
        """True if the records go to another emitter than the process's."""
        return self._emitter is not None


class Attachment:
    """Keeps a handler on loggers that `logging.config`, Django or Celery set up again later.

    Each of them takes every handler off the root logger and says nothing. No hook tells of that,
    but every log record is made by the process's record factory, which looks after the handler
    before the record reaches any.

    Attributes:
        reattached: Number of times that the handler had been removed.
    """

    def __init__(self) -> None:
        self._handler = SpecHandler()
        self._loggers: tuple[logging.Logger, ...] = ()
        self.reattached = 0

    def attach(self, names: Iterable[str] = ()) -> None:
        """Attach to the root logger, and to those that do not propagate to it, by name."""
        found = dict.fromkeys((logging.getLogger(), *map(logging.getLogger, names)))
        for logger in self._loggers:
            if logger not in found:
                logger.removeHandler(self._handler)
        self._loggers = tuple(found)
        for logger in self._loggers:
            if not _has_ours(logger):
                logger.addHandler(self._handler)
        if not isinstance(logging.getLogRecordFactory(), _Factory):
            logging.setLogRecordFactory(_Factory(logging.getLogRecordFactory(), self.check))

    def detach(self) -> None:
        """Take the handler off every logger, and leave it off."""
        for logger in self._loggers:
            logger.removeHandler(self._handler)
        self._loggers = ()

    def check(self) -> None:
        """Attach again where somebody took the handler away; every record costs this."""
        if process_sink.sink() is None:
            return
        handler = self._handler
        for logger in self._loggers:
            if handler not in logger.handlers and not _has_ours(logger):
                logger.addHandler(handler)
                self.reattached += 1

    def names(self) -> list[str]:
        return [logger.name for logger in self._loggers]

    def is_attached(self) -> bool:
        """Return whether records of the root logger reach the process's emitter."""
        return bool(self._loggers) and _has_ours(self._loggers[0])


ATTACHMENT: Final = Attachment()
"""The process's."""


def _has_ours(logger: logging.Logger) -> bool:
    """Return whether a logger has a handler of the process's emitter, as from a configuration."""
    return any(
        isinstance(each, SpecHandler) and not each.has_own_emitter for each in logger.handlers
    )


class _Factory:
    """A record factory in front of the one that was there."""

    def __init__(self, before: Callable[..., logging.LogRecord], check: Callable[[], None]) -> None:
        self._before = before
        self._check = check

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        self._check()
        return self._before(*args, **kwargs)


def severity_of(level: int) -> int:
    """OpenTelemetry's severity number of a standard library level: 20 (INFO) is 9."""
    if level <= logging.NOTSET:
        return 1
    return max(1, min(21, 5 + (level - logging.DEBUG) // 10 * 4))


def _message(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    """The text, and attributes beyond `extra`."""
    if record.msg.__class__ is dict and "_logger" in record.__dict__:
        # From structlog, for a formatter that this handler does not have.
        more = {key: value for key, value in record.msg.items() if key not in _STRUCTLOGS}
        return clean_text(record.msg.get("event", "")), more
    if not record.args and isinstance(record.msg, (dict, list)):
        return clean_body(record.msg), {}
    try:
        return record.getMessage(), {}
    except Exception:  # noqa: BLE001 - arguments that do not fit the message, or break in it
        return clean_text(record.msg), {ARGUMENTS: shown(record.args)} if record.args else {}


def shown(arguments: Any) -> list[str]:
    """Arguments of a message as text, one by one."""
    given = arguments if isinstance(arguments, tuple) else (arguments,)
    return [clean_text(each) for each in given]


def _attributes(record: logging.LogRecord) -> Mapping[str, Any]:
    given = vars(record).items()
    extra = {key: each for key, each in given if key not in _STANDARD and key not in _STRUCTLOGS}
    attributes: dict[str, Any] = {
        "code.file.path": record.pathname,
        "code.line.number": record.lineno,
        "code.function.name": record.funcName,
        "thread.name": record.threadName,
    }
    if record.stack_info:
        attributes[STACK] = record.stack_info
    bound = extra.pop("extra", None)
    # loguru puts what was bound to its logger into one attribute of that name.
    attributes.update(
        bound if isinstance(bound, dict) else {} if bound is None else {"extra": bound}
    )
    attributes.update(extra)
    return attributes
