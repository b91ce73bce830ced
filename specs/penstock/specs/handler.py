"""The standard library's logging, as log records."""

import logging
from typing import Any, Final

from typing_extensions import override

from penstock.specs import current
from penstock.specs.attributes import clean_text
from penstock.specs.emit import Emitter

_STANDARD: Final = frozenset(
    vars(logging.LogRecord("", 0, "", 0, "", None, None)).keys() | {"message", "asctime"}
)


class SpecHandler(logging.Handler):
    """Emits each record of the logger it is added to; its `extra` becomes attributes.

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
        """As the standard library does, which from Python 3.13 on cannot do it without a lock."""
        passed: bool | logging.LogRecord = self.filter(record)
        if passed:
            self.emit(passed if isinstance(passed, logging.LogRecord) else record)
        return bool(passed)

    @override
    def emit(self, record: logging.LogRecord) -> None:
        sink: current.Sink | None = self._emitter or current.sink()
        if sink is None:
            return
        try:
            body = record.getMessage()
        except Exception:  # noqa: BLE001 - arguments that do not fit the message, or break in it
            body = clean_text(record.msg)
        sink.logs.write(
            body,
            severity_of(record.levelno),
            _attributes(record),
            scope=record.name,
            error=record.exc_info[1] if record.exc_info else None,
            time_unix_nano=int(record.created * 1e9),
        )


def severity_of(level: int) -> int:
    """OpenTelemetry's severity number of a standard library level: 20 (INFO) is 9."""
    if level <= logging.NOTSET:
        return 1
    return max(1, min(21, 5 + (level - logging.DEBUG) // 10 * 4))


def _attributes(record: logging.LogRecord) -> dict[str, Any]:
    extra = {key: value for key, value in vars(record).items() if key not in _STANDARD}
    return {
        "code.file.path": record.pathname,
        "code.line.number": record.lineno,
        "code.function.name": record.funcName,
        "thread.name": record.threadName,
        **extra,
    }
