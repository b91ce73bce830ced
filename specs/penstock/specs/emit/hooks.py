"""Hooks that record an unexpected end of a process or thread, and send what is queued.

asyncio reports what no task caught to the logger ``asyncio``, so that the handler of the standard
library's logging has it already.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from penstock.specs import limits
from penstock.specs.emit import emitter, process_sink
from penstock.specs.emit.delivery import unpatched

_FATAL: Final = 21
_ERROR: Final = 17
_SCOPE: Final = "penstock.uncaught"
_IGNORED: Final = (KeyboardInterrupt, SystemExit)


def install_hooks() -> None:
    """Record uncaught exceptions; the hooks that were there before are called, too. Idempotent."""
    for module, name, record in _HOOKS:
        before = getattr(module, name)
        if not isinstance(before, _Hook):
            setattr(module, name, _Hook(record, before))


class _Hook:
    """Records what one of the interpreter's hooks gets, then calls the hook that was there."""

    def __init__(self, record: Callable[..., None], before: Callable[..., Any]) -> None:
        self._record = record
        self._before = before

    def __call__(self, *arguments: Any) -> None:
        self._record(*arguments)
        self._before(*arguments)


def _uncaught(kind: type[BaseException], error: BaseException, _: object) -> None:
    if not issubclass(kind, _IGNORED):
        _record("uncaught exception", _FATAL, error)


def _uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None and not issubclass(arguments.exc_type, _IGNORED):
        name = arguments.thread.name if arguments.thread is not None else None
        _record("uncaught exception in a thread", _ERROR, arguments.exc_value, name)


def _unraisable(arguments: Any) -> None:
    """A destructor or a callback failed where nobody can catch it."""
    if arguments.exc_value is not None:
        _record("exception that could not be raised", _ERROR, arguments.exc_value)


_HOOKS: Final = (
    (sys, "excepthook", _uncaught),
    (threading, "excepthook", _uncaught_in_thread),
    (sys, "unraisablehook", _unraisable),
)


def _record(body: str, severity: int, error: BaseException, thread: str | None = None) -> None:
    sink = process_sink.sink()
    if sink is not None:
        fields = {} if thread is None else {"thread.name": thread}
        sink.logs.write(body, severity, fields, scope=_SCOPE, error=error)


def before_end(flush: Callable[[], object]) -> None:
    """Have something called before SIGTERM, or `multiprocessing`, ends the process.

    It may take a second or two.
    """
    emitter.PROCESS_EXIT.flush_first(flush)
    if flush not in _FLUSHES:
        _FLUSHES.insert(0, flush)


def flush_on_sigterm() -> None:
    """Send what is queued when SIGTERM would end the process; then it ends it.

    Only where nobody handles the signal: an application that does ends in its own way, and
    flushes at exit. Only in the main thread, which alone may set handlers.
    """
    unset = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if unset and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)


def _flush_emitter() -> None:
    emitter.PROCESS_EXIT.flush_all()


_FLUSHES: Final[list[Callable[[], object]]] = [_flush_emitter]


def _terminate(number: int, _frame: FrameType | None) -> None:
    """Flush in another thread: this one may hold any lock, since the signal came at any moment."""
    signal.signal(number, signal.SIG_DFL)
    done = unpatched.allocate_lock()
    done.acquire()

    def finish() -> None:
        for flush in _FLUSHES:
            with contextlib.suppress(Exception):
                flush()
        done.release()
        os.kill(os.getpid(), number)

    try:
        unpatched.start_thread(finish)
    except RuntimeError:
        os.kill(os.getpid(), number)
        return
    sink = process_sink.sink()
    if sink is None or not sink.is_busy:  # else what it is about must first be finished
        done.acquire(timeout=limits.EXIT_FLUSH_MS / 1000)
        os.kill(os.getpid(), number)
